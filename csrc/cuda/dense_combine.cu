// dense_combine on CUDA. Forward: a thread per (sample, up to 16 bytes of output) adds all experts
// for all gates in registers; the more gates, the fewer outputs. A gate's rows lie side by side, as
// on the CPU. Backward: a block per sample, its
// warps sharing out the experts. Either reads an expert's row once for up to 64 gates.

#include <torch/csrc/stable/library.h>

#include <array>
#include <tuple>

#include "common.cuh"

namespace mmoe {
namespace {

constexpr int64_t kTable = 124;  // experts whose pointers and strides travel with the launch
constexpr int kMostGates = 64;   // more are taken 64 at a time
constexpr int kBackwardThreads = 128;

// Where the experts' rows are: a table, or for many experts one stacked tensor.
struct Rows {
  const void* y[kTable];
  int64_t stride[kTable];
  const void* base;  // null where the table is used
  int64_t expert_stride;

  template <typename T>
  __device__ const T* row(int64_t e, int64_t b) const {
    return base == nullptr ? static_cast<const T*>(y[e]) + b * stride[e]
                           : static_cast<const T*>(base) + e * expert_stride + b * stride[0];
  }
};

template <typename T>
struct Dense {
  const sum_t<T>* weights;
  int64_t B, G, E, O;
  // Of the mixes or their gradients, in numbers: from a sample, or a gate, to the next
  int64_t sample_step, gate_step;
};

template <typename T, int V, int NG>
__global__ void forward(const __grid_constant__ Rows rows, Dense<T> d, T* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t packs = d.O / V;
  if (i >= d.B * packs) return;
  const int64_t b = i / packs, o = i % packs * V;
  for (int64_t first = 0; first < d.G; first += NG) {
    sum_t<T> sums[NG][V] = {};
    const sum_t<T>* weights = d.weights + (b * d.G + first) * d.E;
    for (int64_t e = 0; e < d.E; ++e) {
      const Pack<T, V> y = load_pack<T, V>(rows.row<T>(e, b) + o);
#pragma unroll
      for (int g = 0; g < NG; ++g) {
        if (first + g >= d.G) break;
        const sum_t<T> weight = weights[g * d.E + e];
#pragma unroll
        for (int v = 0; v < V; ++v) sums[g][v] += weight * to_sum(y.at[v]);
      }
    }
#pragma unroll
    for (int g = 0; g < NG; ++g) {
      if (first + g >= d.G) break;
      store_pack<T, V>(out + b * d.sample_step + (first + g) * d.gate_step + o, sums[g]);
    }
  }
}

// One warp, one (sample, expert): the gradient of y, and the dot products with all the gates.
template <typename T, int V, int NG>
__device__ void backward_row(const Dense<T>& d, int64_t b, int64_t e, const T* y, const T* grad,
                             T* grad_y, sum_t<T>* grad_weights) {
  const int lane = threadIdx.x % kWarp;
  const auto weight_of = [&](int64_t g) { return (b * d.G + g) * d.E + e; };
  const auto add = [&](const Pack<T, V>& from, int64_t g, sum_t<T>(&sums)[V]) {
    const sum_t<T> weight = d.weights[weight_of(g)];
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] += weight * to_sum(from.at[v]);
  };
  // Without any gate the gradient of y is 0, and still to be written.
  for (int64_t first = 0; first == 0 || first < d.G; first += NG) {
    sum_t<T> dots[NG] = {};
    for (int64_t o = lane * V; o < d.O; o += kWarp * V) {
      const Pack<T, V> value = load_pack<T, V>(y + o);
      sum_t<T> sums[V] = {};
#pragma unroll
      for (int g = 0; g < NG; ++g) {
        if (first + g >= d.G) break;
        const Pack<T, V> from = load_pack<T, V>(grad + (first + g) * d.gate_step + o);
#pragma unroll
        for (int v = 0; v < V; ++v) dots[g] += to_sum(value.at[v]) * to_sum(from.at[v]);
        if (first == 0) add(from, g, sums);
      }
      if (first > 0) continue;
      for (int64_t g = NG; g < d.G; ++g) add(load_pack<T, V>(grad + g * d.gate_step + o), g, sums);
      store_pack<T, V>(grad_y + o, sums);
    }
#pragma unroll
    for (int g = 0; g < NG; ++g) {
      if (first + g >= d.G) break;
      const sum_t<T> sum = add_over_warp(dots[g]);
      if (lane == 0) grad_weights[weight_of(first + g)] = sum;
    }
  }
}

template <typename T, int V, int NG>
__global__ void backward(const __grid_constant__ Rows rows, const __grid_constant__ Rows grad_rows,
                         Dense<T> d, const T* grad, sum_t<T>* grad_weights) {
  const int64_t b = blockIdx.x;
  for (int64_t e = threadIdx.x / kWarp; e < d.E; e += kBackwardThreads / kWarp) {
    T* grad_y = const_cast<T*>(grad_rows.row<T>(e, b));
    backward_row<T, V, NG>(d, b, e, rows.row<T>(e, b), grad + b * d.sample_step, grad_y,
                           grad_weights);
  }
}

// The gradients' table travels as well, and 4 KiB is the limit of CUDA before 12.1 and its drivers.
static_assert(2 * sizeof(Rows) + sizeof(Dense<double>) + 2 * sizeof(void*) <= 4096);

// More experts than the table holds: one stacked tensor, copied together where it is a list.
std::vector<Tensor> fit_table(const std::vector<Tensor>& y) {
  if (static_cast<int64_t>(y.size()) <= kTable) return y;
  std::array<StableIValue, 2> stack{torch::stable::detail::from(y),
                                    torch::stable::detail::from(int64_t{0})};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::stack", "", stack.data(), TORCH_ABI_VERSION));
  return {torch::stable::detail::to<Tensor>(stack[0])};
}

template <typename Pointers>
Rows locate(const Pointers& data, const std::vector<int64_t>& strides, int64_t expert_stride) {
  Rows rows = {};
  const int64_t experts = static_cast<int64_t>(data.size());
  if (experts > kTable) {
    rows.base = data[0];
    rows.expert_stride = expert_stride;
    rows.stride[0] = strides[0];
    return rows;
  }
  for (int64_t e = 0; e < experts; ++e) {
    rows.y[e] = data[e];
    rows.stride[e] = strides[e];
  }
  return rows;
}

template <typename T>
bool packed(const ExpertOutputs& y) {
  bool fits = y.width % kPack<T> == 0;
  for (int64_t e = 0; e < y.experts(); ++e) {
    fits = fits && aligned(y.data[e]) && y.row_stride[e] % kPack<T> == 0;
  }
  return fits;
}

// Calls run with the compile-time number of gates that are taken at once: a power of two.
template <int NG = 1, typename Run>
void for_gates(int64_t G, const Run& run) {
  if constexpr (NG < kMostGates) {
    if (G > NG) return for_gates<2 * NG>(G, run);
  }
  run(std::integral_constant<int, NG>{});
}

// Outputs of a thread whose sums for all gates stay in registers: 256 bytes of them, where one
// output does not need more.
template <typename T, int NG>
constexpr int kOutputs = std::max(1, std::min<int>(kPack<T>, 256 / sizeof(sum_t<T>) / NG));

template <typename T>
Dense<T> describe(const ExpertOutputs& y, const Tensor& weights, const Tensor& mixes_BGO) {
  return {static_cast<const sum_t<T>*>(weights.const_data_ptr()),
          y.rows,
          weights.size(1),
          y.experts(),
          y.width,
          mixes_BGO.stride(0),
          mixes_BGO.stride(1)};
}

template <typename T>
bool packed(const Tensor& mixes_BGO) {
  return aligned(mixes_BGO.const_data_ptr()) && mixes_BGO.stride(0) % kPack<T> == 0 &&
         mixes_BGO.stride(1) % kPack<T> == 0;
}

template <typename T>
void run_forward(const ExpertOutputs& y, const Tensor& weights, const Tensor& out,
                 cudaStream_t stream) {
  const Dense<T> d = describe<T>(y, weights, out);
  if (d.B * d.G * d.O == 0) return;
  const Rows rows = locate(y.data, y.row_stride, y.kept[0].stride(0));
  T* to = static_cast<T*>(out.mutable_data_ptr());
  const bool packs = packed<T>(y) && packed<T>(out);
  for_gates(d.G, [&](auto gates) {
    constexpr int NG = decltype(gates)::value, V = kOutputs<T, NG>;
    if (packs) {
      forward<T, V, NG><<<blocks_for(d.B * (d.O / V)), kThreads, 0, stream>>>(rows, d, to);
    } else {
      forward<T, 1, NG><<<blocks_for(d.B * d.O), kThreads, 0, stream>>>(rows, d, to);
    }
  });
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void run_backward(const ExpertOutputs& y, const Tensor& weights, const Tensor& grad,
                  const ExpertGradients& grad_y, const Tensor& grad_weights, cudaStream_t stream) {
  const Dense<T> d = describe<T>(y, weights, grad);
  if (d.B == 0) return;
  const Rows rows = locate(y.data, y.row_stride, y.kept[0].stride(0));
  const std::vector<int64_t> strides(grad_y.data.size(), y.width);
  const Rows grad_rows = locate(grad_y.data, strides, y.rows * y.width);
  const T* from = static_cast<const T*>(grad.const_data_ptr());
  auto* to_weights = static_cast<sum_t<T>*>(grad_weights.mutable_data_ptr());
  const bool packs = packed<T>(y) && packed<T>(grad) &&
                     std::all_of(grad_y.data.begin(), grad_y.data.end(), aligned);
  const unsigned blocks = within_int32(d.B, "y: too many samples for one CUDA launch");
  for_gates(d.G, [&](auto gates) {
    constexpr int NG = decltype(gates)::value, V = kPack<T>;
    if (packs) {
      backward<T, V, NG>
          <<<blocks, kBackwardThreads, 0, stream>>>(rows, grad_rows, d, from, to_weights);
    } else {
      backward<T, 1, NG>
          <<<blocks, kBackwardThreads, 0, stream>>>(rows, grad_rows, d, from, to_weights);
    }
  });
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor dense_combine(const std::vector<Tensor>& y, const Tensor& weights_BGE) {
  check_device(weights_BGE, "weights_BGE", {});
  check_device(weights_BGE, "weights_BGE", "y", y);
  const Launch launch(weights_BGE);
  const ExpertOutputs outputs(fit_table(y));
  check_dense_combine(outputs, weights_BGE);
  const Tensor weights = dense(weights_BGE);
  const Tensor out_GBO = empty(y[0], {weights.size(1), outputs.rows, outputs.width}, outputs.type);
  const Tensor out = torch::stable::transpose(out_GBO, 0, 1);
  switch (outputs.type) {
    case ScalarType::Double:
      run_forward<double>(outputs, weights, out, launch.stream());
      break;
    case ScalarType::BFloat16:
      run_forward<__nv_bfloat16>(outputs, weights, out, launch.stream());
      break;
    default:
      run_forward<float>(outputs, weights, out, launch.stream());
  }
  return out;
}

std::tuple<std::vector<Tensor>, Tensor> dense_combine_backward(const Tensor& grad_BGO,
                                                               const std::vector<Tensor>& y,
                                                               const Tensor& weights_BGE) {
  check_device(weights_BGE, "weights_BGE", {{"grad_BGO", &grad_BGO}});
  check_device(weights_BGE, "weights_BGE", "y", y);
  const Launch launch(weights_BGE);
  const std::vector<Tensor> fitting = fit_table(y);
  const ExpertOutputs outputs(fitting);
  check_dense_combine(outputs, weights_BGE);
  check_grad(grad_BGO, outputs.rows, weights_BGE.size(1), outputs.width, outputs.type);
  const Tensor weights = dense(weights_BGE), grad = with_whole_rows(grad_BGO);
  const ExpertGradients grad_y(fitting);
  const Tensor grad_weights = empty_as(weights);
  switch (outputs.type) {
    case ScalarType::Double:
      run_backward<double>(outputs, weights, grad, grad_y, grad_weights, launch.stream());
      break;
    case ScalarType::BFloat16:
      run_backward<__nv_bfloat16>(outputs, weights, grad, grad_y, grad_weights, launch.stream());
      break;
    default:
      run_backward<float>(outputs, weights, grad, grad_y, grad_weights, launch.stream());
  }
  if (fitting.size() == y.size()) return {grad_y.tensors, grad_weights};
  // The caller gave a list: hand back one tensor for each, none a view of another.
  std::vector<Tensor> parts;
  for (size_t e = 0; e < y.size(); ++e) {
    parts.push_back(torch::stable::clone(torch::stable::select(grad_y.tensors[0], 0, e)));
  }
  return {parts, grad_weights};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("dense_combine", MMOE_BOX(dense_combine));
  m.impl("dense_combine_backward", MMOE_BOX(dense_combine_backward));
}

// gated_combine on CUDA. Forward: a thread per (sample, gate, 16 bytes of output). Backward: a warp
// per sample, which owns the sample's pairs, so nothing is added atomically.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "common.cuh"

namespace mmoe {
namespace {

constexpr int32_t kNobody = -1;

template <typename T>
struct Gated {
  const T* y;
  const int32_t* slots;
  const sum_t<T>* weights;
  int64_t P, B, G, K, O;
};

template <typename T, int V>
__global__ void forward(Gated<T> d, T* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t packs = d.O / V;
  if (i >= d.B * d.G * packs) return;
  const int64_t gate = i / packs, o = i % packs * V;
  sum_t<T> sums[V] = {};
  for (int64_t k = 0; k < d.K; ++k) {
    const int32_t slot = d.slots[gate * d.K + k];
    MMOE_DEVICE_CHECK(slot >= kNobody && slot < d.P, "slots_BGK: expected a slot in [0, P) or -1",
                      slot);
    if (slot < 0) continue;
    const sum_t<T> weight = d.weights[gate * d.K + k];
    const Pack<T, V> y = load_pack<T, V>(d.y + slot * d.O + o);
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] += weight * to_sum(y.at[v]);
  }
  store_pack<T, V>(out + gate * d.O + o, sums);
}

// The gradient of one pair: its row of y is used by every pick of the sample with the same slot.
template <typename T, int V>
__device__ void write_grad_y(const Gated<T>& d, const int32_t* slots, const sum_t<T>* weights,
                             const T* grad, int64_t first, int lane, T* grad_y) {
  const int64_t picks = d.G * d.K;
  for (int64_t o = lane * V; o < d.O; o += kWarp * V) {
    sum_t<T> sums[V] = {};
    for (int64_t i = first; i < picks; ++i) {
      if (slots[i] != slots[first]) continue;
      const Pack<T, V> g = load_pack<T, V>(grad + i / d.K * d.O + o);
#pragma unroll
      for (int v = 0; v < V; ++v) sums[v] += weights[i] * to_sum(g.at[v]);
    }
    store_pack<T, V>(grad_y + o, sums);
  }
}

template <typename T, int V>
__device__ sum_t<T> dot(const T* a, const T* b, int64_t width, int lane) {
  sum_t<T> sum = 0;
  for (int64_t o = lane * V; o < width; o += kWarp * V) {
    const Pack<T, V> x = load_pack<T, V>(a + o), y = load_pack<T, V>(b + o);
#pragma unroll
    for (int v = 0; v < V; ++v) sum += to_sum(x.at[v]) * to_sum(y.at[v]);
  }
  return add_over_warp(sum);
}

template <typename T, int V>
__global__ void backward(Gated<T> d, const T* grad, T* grad_y, sum_t<T>* grad_weights,
                         int32_t* owner) {
  const int64_t b = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (b >= d.B) return;  // the whole warp at once
  const int64_t picks = d.G * d.K;
  const int32_t* slots = d.slots + b * picks;
  const sum_t<T>* weights = d.weights + b * picks;
  const T* grads = grad + b * d.G * d.O;
  for (int64_t i = 0; i < picks; ++i) {
    const int32_t slot = slots[i];
    MMOE_DEVICE_CHECK(slot >= kNobody && slot < d.P, "slots_BGK: expected a slot in [0, P) or -1",
                      slot);
    sum_t<T> grad_weight = 0;
    if (slot >= 0) {
      bool is_first = true;
      for (int64_t j = 0; j < i; ++j) is_first &= slots[j] != slot;
      if (is_first) {
        if (lane == 0) {
          const int32_t other = atomicExch(owner + slot, static_cast<int32_t>(b));
          MMOE_DEVICE_CHECK(other == kNobody, "slots_BGK: a pair belongs to two samples", slot);
        }
        write_grad_y<T, V>(d, slots, weights, grads, i, lane, grad_y + slot * d.O);
      }
      grad_weight = dot<T, V>(d.y + slot * d.O, grads + i / d.K * d.O, d.O, lane);
    }
    if (lane == 0) grad_weights[b * picks + i] = grad_weight;
  }
}

// A pair that no pick names has gradient 0, and nobody has written it.
template <typename T>
__global__ void clear_unused(const int32_t* owner, T* grad_y, int64_t P, int64_t O) {
  const int64_t p = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  if (p >= P || owner[p] != kNobody) return;
  for (int64_t o = threadIdx.x % kWarp; o < O; o += kWarp) grad_y[p * O + o] = from_sum<T>(0);
}

template <typename T>
Gated<T> describe(const Tensor& y, const Tensor& slots, const Tensor& weights) {
  return {static_cast<const T*>(y.const_data_ptr()),
          static_cast<const int32_t*>(slots.const_data_ptr()),
          static_cast<const sum_t<T>*>(weights.const_data_ptr()),
          y.size(0),
          slots.size(0),
          slots.size(1),
          slots.size(2),
          y.size(1)};
}

template <typename T>
bool packed(int64_t width, std::initializer_list<const void*> pointers) {
  return width % kPack<T> == 0 && std::all_of(pointers.begin(), pointers.end(), aligned);
}

template <typename T>
void run_forward(const Gated<T>& d, T* out, cudaStream_t stream) {
  if (d.B * d.G * d.O == 0) return;
  if (packed<T>(d.O, {d.y, out})) {
    constexpr int V = kPack<T>;
    forward<T, V><<<blocks_for(d.B * d.G * (d.O / V)), kThreads, 0, stream>>>(d, out);
  } else {
    forward<T, 1><<<blocks_for(d.B * d.G * d.O), kThreads, 0, stream>>>(d, out);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void run_backward(const Gated<T>& d, const Tensor& grad, const Tensor& grad_y,
                  const Tensor& grad_weights, int32_t* owner, cudaStream_t stream) {
  const T* from = static_cast<const T*>(grad.const_data_ptr());
  T* to = static_cast<T*>(grad_y.mutable_data_ptr());
  auto* to_weights = static_cast<sum_t<T>*>(grad_weights.mutable_data_ptr());
  if (d.B > 0) {
    const unsigned blocks = blocks_for(d.B * kWarp);
    if (packed<T>(d.O, {d.y, from, to})) {
      backward<T, kPack<T>><<<blocks, kThreads, 0, stream>>>(d, from, to, to_weights, owner);
    } else {
      backward<T, 1><<<blocks, kThreads, 0, stream>>>(d, from, to, to_weights, owner);
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  if (d.P > 0) {
    clear_unused<T><<<blocks_for(d.P * kWarp), kThreads, 0, stream>>>(owner, to, d.P, d.O);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

template <typename T>
void forward_as(const Tensor& y, const Tensor& slots, const Tensor& weights, const Tensor& out,
                cudaStream_t stream) {
  run_forward<T>(describe<T>(y, slots, weights), static_cast<T*>(out.mutable_data_ptr()), stream);
}

Tensor gated_combine(const Tensor& y_PO, const Tensor& slots_BGK, const Tensor& weights_BGK) {
  check_gated_combine(y_PO, slots_BGK, weights_BGK);
  check_device(y_PO, "y_PO", {{"slots_BGK", &slots_BGK}, {"weights_BGK", &weights_BGK}});
  const Launch launch(y_PO);
  const Tensor y = dense(y_PO), slots = dense(slots_BGK), weights = dense(weights_BGK);
  const Tensor out = empty(y, {slots.size(0), slots.size(1), y.size(1)}, y.scalar_type());
  switch (y.scalar_type()) {
    case ScalarType::Double:
      forward_as<double>(y, slots, weights, out, launch.stream());
      break;
    case ScalarType::BFloat16:
      forward_as<__nv_bfloat16>(y, slots, weights, out, launch.stream());
      break;
    default:
      forward_as<float>(y, slots, weights, out, launch.stream());
  }
  return out;
}

std::tuple<Tensor, Tensor> gated_combine_backward(const Tensor& grad_BGO, const Tensor& y_PO,
                                                  const Tensor& slots_BGK,
                                                  const Tensor& weights_BGK) {
  check_gated_combine(y_PO, slots_BGK, weights_BGK);
  check_grad(grad_BGO, slots_BGK.size(0), slots_BGK.size(1), y_PO.size(1), y_PO.scalar_type());
  check_device(y_PO, "y_PO",
               {{"grad_BGO", &grad_BGO}, {"slots_BGK", &slots_BGK}, {"weights_BGK", &weights_BGK}});
  const Launch launch(y_PO);
  const cudaStream_t stream = launch.stream();
  const Tensor y = dense(y_PO), slots = dense(slots_BGK), weights = dense(weights_BGK);
  const Tensor grad = dense(grad_BGO);
  const Tensor grad_y = empty_as(y);
  const Tensor grad_weights = empty_as(weights);
  const Tensor owners = empty(slots, {y.size(0)}, ScalarType::Int);
  auto* owner = static_cast<int32_t*>(owners.mutable_data_ptr());
  fill_bytes(owners, 0xff, stream);
  switch (y.scalar_type()) {
    case ScalarType::Double:
      run_backward(describe<double>(y, slots, weights), grad, grad_y, grad_weights, owner, stream);
      break;
    case ScalarType::BFloat16:
      run_backward(describe<__nv_bfloat16>(y, slots, weights), grad, grad_y, grad_weights, owner,
                   stream);
      break;
    default:
      run_backward(describe<float>(y, slots, weights), grad, grad_y, grad_weights, owner, stream);
  }
  return {grad_y, grad_weights};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("gated_combine", MMOE_BOX(gated_combine));
  m.impl("gated_combine_backward", MMOE_BOX(gated_combine_backward));
}

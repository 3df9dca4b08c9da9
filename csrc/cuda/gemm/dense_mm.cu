// dense_mm on CUDA. Products over all rows are cuBLAS's business, in one batch for all the experts;
// bias, activation, their gradients, and the step between one tensor of all experts and a tensor
// for each of them are fused into one pass over the rows.

#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <tuple>

#include "../rowwise.cuh"

namespace mmoe {
namespace {

constexpr int64_t kTable = 128;  // pointers that travel with a launch; 4 KiB is the limit for all

// Of up to kTable experts, from `first` on.
struct Tensors {
  void* data[kTable];
};

Tensors locate(const std::vector<Tensor>& tensors, int64_t first) {
  Tensors table = {};
  const int64_t count =
      std::min<int64_t>(kTable, tensors.size() - std::min<size_t>(first, tensors.size()));
  for (int64_t i = 0; i < count; ++i) table.data[i] = tensors[first + i].mutable_data_ptr();
  return table;
}

template <typename T>
bool packed(int64_t width, std::initializer_list<const std::vector<Tensor>*> lists) {
  bool fits = width % kPack<T> == 0;
  for (const auto* list : lists) {
    for (const Tensor& tensor : *list) fits = fits && aligned(tensor.const_data_ptr());
  }
  return fits;
}

// y[e] = activation(product[e] + bias[e]); a thread per pack, blockIdx.y the expert.
template <typename T, int V>
__global__ void finish_experts(const __grid_constant__ Tensors y, const __grid_constant__ Tensors z,
                               const T* product, Finish finish_one, int64_t rows, int32_t first) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int32_t packs = finish_one.width / V, e = first + blockIdx.y;
  if (i >= rows * packs) return;
  finish_one.y = y.data[blockIdx.y];
  finish_one.z = z.data[blockIdx.y];
  const auto pack = load_pack<T, V>(product + e * rows * finish_one.width + i * V);
  sum_t<T> sums[V];
#pragma unroll
  for (int v = 0; v < V; ++v) sums[v] = to_sum(pack.at[v]);
  finish<T>(finish_one, e, false, i / packs, static_cast<int32_t>(i % packs) * V, sums);
}

template <typename T>
struct Derivatives {
  T* dz;           // [rows, E, H], or null
  sum_t<T>* sums;  // [E, tiles, H], or null
  int32_t rows, E, H, tiles, column_tiles, first;
  Activation activation;
};

// A block per tile of an expert's rows and of columns; blockIdx.y is the expert.
template <typename T, int V>
__global__ void differentiate_experts(const __grid_constant__ Tensors grad,
                                      const __grid_constant__ Tensors kept, Derivatives<T> d) {
  const int32_t tile = blockIdx.x / d.column_tiles, e = d.first + blockIdx.y;
  const int64_t row = int64_t{tile} * kTileRows, stride = int64_t{d.E} * d.H;
  const DerivativeTile<T> part = {
      static_cast<const T*>(grad.data[blockIdx.y]) + row * d.H,
      static_cast<const T*>(kept.data[blockIdx.y]) + row * d.H,
      d.dz == nullptr ? nullptr : d.dz + row * stride + int64_t{e} * d.H,
      stride,
      d.sums == nullptr ? nullptr : d.sums + (int64_t{e} * d.tiles + tile) * d.H,
      min(kTileRows, d.rows - tile * kTileRows),
      d.H,
      d.H,
      d.activation};
  differentiate_tile<T, V>(part, blockIdx.x % d.column_tiles * (kWarp * V));
}

template <typename S, typename To>
__global__ void add_tiles(const S* sums, To* bias, int32_t tiles, int32_t H, int32_t column_tiles) {
  const int64_t e = blockIdx.x / column_tiles;
  add_rows(sums + e * tiles * H, tiles, H, blockIdx.x % column_tiles * kWarp, bias + e * H);
}

// The inputs that both directions share, checked; x of all experts as one tensor.
struct Dense {
  Tensor x, weight;  // x_EBD, not necessarily contiguous; weight in x's dtype
  ScalarType type, weight_type;
  Activation activation;
  int64_t sources, B, E, D, H;

  Dense(const std::vector<Tensor>& tensors, const Tensor& weight_EDH,
        const std::string& activation_name)
      : type(tensors[0].scalar_type()),
        weight_type(weight_EDH.scalar_type()),
        activation(activation_from(activation_name)),
        sources(static_cast<int64_t>(tensors.size())),
        B(tensors[0].size(0)),
        E(weight_EDH.size(0)),
        D(weight_EDH.size(1)),
        H(weight_EDH.size(2)) {
    if (std::max({B + kTileRows, E * H, E * D}) > std::numeric_limits<int32_t>::max()) {
      fail("x: ", B, " rows for ", E, " experts of width ", H, " are too many for one CUDA launch");
    }
    weight = dense(detach(weight_EDH));
    if (weight_type != type) weight = torch::stable::to(weight, type);
    x = sources == 1 ? over_experts(dense(detach(tensors[0]))) : stack(tensors);
  }

  bool keeps_z() const { return mmoe::keeps_z(activation); }
  bool wide() const { return weight_type != type; }

  Tensor over_experts(const Tensor& x_BD) const {
    return call_aten("aten::expand", "", torch::stable::unsqueeze(x_BD, 0),
                     std::vector<int64_t>{E, B, D}, false);
  }
  static Tensor stack(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> parts;
    for (const Tensor& tensor : tensors) parts.push_back(detach(tensor));
    return call_aten("aten::stack", "", parts, int64_t{0});
  }
  std::vector<Tensor> rows(int64_t count, int64_t width) const {
    std::vector<Tensor> tensors;
    for (int64_t i = 0; i < count; ++i) tensors.push_back(empty(weight, {B, width}, type));
    return tensors;
  }
};

Tensor batched(const Tensor& a, const Tensor& b, const Tensor& out) {
  if (out.scalar_type() == a.scalar_type()) return call_aten("aten::bmm", "out", a, b, out);
  return call_aten("aten::bmm", "dtype_out", a, b, out.scalar_type(), out);
}

template <typename T>
void finish_as(const Tensor& product, const std::vector<Tensor>& y, const std::vector<Tensor>& z,
               const std::optional<Tensor>& bias, Activation activation, cudaStream_t stream) {
  const int64_t E = product.size(0), rows = product.size(1), width = product.size(2);
  const bool packs = packed<T>(width, {&y, &z}) && aligned(product.const_data_ptr());
  const Finish finish = {bias ? bias->const_data_ptr() : nullptr,
                         bias && bias->scalar_type() != product.scalar_type(),
                         activation,
                         nullptr,
                         nullptr,
                         static_cast<int32_t>(width),
                         packs};
  const auto* from = static_cast<const T*>(product.const_data_ptr());
  for (int64_t first = 0; first < E; first += kTable) {
    const int64_t V = packs ? kPack<T> : 1;
    const dim3 grid(blocks_for(rows * (width / V)), std::min(kTable, E - first));
    const auto kernel = packs ? finish_experts<T, kPack<T>> : finish_experts<T, 1>;
    kernel<<<grid, kThreads, 0, stream>>>(locate(y, first), locate(z, first), from, finish, rows,
                                          static_cast<int32_t>(first));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

void finish(const Tensor& product_EBN, const std::vector<Tensor>& y, const std::vector<Tensor>& z,
            const std::optional<Tensor>& bias, Activation activation, cudaStream_t stream) {
  if (product_EBN.numel() == 0) return;
  for_type(product_EBN.scalar_type(), [&](auto type) {
    finish_as<decltype(type)>(product_EBN, y, z, bias, activation, stream);
  });
}

template <typename T>
void differentiate_as(const Dense& d, const std::vector<Tensor>& grad,
                      const std::vector<Tensor>& kept, const Tensor* dz, const Tensor* bias,
                      cudaStream_t stream) {
  using S = sum_t<T>;
  const auto tiles = static_cast<int32_t>((d.B + kTileRows - 1) / kTileRows);
  const Tensor room =
      empty(d.weight, {bias == nullptr ? 0 : d.E, tiles, d.H}, accumulate_type(d.type));
  S* sums = bias == nullptr ? nullptr : static_cast<S*>(room.mutable_data_ptr());
  const bool packs =
      packed<T>(d.H, {&grad, &kept}) && (dz == nullptr || aligned(dz->const_data_ptr()));
  const int64_t lanes = kWarp * (packs ? kPack<T> : 1);
  const auto columns = static_cast<int32_t>((d.H + lanes - 1) / lanes);
  for (int64_t first = 0; first < d.E && tiles > 0; first += kTable) {
    const Derivatives<T> all = {dz == nullptr ? nullptr : static_cast<T*>(dz->mutable_data_ptr()),
                                sums,
                                static_cast<int32_t>(d.B),
                                static_cast<int32_t>(d.E),
                                static_cast<int32_t>(d.H),
                                tiles,
                                columns,
                                static_cast<int32_t>(first),
                                d.activation};
    const dim3 grid(blocks_for(int64_t{tiles} * columns * kThreads), std::min(kTable, d.E - first));
    const auto kernel = packs ? differentiate_experts<T, kPack<T>> : differentiate_experts<T, 1>;
    kernel<<<grid, kThreads, 0, stream>>>(locate(grad, first), locate(kept, first), all);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  if (bias == nullptr) return;
  const auto bias_columns = static_cast<int32_t>((d.H + kWarp - 1) / kWarp);
  const unsigned grid = blocks_for(d.E * bias_columns * kThreads);
  const auto H = static_cast<int32_t>(d.H);
  if (d.wide()) {
    add_tiles<<<grid, kThreads, 0, stream>>>(sums, static_cast<S*>(bias->mutable_data_ptr()), tiles,
                                             H, bias_columns);
  } else {
    add_tiles<<<grid, kThreads, 0, stream>>>(sums, static_cast<T*>(bias->mutable_data_ptr()), tiles,
                                             H, bias_columns);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

std::tuple<std::vector<Tensor>, std::vector<Tensor>> dense_mm(const std::vector<Tensor>& x,
                                                              const Tensor& weight_EDH,
                                                              std::optional<Tensor> bias_EH,
                                                              std::string activation) {
  check_dense_mm(x, weight_EDH, bias_EH);
  check_device(weight_EDH, "weight_EDH", "x", x);
  if (bias_EH) check_device(weight_EDH, "weight_EDH", {{"bias_EH", &*bias_EH}});
  const Launch launch(weight_EDH);
  const Dense d(x, weight_EDH, activation);
  const std::optional<Tensor> bias = bias_EH ? std::optional(dense(*bias_EH)) : std::nullopt;
  const std::vector<Tensor> y = d.rows(d.E, d.H), z = d.rows(d.keeps_z() ? d.E : 0, d.H);
  const Tensor product = batched(d.x, d.weight, empty(d.weight, {d.E, d.B, d.H}, d.type));
  finish(product, y, z, bias, d.activation, launch.stream());
  return {y, z};
}

std::vector<Tensor> checked(const char* name, const Dense& d, const std::vector<Tensor>& tensors) {
  if (static_cast<int64_t>(tensors.size()) != d.E) {
    fail(name, ": expected ", d.E, " tensors, one per expert, got ", tensors.size());
  }
  check_device(d.weight, "weight_EDH", name, tensors);
  std::vector<Tensor> packed;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_dim({name, i}, tensors[i], 2);
    check_type({name, i}, tensors[i], d.type);
    check_size({name, i}, tensors[i], 0, d.B);
    check_size({name, i}, tensors[i], 1, d.H);
    packed.push_back(dense(tensors[i]));
  }
  return packed;
}

// Of rows that all experts share, the sum over the experts, taken in one product and rounded once.
std::vector<Tensor> gradient_of_x(const Dense& d, const Tensor& dz_BEH, cudaStream_t stream) {
  const std::vector<Tensor> grad_x = d.rows(d.sources, d.D);
  const Tensor weight_EHD = torch::stable::transpose(d.weight, 1, 2);
  if (d.sources == 1) {
    const Tensor dz = torch::stable::view(dz_BEH, {d.B, d.E * d.H});
    const Tensor weight = torch::stable::view(dense(weight_EHD), {d.E * d.H, d.D});
    call_aten("aten::mm", "out", dz, weight, grad_x[0]);
    return grad_x;
  }
  const Tensor product = batched(torch::stable::transpose(dz_BEH, 0, 1), weight_EHD,
                                 empty(d.weight, {d.E, d.B, d.D}, d.type));
  finish(product, grad_x, {}, std::nullopt, Activation::none, stream);
  return grad_x;
}

std::tuple<std::vector<Tensor>, Tensor, Tensor> dense_mm_backward(
    const std::vector<Tensor>& grad, const std::vector<Tensor>& x, const Tensor& weight_EDH,
    const std::vector<Tensor>& y, const std::vector<Tensor>& z, std::string activation, bool need_x,
    bool need_weight, bool need_bias) {
  check_dense_mm(x, weight_EDH, std::nullopt);
  check_device(weight_EDH, "weight_EDH", "x", x);
  const Launch launch(weight_EDH);
  const cudaStream_t stream = launch.stream();
  const Dense d(x, weight_EDH, activation);
  const std::vector<Tensor> from = checked("grad", d, grad), results = checked("y", d, y);
  const std::vector<Tensor> kept = d.keeps_z() ? checked("z", d, z) : results;
  const bool need_dz = need_x || need_weight;
  const Tensor dz_BEH =
      need_dz ? empty(d.weight, {d.B, d.E, d.H}, d.type) : empty(d.weight, {0}, d.type);
  const Tensor grad_bias =
      need_bias ? empty(d.weight, {d.E, d.H}, d.weight_type) : empty(d.weight, {0}, d.weight_type);
  if (d.H > 0 && (need_dz || need_bias)) {
    for_type(d.type, [&](auto type) {
      differentiate_as<decltype(type)>(d, from, kept, need_dz ? &dz_BEH : nullptr,
                                       need_bias ? &grad_bias : nullptr, stream);
    });
  }
  std::vector<Tensor> grad_x;
  if (need_x) grad_x = gradient_of_x(d, dz_BEH, stream);
  if (!need_weight) return {grad_x, empty(d.weight, {0}, d.weight_type), grad_bias};
  const Tensor grad_weight =
      batched(torch::stable::transpose(d.x, 1, 2), torch::stable::transpose(dz_BEH, 0, 1),
              empty(d.weight, {d.E, d.D, d.H}, d.weight_type));
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("dense_mm", MMOE_BOX(dense_mm));
  m.impl("dense_mm_backward", MMOE_BOX(dense_mm_backward));
}

// dense_mm on CUDA. Products over all rows are cuBLAS's business: one for each expert, bias
// included and straight into its result, or one batch for all of them into a tensor that a pass
// then takes apart (dense_choice.cu says which). Activations and their gradients, and a bias that
// the product has not added, are one pass over the rows.

#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <tuple>

#include "../rowwise.cuh"
#include "dense_choice.h"

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

// y[e] = activation(product[e] + bias[e]); a thread per pack, blockIdx.y the expert. The product
// may lie where y or z is to.
template <typename T, int V>
__global__ void finish_experts(const __grid_constant__ Tensors y, const __grid_constant__ Tensors z,
                               const __grid_constant__ Tensors product, Finish finish_one,
                               int64_t rows, int32_t first) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int32_t packs = finish_one.width / V, e = first + blockIdx.y;
  if (i >= rows * packs) return;
  finish_one.y = y.data[blockIdx.y];
  finish_one.z = z.data[blockIdx.y];
  const auto pack = load_pack<T, V>(static_cast<const T*>(product.data[blockIdx.y]) + i * V);
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

// One expert's matrix out of [E, rows, columns], or with dim 1 its rows out of [rows, E, columns].
Tensor part_of(const Tensor& all, int64_t dim, int64_t expert) {
  return call_aten("aten::select", "int", all, dim, expert);
}

// The inputs that both directions share, checked.
struct Dense {
  std::vector<Tensor> x;          // x_BD: one for all experts, or one for each
  std::optional<Tensor> stacked;  // x_EBD, where they came as one
  Tensor weight;                  // in x's dtype
  ScalarType type, weight_type;
  Activation activation;
  int64_t sources, B, E, D, H;

  Dense(const std::vector<Tensor>& tensors, const Tensor& weight_EDH,
        const std::string& activation_name)
      : type(tensors[0].scalar_type()),
        weight_type(weight_EDH.scalar_type()),
        activation(activation_from(activation_name)),
        sources(is_stacked(tensors) ? weight_EDH.size(0) : static_cast<int64_t>(tensors.size())),
        B(tensors[0].size(tensors[0].dim() - 2)),
        E(weight_EDH.size(0)),
        D(weight_EDH.size(1)),
        H(weight_EDH.size(2)) {
    within_int32(std::max({B + kTileRows, E * H, E * D}), "x: ", B, " rows for ", E,
                 " experts of width ", H, " are too many for one CUDA launch");
    weight = dense(detach(weight_EDH));
    if (weight_type != type) weight = torch::stable::to(weight, type);
    if (is_stacked(tensors)) {
      stacked = dense(detach(tensors[0]));
      x = apart(*stacked);
    } else {
      for (const Tensor& tensor : tensors) x.push_back(dense(detach(tensor)));
    }
  }

  bool keeps_z() const { return mmoe::keeps_z(activation); }
  bool wide() const { return weight_type != type; }

  // Straight into results that are so many numbers an expert.
  bool straight(int64_t numbers) const {
    return writes_straight({type, E, 2 * B * D * H, numbers});
  }

  const Tensor& x_of(int64_t expert) const { return x[sources == 1 ? 0 : expert]; }
  // x_EBD, not necessarily contiguous.
  Tensor x_of_all() const {
    if (stacked) return *stacked;
    if (sources > 1) return call_aten("aten::stack", "", x, int64_t{0});
    return call_aten("aten::expand", "", torch::stable::unsqueeze(x[0], 0),
                     std::vector<int64_t>{E, B, D}, false);
  }
  std::vector<Tensor> rows(int64_t count, int64_t width) const {
    std::vector<Tensor> tensors;
    for (int64_t i = 0; i < count; ++i) tensors.push_back(empty(weight, {B, width}, type));
    return tensors;
  }
};

// In the dtype of the result, whose sums are rounded once. `name`: mm, or bmm for a batch.
Tensor multiply(const char* name, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (out.scalar_type() == a.scalar_type()) return call_aten(name, "out", a, b, out);
  return call_aten(name, "dtype_out", a, b, out.scalar_type(), out);
}

template <typename T>
void finish_as(const std::vector<Tensor>& product, const std::vector<Tensor>& y,
               const std::vector<Tensor>& z, const std::optional<Tensor>& bias,
               Activation activation, cudaStream_t stream) {
  const int64_t E = static_cast<int64_t>(y.size()), rows = y[0].size(0), width = y[0].size(1);
  const bool packs = packed<T>(width, {&product, &y, &z});
  const Finish finish = {bias ? bias->const_data_ptr() : nullptr,
                         bias && bias->scalar_type() != y[0].scalar_type(),
                         activation,
                         nullptr,
                         nullptr,
                         static_cast<int32_t>(width),
                         packs};
  for (int64_t first = 0; first < E; first += kTable) {
    const int64_t V = packs ? kPack<T> : 1;
    const dim3 grid(blocks_for(rows * (width / V)), std::min(kTable, E - first));
    const auto kernel = packs ? finish_experts<T, kPack<T>> : finish_experts<T, 1>;
    kernel<<<grid, kThreads, 0, stream>>>(locate(y, first), locate(z, first),
                                          locate(product, first), finish, rows,
                                          static_cast<int32_t>(first));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

// z may be left out.
void finish(const std::vector<Tensor>& product, const std::vector<Tensor>& y,
            const std::vector<Tensor>& z, const std::optional<Tensor>& bias, Activation activation,
            cudaStream_t stream) {
  if (y[0].numel() == 0) return;
  for_type(y[0].scalar_type(),
           [&](auto type) { finish_as<decltype(type)>(product, y, z, bias, activation, stream); });
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
  const bool packs = packed<T>(d.H, {&grad, &kept});  // dz is new memory, and aligned
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

// cuBLAS adds a bias of the result's dtype to its sums before it rounds them. A float bias beside
// bfloat16 rows it would have to be given rounded, so that one is left to the pass afterwards, and
// so are the activations: the epilogue's GELU is the tanh approximation, its ReLU promises nothing
// of NaN, and here NaN must stay NaN.
void layers_straight(const Dense& d, const std::optional<Tensor>& bias,
                     const std::vector<Tensor>& y, const std::vector<Tensor>& z,
                     cudaStream_t stream) {
  const std::vector<Tensor>& to = d.keeps_z() ? z : y;
  const bool adds = bias && !d.wide();
  for (int64_t e = 0; e < d.E; ++e) {
    const Tensor weight = part_of(d.weight, 0, e);
    if (adds) {
      const std::optional<Tensor> bias_H = part_of(*bias, 0, e);
      // Of the products with a bias the one whose arguments the stable ABI can pass.
      call_aten("aten::linear", "out", d.x_of(e), torch::stable::transpose(weight, 0, 1), bias_H,
                to[e]);
    } else {
      multiply("aten::mm", d.x_of(e), weight, to[e]);
    }
  }
  const bool is_left = bias && !adds;
  if (!is_left && d.activation == Activation::none) return;
  finish(to, y, is_left ? z : std::vector<Tensor>(), is_left ? bias : std::nullopt, d.activation,
         stream);
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
  if (d.straight(d.B * d.H)) {
    layers_straight(d, bias, y, z, launch.stream());
  } else {
    const Tensor product =
        multiply("aten::bmm", d.x_of_all(), d.weight, empty(d.weight, {d.E, d.B, d.H}, d.type));
    finish(apart(product), y, z, bias, d.activation, launch.stream());
  }
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
  const Tensor weight_EHD = torch::stable::transpose(d.weight, 1, 2);
  if (d.stacked) {
    const Tensor grad_x_EBD = empty(d.weight, {d.E, d.B, d.D}, d.type);
    multiply("aten::bmm", torch::stable::transpose(dz_BEH, 0, 1), weight_EHD, grad_x_EBD);
    return {grad_x_EBD};
  }
  const std::vector<Tensor> grad_x = d.rows(d.sources, d.D);
  if (d.sources == 1) {
    const Tensor dz = torch::stable::view(dz_BEH, {d.B, d.E * d.H});
    const Tensor weight = torch::stable::view(dense(weight_EHD), {d.E * d.H, d.D});
    call_aten("aten::mm", "out", dz, weight, grad_x[0]);
    return grad_x;
  }
  if (d.straight(d.B * d.D)) {
    for (int64_t e = 0; e < d.E; ++e) {
      multiply("aten::mm", part_of(dz_BEH, 1, e), part_of(weight_EHD, 0, e), grad_x[e]);
    }
    return grad_x;
  }
  const Tensor product = multiply("aten::bmm", torch::stable::transpose(dz_BEH, 0, 1), weight_EHD,
                                  empty(d.weight, {d.E, d.B, d.D}, d.type));
  finish(apart(product), grad_x, {}, std::nullopt, Activation::none, stream);
  return grad_x;
}

// x that all experts share is read in one batch; x of their own would have to be copied for that.
Tensor gradient_of_weight(const Dense& d, const Tensor& dz_BEH) {
  const Tensor grad_weight = empty(d.weight, {d.E, d.D, d.H}, d.weight_type);
  if (d.sources == 1 || !d.straight(d.B * d.D)) {
    multiply("aten::bmm", torch::stable::transpose(d.x_of_all(), 1, 2),
             torch::stable::transpose(dz_BEH, 0, 1), grad_weight);
    return grad_weight;
  }
  for (int64_t e = 0; e < d.E; ++e) {
    multiply("aten::mm", torch::stable::transpose(d.x_of(e), 0, 1), part_of(dz_BEH, 1, e),
             part_of(grad_weight, 0, e));
  }
  return grad_weight;
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
  const Tensor grad_weight =
      need_weight ? gradient_of_weight(d, dz_BEH) : empty(d.weight, {0}, d.weight_type);
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("dense_mm", MMOE_BOX(dense_mm));
  m.impl("dense_mm_backward", MMOE_BOX(dense_mm_backward));
}

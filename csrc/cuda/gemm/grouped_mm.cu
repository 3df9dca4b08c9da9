// grouped_mm on CUDA. In bfloat16 on sm_90 and sm_100 products may go to PyTorch's grouped GEMM
// (product_choice.cu says which), which takes its offsets on the device; it wants strides of 16
// bytes and leaves the tail undefined, so odd widths are padded here and the tail is cleared.
// Everywhere else, and for float gradients of float weights, the products are this library's own.
// gathered_mm is the same on rows of x by number: ours read them where they lie, PyTorch's a copy.

#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <tuple>

#include "product_choice.h"

namespace mmoe {
namespace {

constexpr ScalarType kBf16 = ScalarType::BFloat16;

int64_t whole_packs(int64_t width) {
  return (width + kPack<__nv_bfloat16> - 1) / kPack<__nv_bfloat16> * kPack<__nv_bfloat16>;
}

bool is_packed(int64_t width) { return width == whole_packs(width); }

// May PyTorch's kernel read these contiguous rows as they are? It checks the stride of a single
// row.
bool library_reads(const Tensor& rows) {
  const int64_t width = rows.size(1);
  return is_packed(width) && rows.stride(0) == width && aligned(rows.const_data_ptr());
}

// Rows as the library reads them.
Tensor library_rows(const Tensor& rows, cudaStream_t stream) {
  if (library_reads(rows)) return rows;
  return pad_to_bf16(rows, rows.size(0), whole_packs(rows.size(1)), stream);
}

// Of a contiguous tensor. Its rows lie a width apart, whatever its stride says: that of a dimension
// of size 1 is arbitrary in PyTorch (`weight_EHD.transpose(1, 2)` with D = 1 says 1).
Table table(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.size(tensor.dim() - 1)};
}

// The inputs that both directions share, checked and contiguous. With `rows_P`, x is a table that
// the pairs read by number.
struct Layer {
  Tensor x, offsets, weight;
  std::optional<Tensor> rows;
  Activation activation;
  int64_t P, E, D, H;
  bool wide;  // float weights beside bfloat16 rows

  Layer(const Tensor& x_ND, const std::optional<Tensor>& rows_P, const Tensor& offsets_E1,
        const Tensor& weight_EDH, const std::string& activation)
      : x(dense(detach(x_ND))),
        offsets(dense(offsets_E1)),
        weight(dense(detach(weight_EDH))),
        rows(rows_P ? std::optional(dense(*rows_P)) : std::nullopt),
        activation(activation_from(activation)),
        P(rows ? rows->size(0) : x.size(0)),
        E(weight.size(0)),
        D(weight.size(1)),
        H(weight.size(2)),
        wide(weight.scalar_type() != x.scalar_type()) {
    // Room to count past the end in whole tiles.
    to_int32(rows ? "rows_P" : "x_PD", std::max(P, x.size(0)) + 1024);
    to_int32("weight_EDH", std::max({E, D + 1024, H + 1024}));
  }

  ScalarType type() const { return x.scalar_type(); }
  Experts experts() const {
    return {static_cast<const int32_t*>(offsets.const_data_ptr()), static_cast<int32_t>(E),
            static_cast<int32_t>(P)};
  }
  bool keeps_z() const { return mmoe::keeps_z(activation); }

  PairRows pair_rows() const {
    const void* numbers = rows ? rows->const_data_ptr() : nullptr;
    return {table(x), static_cast<const int32_t*>(numbers), static_cast<int32_t>(x.size(0))};
  }

  // x as PyTorch's kernel reads it.
  Tensor library_x(cudaStream_t stream) const {
    return rows ? gather_bf16(x, *rows, whole_packs(D), stream) : library_rows(x, stream);
  }
  bool copies_x() const { return rows.has_value() || !library_reads(x); }

  // Does PyTorch's kernel serve for y, for the gradient of x, for that of the weight?
  bool library_forward(bool has_bias) const {
    const bool finished = has_bias || activation != Activation::none || !is_packed(H);
    return library(D, H, finished, copies_x());
  }
  bool library_of_x() const { return library(H, D, !is_packed(D), false); }
  // The library rounds its result, which a float gradient must not be.
  bool library_of_weight() const {
    return !wide && library(D, H, !is_packed(D) || !is_packed(H), copies_x());
  }
  bool library(int64_t depth, int64_t width, bool finished, bool copied) const {
    return P > 0 && takes_library({type(), E, depth, width, finished, copied});
  }

  // The weights as the products read them: in the rows' dtype, and for the library padded.
  Tensor readable_weight(bool library, cudaStream_t stream) const {
    const bool packed = is_packed(D) && is_packed(H);
    if (library && !(packed && aligned(weight.const_data_ptr()) && !wide)) {
      return pad_to_bf16(weight, whole_packs(D), whole_packs(H), stream);
    }
    return wide ? pad_to_bf16(weight, D, whole_packs(H), stream) : weight;
  }

  Finish finish(const Tensor& y, const Tensor* z, const std::optional<Tensor>& bias,
                Activation activation) const {
    void* to = y.mutable_data_ptr();
    void* kept = z == nullptr ? nullptr : z->mutable_data_ptr();
    const int64_t width = y.size(1), bytes = width * static_cast<int64_t>(y.element_size());
    return {bias ? bias->const_data_ptr() : nullptr,
            wide,
            activation,
            kept,
            to,
            static_cast<int32_t>(width),
            bytes % 16 == 0 && aligned(to) && aligned(kept)};
  }
};

// PyTorch's grouped product; its offsets lack the 0 in front.
Tensor library_product(const Tensor& a, const Tensor& b, const Layer& layer) {
  Tensor offsets = layer.offsets;
  const std::optional<Tensor> ends = torch::stable::narrow(offsets, 0, 1, layer.E);
  return call_aten("aten::_grouped_mm", "", a, b, ends, std::optional<Tensor>(),
                   std::optional<ScalarType>());
}

// Where the product's rows are as wide as the result's, the result is finished in place.
Tensor room_for(const Tensor& product, int64_t width) {
  if (product.stride(0) == width) return product;
  return empty(product, {product.size(0), width}, kBf16);
}

void check(const Tensor& x_ND, const std::optional<Tensor>& rows_P, const Tensor& offsets_E1,
           const Tensor& weight_EDH, const std::optional<Tensor>& bias_EH) {
  const char* name = rows_P ? "x_BD" : "x_PD";
  check_grouped_mm(x_ND, offsets_E1, weight_EDH, bias_EH, name);
  check_device(x_ND, name, {{"offsets_E1", &offsets_E1}, {"weight_EDH", &weight_EDH}});
  if (bias_EH) check_device(x_ND, name, {{"bias_EH", &*bias_EH}});
  if (!rows_P) return;
  check_dim("rows_P", *rows_P, 1);
  check_type("rows_P", *rows_P, ScalarType::Int);
  check_device(x_ND, name, {{"rows_P", &*rows_P}});
}

std::tuple<Tensor, Tensor> forward(const Tensor& x_ND, const std::optional<Tensor>& rows_P,
                                   const Tensor& offsets_E1, const Tensor& weight_EDH,
                                   const std::optional<Tensor>& bias_EH,
                                   const std::string& activation) {
  check(x_ND, rows_P, offsets_E1, weight_EDH, bias_EH);
  const Launch launch(x_ND);
  const cudaStream_t stream = launch.stream();
  const Layer layer(x_ND, rows_P, offsets_E1, weight_EDH, activation);
  const std::optional<Tensor> bias = bias_EH ? std::optional(dense(*bias_EH)) : std::nullopt;
  const Tensor z = layer.keeps_z() ? empty(layer.x, {layer.P, layer.H}, layer.type())
                                   : empty(layer.x, {0}, layer.type());
  const Tensor* kept = layer.keeps_z() ? &z : nullptr;
  const bool library = layer.library_forward(bias.has_value());
  const Tensor weight = layer.readable_weight(library, stream);
  if (library) {
    const Tensor product = library_product(layer.library_x(stream), weight, layer);
    const Tensor y = room_for(product, layer.H);
    finish_rows(layer.experts(), product, layer.finish(y, kept, bias, layer.activation), stream);
    return {y, z};
  }
  const Tensor y = empty(layer.x, {layer.P, layer.H}, layer.type());
  multiply_rows({layer.type(), layer.experts(), layer.pair_rows(), table(weight), false,
                 static_cast<int32_t>(layer.D), layer.finish(y, kept, bias, layer.activation)},
                stream);
  return {y, z};
}

// Which of a gradient's products are wanted, and which of these are PyTorch's.
struct Wanted {
  bool x, weight;
  bool library_x, library_weight;
};

// The gradient of what went into the activation; the gradient of the bias on the way.
Tensor differentiate_layer(const Layer& layer, const Tensor& grad, const Tensor& y, const Tensor& z,
                           const Tensor* grad_bias, const Wanted& wanted, cudaStream_t stream) {
  const bool is_linear = layer.activation == Activation::none;
  const bool library = wanted.library_x || wanted.library_weight;
  const bool need_products = wanted.x || wanted.weight;
  const int64_t width = library ? whole_packs(layer.H) : layer.H;
  const bool reuse = is_linear && (!library || library_reads(grad));
  const bool writes = need_products && !reuse;
  const Tensor dz = writes ? empty(grad, {layer.P, width}, layer.type()) : grad;
  if (!writes && grad_bias == nullptr) return dz;
  const Tensor& kept = is_linear ? grad : layer.keeps_z() ? z : y;
  differentiate({layer.type(), layer.experts(), grad.const_data_ptr(), kept.const_data_ptr(),
                 layer.activation, static_cast<int32_t>(layer.H),
                 writes ? dz.mutable_data_ptr() : nullptr, static_cast<int32_t>(width)},
                grad_bias, layer.x, stream);
  return dz;
}

Tensor gradient_of_x(const Layer& layer, const Tensor& dz, bool library, cudaStream_t stream) {
  const Tensor weight = layer.readable_weight(library, stream);
  if (library) {
    const Tensor product = library_product(dz, torch::stable::transpose(weight, 1, 2), layer);
    const Tensor grad_x = room_for(product, layer.D);
    finish_rows(layer.experts(), product,
                layer.finish(grad_x, nullptr, std::nullopt, Activation::none), stream);
    return grad_x;
  }
  const Tensor grad_x = empty(layer.x, {layer.P, layer.D}, layer.type());
  multiply_rows({layer.type(),
                 layer.experts(),
                 {table(dz), nullptr, static_cast<int32_t>(layer.P)},
                 table(weight),
                 true,
                 static_cast<int32_t>(layer.H),
                 layer.finish(grad_x, nullptr, std::nullopt, Activation::none)},
                stream);
  return grad_x;
}

Tensor gradient_of_weight(const Layer& layer, const Tensor& dz, bool library, cudaStream_t stream) {
  const auto room = [&] {
    return empty(layer.x, {layer.E, layer.D, layer.H}, layer.weight.scalar_type());
  };
  if (library) {
    const Tensor rows = layer.library_x(stream);
    const Tensor product = library_product(torch::stable::transpose(rows, 0, 1), dz, layer);
    const bool in_place = product.stride(1) == layer.H && product.size(1) == layer.D;
    const Tensor grad_weight = in_place ? product : room();
    finish_weights(layer.experts(), product, grad_weight, stream);
    return grad_weight;
  }
  const Tensor grad_weight = room();
  multiply_weights({layer.type(), layer.experts(), layer.pair_rows(), table(dz),
                    static_cast<int32_t>(layer.D), static_cast<int32_t>(layer.H), layer.wide},
                   grad_weight, stream);
  return grad_weight;
}

void check_like(const Layer& layer, const char* name, const Tensor& tensor) {
  check_dim(name, tensor, 2);
  check_type(name, tensor, layer.type());
  check_size(name, tensor, 0, layer.P);
  check_size(name, tensor, 1, layer.H);
  check_device(layer.x, layer.rows ? "x_BD" : "x_PD", {{name, &tensor}});
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_PH, const Tensor& x_ND,
                                            const std::optional<Tensor>& rows_P,
                                            const Tensor& offsets_E1, const Tensor& weight_EDH,
                                            const Tensor& y_PH, const Tensor& z_PH,
                                            const std::string& activation, bool need_x,
                                            bool need_weight, bool need_bias) {
  check(x_ND, rows_P, offsets_E1, weight_EDH, std::nullopt);
  const Launch launch(x_ND);
  const cudaStream_t stream = launch.stream();
  const Layer layer(x_ND, rows_P, offsets_E1, weight_EDH, activation);
  check_like(layer, "grad_PH", grad_PH);
  check_like(layer, "y_PH", y_PH);
  if (layer.keeps_z()) check_like(layer, "z_PH", z_PH);
  const Tensor grad = dense(detach(grad_PH)), y = dense(y_PH), z = dense(z_PH);
  const ScalarType weight_type = layer.weight.scalar_type();
  const Tensor grad_bias = need_bias ? empty(layer.x, {layer.E, layer.H}, weight_type)
                                     : empty(layer.x, {0}, weight_type);
  const Wanted wanted = {need_x, need_weight, need_x && layer.library_of_x(),
                         need_weight && layer.library_of_weight()};
  const Tensor dz =
      differentiate_layer(layer, grad, y, z, need_bias ? &grad_bias : nullptr, wanted, stream);
  const Tensor grad_x = need_x ? gradient_of_x(layer, dz, wanted.library_x, stream)
                               : empty(layer.x, {0}, layer.type());
  const Tensor grad_weight = need_weight
                                 ? gradient_of_weight(layer, dz, wanted.library_weight, stream)
                                 : empty(layer.x, {0}, weight_type);
  return {grad_x, grad_weight, grad_bias};
}

std::tuple<Tensor, Tensor> grouped_mm(const Tensor& x_PD, const Tensor& offsets_E1,
                                      const Tensor& weight_EDH, std::optional<Tensor> bias_EH,
                                      std::string activation) {
  return forward(x_PD, std::nullopt, offsets_E1, weight_EDH, bias_EH, activation);
}

std::tuple<Tensor, Tensor, Tensor> grouped_mm_backward(const Tensor& grad_PH, const Tensor& x_PD,
                                                       const Tensor& offsets_E1,
                                                       const Tensor& weight_EDH, const Tensor& y_PH,
                                                       const Tensor& z_PH, std::string activation,
                                                       bool need_x, bool need_weight,
                                                       bool need_bias) {
  return backward(grad_PH, x_PD, std::nullopt, offsets_E1, weight_EDH, y_PH, z_PH, activation,
                  need_x, need_weight, need_bias);
}

std::tuple<Tensor, Tensor> gathered_mm(const Tensor& x_BD, const Tensor& rows_P,
                                       const Tensor& offsets_E1, const Tensor& slots_BGK,
                                       const Tensor& weight_EDH, std::optional<Tensor> bias_EH,
                                       std::string activation) {
  check_permute("x_BD", x_BD, rows_P, slots_BGK);
  check_size("slots_BGK", slots_BGK, 0, x_BD.size(0));
  check_device(x_BD, "x_BD", {{"slots_BGK", &slots_BGK}});
  return forward(x_BD, rows_P, offsets_E1, weight_EDH, bias_EH, activation);
}

std::tuple<Tensor, Tensor, Tensor> gathered_mm_backward(
    const Tensor& grad_PH, const Tensor& x_BD, const Tensor& rows_P, const Tensor& offsets_E1,
    const Tensor& weight_EDH, const Tensor& y_PH, const Tensor& z_PH, std::string activation,
    bool need_x, bool need_weight, bool need_bias) {
  return backward(grad_PH, x_BD, rows_P, offsets_E1, weight_EDH, y_PH, z_PH, activation, need_x,
                  need_weight, need_bias);
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("grouped_mm", MMOE_BOX(grouped_mm));
  m.impl("grouped_mm_backward", MMOE_BOX(grouped_mm_backward));
  m.impl("gathered_mm", MMOE_BOX(gathered_mm));
  m.impl("gathered_mm_backward", MMOE_BOX(gathered_mm_backward));
}

// grouped_mm: rows in the order of a plan, expert by expert. A row belongs to one expert, so the
// gradients of the rows are written once each.

#include <torch/csrc/stable/library.h>

#include <cstring>

#include "../memory.h"
#include "expert_layer.h"

namespace mmoe {
namespace {

// What both directions share.
struct Grouped {
  Tensor x, weight, bias;
  std::vector<int64_t> offsets;
  ExpertLayer layer;

  Grouped(const Tensor& x_PD, const Tensor& offsets_E1, const Tensor& weight_EDH,
          const std::optional<Tensor>& bias_EH, const std::string& activation)
      : x(dense(x_PD)), weight(dense(weight_EDH)), bias(bias_EH ? dense(*bias_EH) : weight) {
    check_grouped_mm(x_PD, offsets_E1, weight_EDH, bias_EH, "x_PD");
    const Tensor flat = dense(offsets_E1);
    const auto* bounds = static_cast<const int32_t*>(flat.const_data_ptr());
    offsets.assign(bounds, bounds + weight.size(0) + 1);
    check_offsets(offsets, x.size(0));
    layer = {kernels_for(x.scalar_type()),
             activation_from(activation),
             weight.size(0),
             weight.size(1),
             weight.size(2),
             static_cast<const char*>(weight.const_data_ptr()),
             bias_EH ? static_cast<const char*>(bias.const_data_ptr()) : nullptr,
             weight.scalar_type() != x.scalar_type(),
             {}};
    for (int64_t e = 0; e < layer.experts; ++e) layer.rows.push_back(offsets[e + 1] - offsets[e]);
  }

  bool keeps_z() const { return mmoe::keeps_z(layer.activation); }

  ExpertRows rows_of_x() const { return rows_of(x, layer.inputs); }

  ExpertRows rows_of(const Tensor& tensor, int64_t width) const {
    ExpertRows rows;
    rows.step = width;
    char* data = static_cast<char*>(tensor.mutable_data_ptr());
    for (int64_t e = 0; e < layer.experts; ++e) {
      rows.data.push_back(data + offsets[e] * width * layer.kernels->size);
    }
    return rows;
  }

  void clear_tail(const Tensor& tensor, int64_t width) const {
    const int64_t from = offsets.back() * width * layer.kernels->size;
    const int64_t bytes = tensor.numel() * layer.kernels->size - from;
    if (bytes > 0) {
      std::memset(static_cast<char*>(tensor.mutable_data_ptr()) + from, 0,
                  static_cast<size_t>(bytes));
    }
  }
};

std::tuple<Tensor, Tensor> forward(const Grouped& g) {
  const int64_t P = g.x.size(0), H = g.layer.outputs;
  const Tensor y = fresh(g.x, {P, H}, g.x.scalar_type());
  const Tensor z =
      g.keeps_z() ? fresh(g.x, {P, H}, g.x.scalar_type()) : fresh(g.x, {0}, g.x.scalar_type());
  const ExpertRows kept = g.keeps_z() ? g.rows_of(z, H) : ExpertRows{};
  layer_forward(g.layer, g.rows_of_x(), g.rows_of(y, H), kept);
  g.clear_tail(y, H);
  if (g.keeps_z()) g.clear_tail(z, H);
  return {y, z};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Grouped& g, const Tensor& grad_PH,
                                            const Tensor& y_PH, const Tensor& z_PH, bool need_x,
                                            bool need_weight, bool need_bias) {
  const int64_t P = g.x.size(0), D = g.layer.inputs, H = g.layer.outputs;
  const auto check = [&](const char* name, const Tensor& tensor) {
    check_dim(name, tensor, 2);
    check_type(name, tensor, g.x.scalar_type());
    check_size(name, tensor, 0, P);
    check_size(name, tensor, 1, H);
  };
  check("grad_PH", grad_PH);
  check("y_PH", y_PH);
  if (g.keeps_z()) check("z_PH", z_PH);
  const Tensor grad = dense(grad_PH), y = dense(y_PH), z = dense(z_PH);
  const ScalarType type = g.x.scalar_type(), weight_type = g.weight.scalar_type();
  const Tensor grad_x = need_x ? fresh(g.x, {P, D}, type) : fresh(g.x, {0}, type);
  const Tensor grad_weight =
      need_weight ? fresh(g.x, {g.layer.experts, D, H}, weight_type) : fresh(g.x, {0}, weight_type);
  const Tensor grad_bias =
      need_bias ? fresh(g.x, {g.layer.experts, H}, weight_type) : fresh(g.x, {0}, weight_type);

  LayerGradients gradients;
  if (need_x) gradients.x = g.rows_of(grad_x, D);
  if (need_weight) gradients.weight = static_cast<char*>(grad_weight.mutable_data_ptr());
  if (need_bias) gradients.bias = static_cast<char*>(grad_bias.mutable_data_ptr());
  layer_backward(g.layer, g.rows_of(grad, H), g.rows_of_x(), g.rows_of(y, H),
                 g.keeps_z() ? g.rows_of(z, H) : ExpertRows{}, gradients);
  if (need_x) g.clear_tail(grad_x, D);
  return {grad_x, grad_weight, grad_bias};
}

std::tuple<Tensor, Tensor> grouped_mm(const Tensor& x_PD, const Tensor& offsets_E1,
                                      const Tensor& weight_EDH, std::optional<Tensor> bias_EH,
                                      std::string activation) {
  return forward(Grouped(x_PD, offsets_E1, weight_EDH, bias_EH, activation));
}

std::tuple<Tensor, Tensor, Tensor> grouped_mm_backward(const Tensor& grad_PH, const Tensor& x_PD,
                                                       const Tensor& offsets_E1,
                                                       const Tensor& weight_EDH, const Tensor& y_PH,
                                                       const Tensor& z_PH, std::string activation,
                                                       bool need_x, bool need_weight,
                                                       bool need_bias) {
  return backward(Grouped(x_PD, offsets_E1, weight_EDH, std::nullopt, activation), grad_PH, y_PH,
                  z_PH, need_x, need_weight, need_bias);
}

// The CPU has one product, whatever is asked for.
int64_t grouped_product(const Tensor& like, int64_t choice) { return 0; }

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("grouped_mm", MMOE_BOX(grouped_mm));
  m.impl("grouped_mm_backward", MMOE_BOX(grouped_mm_backward));
  m.impl("grouped_product", MMOE_BOX(grouped_product));
}

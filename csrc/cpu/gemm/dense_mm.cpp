// dense_mm: every expert on all rows. Experts may read one tensor, whose gradient is then a sum.

#include <torch/csrc/stable/library.h>

#include "dense_layer.h"

namespace mmoe {
namespace {

std::tuple<std::vector<Tensor>, std::vector<Tensor>> dense_mm(std::vector<Tensor> x,
                                                              const Tensor& weight_EDH,
                                                              std::optional<Tensor> bias_EH,
                                                              std::string activation) {
  const Dense d(x, weight_EDH, bias_EH, activation);
  const std::vector<Tensor> y = d.outputs();
  const std::vector<Tensor> z = d.keeps_z() ? d.outputs() : std::vector<Tensor>{};
  layer_forward(d.layer, d.rows_of(d.x, d.layer.inputs), d.rows_of(y, d.layer.outputs),
                z.empty() ? ExpertRows{} : d.rows_of(z, d.layer.outputs));
  return {y, z};
}

std::vector<Tensor> checked(const char* name, const Dense& d, const std::vector<Tensor>& tensors) {
  if (static_cast<int64_t>(tensors.size()) != d.layer.experts) {
    fail(name, ": expected ", d.layer.experts, " tensors, one per expert, got ", tensors.size());
  }
  std::vector<Tensor> packed;
  for (size_t e = 0; e < tensors.size(); ++e) {
    const Name part(name, e);
    check_dim(part, tensors[e], 2);
    check_type(part, tensors[e], d.x[0].scalar_type());
    check_size(part, tensors[e], 0, d.x[0].size(0));
    check_size(part, tensors[e], 1, d.layer.outputs);
    packed.push_back(dense(tensors[e]));
  }
  return packed;
}

std::tuple<std::vector<Tensor>, Tensor, Tensor> dense_mm_backward(
    std::vector<Tensor> grad, std::vector<Tensor> x, const Tensor& weight_EDH,
    std::vector<Tensor> y, std::vector<Tensor> z, std::string activation, bool need_x,
    bool need_weight, bool need_bias) {
  const Dense d(x, weight_EDH, std::nullopt, activation);
  const int64_t D = d.layer.inputs, H = d.layer.outputs;
  grad = checked("grad", d, grad);
  y = checked("y", d, y);
  if (d.keeps_z()) z = checked("z", d, z);
  const ScalarType weight_type = d.weight.scalar_type();
  std::vector<Tensor> grad_x;
  const int64_t B = d.x[0].size(0);
  if (need_x && d.stacked) {
    grad_x.push_back(fresh(d.x[0], {d.layer.experts, B, D}, d.x[0].scalar_type()));
  } else if (need_x) {
    for (const Tensor& x_BD : d.x) grad_x.push_back(fresh(x_BD, {B, D}, x_BD.scalar_type()));
  }
  const Tensor grad_weight = need_weight ? fresh(d.weight, {d.layer.experts, D, H}, weight_type)
                                         : fresh(d.weight, {0}, weight_type);
  const Tensor grad_bias = need_bias ? fresh(d.weight, {d.layer.experts, H}, weight_type)
                                     : fresh(d.weight, {0}, weight_type);

  LayerGradients gradients;
  gradients.shared = d.x.size() == 1;
  if (need_x) gradients.x = d.rows_of(d.stacked ? apart(grad_x[0]) : grad_x, D);
  if (need_weight) gradients.weight = static_cast<char*>(grad_weight.mutable_data_ptr());
  if (need_bias) gradients.bias = static_cast<char*>(grad_bias.mutable_data_ptr());
  layer_backward(d.layer, d.rows_of(grad, H), d.rows_of(d.x, D), d.rows_of(y, H),
                 d.keeps_z() ? d.rows_of(z, H) : ExpertRows{}, gradients);
  return {grad_x, grad_weight, grad_bias};
}

// The CPU has one way, whatever is asked for.
int64_t dense_product(const Tensor& like, int64_t choice) { return 0; }

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("dense_mm", MMOE_BOX(dense_mm));
  m.impl("dense_mm_backward", MMOE_BOX(dense_mm_backward));
  m.impl("dense_product", MMOE_BOX(dense_product));
}

// gate_mm: the product that gates decide by, in the type of the sums whatever the rows are in. They
// are widened while they are read: with 330 columns and 16 outputs, a float32 copy of bfloat16 rows
// took a third of the time of product and gradients.

#include <torch/csrc/stable/library.h>

#include "../memory.h"
#include "expert_layer.h"

namespace mmoe {
namespace {

struct Gate {
  Tensor x, weight, bias;
  ExpertLayer layer;

  Gate(const Tensor& x_BD, const Tensor& weight_DN, const std::optional<Tensor>& bias_N)
      : x(dense(x_BD)), weight(dense(weight_DN)), bias(bias_N ? dense(*bias_N) : weight) {
    check_gate_mm(x_BD, weight_DN, bias_N);
    layer = {kernels_for(x.scalar_type(), true),
             gemm::Activation::none,
             1,
             weight.size(0),
             weight.size(1),
             static_cast<const char*>(weight.const_data_ptr()),
             bias_N ? static_cast<const char*>(bias.const_data_ptr()) : nullptr,
             weight.scalar_type() != x.scalar_type(),
             {x.size(0)},
             true};
  }
};

ExpertRows rows_of(const Tensor& tensor) {
  return {{static_cast<char*>(tensor.mutable_data_ptr())}, tensor.size(1)};
}

Tensor gate_mm(const Tensor& x_BD, const Tensor& weight_DN, std::optional<Tensor> bias_N) {
  const Gate gate(x_BD, weight_DN, bias_N);
  const Tensor y = fresh(gate.x, {gate.x.size(0), gate.layer.outputs}, gate.weight.scalar_type());
  layer_forward(gate.layer, rows_of(gate.x), rows_of(y), {});
  return y;
}

std::tuple<Tensor, Tensor, Tensor> gate_mm_backward(const Tensor& grad_BN, const Tensor& x_BD,
                                                    const Tensor& weight_DN, bool need_x,
                                                    bool need_weight, bool need_bias) {
  const Gate gate(x_BD, weight_DN, std::nullopt);
  const ScalarType type = gate.weight.scalar_type();
  const int64_t D = gate.layer.inputs, N = gate.layer.outputs;
  check_dim("grad_BN", grad_BN, 2);
  check_type("grad_BN", grad_BN, type);
  check_size("grad_BN", grad_BN, 0, gate.x.size(0));
  check_size("grad_BN", grad_BN, 1, N);
  const Tensor grad = dense(grad_BN);
  const auto wanted = [&](bool need, std::initializer_list<int64_t> sizes, ScalarType of) {
    return need ? fresh(gate.x, sizes, of) : fresh(gate.x, {0}, of);
  };
  const Tensor grad_x = wanted(need_x, {gate.x.size(0), D}, gate.x.scalar_type());
  const Tensor grad_weight = wanted(need_weight, {D, N}, type);
  const Tensor grad_bias = wanted(need_bias, {N}, type);

  LayerGradients gradients;
  if (need_x) gradients.x = rows_of(grad_x);
  if (need_weight) gradients.weight = static_cast<char*>(grad_weight.mutable_data_ptr());
  if (need_bias) gradients.bias = static_cast<char*>(grad_bias.mutable_data_ptr());
  layer_backward(gate.layer, rows_of(grad), rows_of(gate.x), {}, {}, gradients);
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("gate_mm", MMOE_BOX(gate_mm));
  m.impl("gate_mm_backward", MMOE_BOX(gate_mm_backward));
}

// A layer of every expert on all rows: what dense_mm and shared_mm are called with.

#pragma once

#include "../memory.h"
#include "expert_layer.h"

namespace mmoe {

struct Dense {
  std::vector<Tensor> x;  // x_BD: one for all experts, or one for each
  bool stacked;           // they came as one tensor
  Tensor weight, bias;
  ExpertLayer layer;

  Dense(const std::vector<Tensor>& from, const Tensor& weight_EDH,
        const std::optional<Tensor>& bias_EH, const std::string& activation)
      : stacked(is_stacked(from)),
        weight(dense(weight_EDH)),
        bias(bias_EH ? dense(*bias_EH) : weight) {
    check_dense_mm(from, weight_EDH, bias_EH);
    for (const Tensor& tensor : stacked ? apart(from[0]) : from) x.push_back(dense(tensor));
    const int64_t experts = weight.size(0);
    layer = {kernels_for(x[0].scalar_type()),
             activation_from(activation),
             experts,
             weight.size(1),
             weight.size(2),
             static_cast<const char*>(weight.const_data_ptr()),
             bias_EH ? static_cast<const char*>(bias.const_data_ptr()) : nullptr,
             weight.scalar_type() != x[0].scalar_type(),
             std::vector<int64_t>(experts, x[0].size(0))};
  }

  bool keeps_z() const { return mmoe::keeps_z(layer.activation); }

  // One table an expert, or the same for all.
  ExpertRows rows_of(const std::vector<Tensor>& tensors, int64_t width) const {
    ExpertRows rows;
    rows.step = width;
    for (int64_t e = 0; e < layer.experts; ++e) {
      const Tensor& tensor = tensors[tensors.size() == 1 ? 0 : e];
      rows.data.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
    }
    return rows;
  }

  std::vector<Tensor> outputs() const {
    std::vector<Tensor> y;
    for (int64_t e = 0; e < layer.experts; ++e) {
      y.push_back(fresh(x[0], {x[0].size(0), layer.outputs}, x[0].scalar_type()));
    }
    return y;
  }
};

}  // namespace mmoe

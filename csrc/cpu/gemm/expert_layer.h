// One layer of every expert of a pool, forward and backward: what grouped_mm and dense_mm share.
// They differ in where an expert's rows lie, and in whether the experts read the same ones.

#pragma once

#include <string>
#include <vector>

#include "../../checks.h"
#include "gemm.h"

namespace mmoe {

// A table of rows for each expert; rows lie `step` numbers apart.
struct ExpertRows {
  std::vector<char*> data;
  int64_t step = 0;
  // Where not empty, row numbers[e][i] of its table is an expert's row i. For what is added alone.
  std::vector<const int32_t*> numbers = {};

  bool empty() const { return data.empty(); }
};

struct ExpertLayer {
  const gemm::Kernels* kernels;
  gemm::Activation activation;
  int64_t experts, inputs, outputs;  // E, D, H
  const char* weight;                // [E, D, H]
  const char* bias;                  // [E, H] or null
  bool wide;                         // weights are float32 although rows are bfloat16
  std::vector<int64_t> rows;         // how many each expert has
  bool exact = false;  // nothing is rounded: y and its gradient are sums; kernels that
                       // are exact too, and no activation
};

// y = activation(x W + b + added); z too unless it is empty. `added`, where not empty, has a row
// for each of an expert's rows, by its number.
void layer_forward(const ExpertLayer& layer, const ExpertRows& x, const ExpertRows& y,
                   const ExpertRows& z, const ExpertRows& added = {});

// Gradients; what is null or empty is not wanted. `shared`: all experts read the same rows, and
// grad_x is one table, the sum over the experts.
struct LayerGradients {
  ExpertRows x;
  bool shared = false;
  char* weight = nullptr;
  char* bias = nullptr;
};
void layer_backward(const ExpertLayer& layer, const ExpertRows& grad, const ExpertRows& x,
                    const ExpertRows& y, const ExpertRows& z, const LayerGradients& gradients);

// `exact`: those that widen bfloat16 before they multiply.
const gemm::Kernels* kernels_for(ScalarType type, bool exact = false);

}  // namespace mmoe

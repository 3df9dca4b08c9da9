// What target_attention takes and gives, for the CPU and for CUDA: checks, and its tensors.

#pragma once

#include <tuple>

#include "checks.h"

namespace mmoe {

constexpr size_t kMostDeeper = 7;  // layers of target_attention after the first one

inline void check_target_attention(const Tensor& e, const Tensor& offsets, const Tensor& q,
                                   const Tensor& weight, const Tensor& bias,
                                   const std::vector<Tensor>& deep_weights,
                                   const std::vector<Tensor>& deep_biases, const Tensor& score) {
  check_dim("e_VD", e, 2);
  check_float("e_VD", e);
  check_dim("q_BD", q, 2);
  check_type("q_BD", q, e.scalar_type());
  check_size("q_BD", q, 1, e.size(1));
  check_dim("offsets_B1", offsets, 1);
  check_type("offsets_B1", offsets, ScalarType::Int);
  check_size("offsets_B1", offsets, 0, q.size(0) + 1);
  const ScalarType type = accumulate_type(e.scalar_type());
  check_dim("weight_2DH", weight, 2);
  check_type("weight_2DH", weight, type);
  check_size("weight_2DH", weight, 0, 2 * e.size(1));
  check_dim("bias_BH", bias, 2);
  check_type("bias_BH", bias, type);
  check_size("bias_BH", bias, 0, q.size(0));
  check_size("bias_BH", bias, 1, weight.size(1));
  if (deep_weights.size() > kMostDeeper) {
    fail("deep_weights: expected at most ", kMostDeeper, " layers, got ", deep_weights.size());
  }
  if (deep_biases.size() != deep_weights.size()) {
    fail("deep_biases: expected ", deep_weights.size(), ", one for each weight, got ",
         deep_biases.size());
  }
  int64_t width = weight.size(1);
  for (size_t i = 0; i < deep_weights.size(); ++i) {
    const Name weights("deep_weights", i), biases("deep_biases", i);
    check_dim(weights, deep_weights[i], 2);
    check_type(weights, deep_weights[i], type);
    check_size(weights, deep_weights[i], 0, width);
    width = deep_weights[i].size(1);
    check_dim(biases, deep_biases[i], 1);
    check_type(biases, deep_biases[i], type);
    check_size(biases, deep_biases[i], 0, width);
  }
  check_dim("score_N", score, 1);
  check_type("score_N", score, type);
  check_size("score_N", score, 0, width);
}

inline void check_score_bias(const Tensor& score_bias, const Tensor& score) {
  check_dim("score_bias_1", score_bias, 1);
  check_type("score_bias_1", score_bias, score.scalar_type());
  check_size("score_bias_1", score_bias, 0, 1);
}

inline void check_target_attention_grad(const Tensor& grad, const Tensor& grad_weights,
                                        const Tensor& e, const Tensor& q, const Tensor& weights) {
  check_dim("grad_BD", grad, 2);
  check_type("grad_BD", grad, q.scalar_type());
  for (int64_t dim = 0; dim < 2; ++dim) check_size("grad_BD", grad, dim, q.size(dim));
  for (const auto& [name, tensor] :
       {std::pair<const char*, const Tensor&>("grad_weights_V", grad_weights),
        std::pair<const char*, const Tensor&>("weights_V", weights)}) {
    check_dim(name, tensor, 1);
    check_type(name, tensor, accumulate_type(e.scalar_type()));
    check_size(name, tensor, 0, e.size(0));
  }
}

// What forward and backward pass read, checked and dense.
struct AttentionTensors {
  Tensor e, offsets, q, weight, bias;
  std::vector<Tensor> deep_weights, deep_biases;
  Tensor score;
  bool softmax;

  AttentionTensors(const Tensor& e_VD, const Tensor& offsets_B1, const Tensor& q_BD,
                   const Tensor& weight_2DH, const Tensor& bias_BH,
                   const std::vector<Tensor>& weights, const std::vector<Tensor>& biases,
                   const Tensor& score_N, bool softmax)
      : softmax(softmax) {
    check_target_attention(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, weights, biases, score_N);
    e = dense(e_VD);
    offsets = dense(offsets_B1);
    q = dense(q_BD);
    weight = dense(weight_2DH);
    bias = dense(bias_BH);
    score = dense(score_N);
    for (const Tensor& one : weights) deep_weights.push_back(dense(one));
    for (const Tensor& one : biases) deep_biases.push_back(dense(one));
  }
};

// Of e, q, weight, bias, the deeper layers' weights and biases, score, and the score's bias.
using AttentionGradient = std::tuple<Tensor, Tensor, Tensor, Tensor, std::vector<Tensor>,
                                     std::vector<Tensor>, Tensor, Tensor>;

}  // namespace mmoe

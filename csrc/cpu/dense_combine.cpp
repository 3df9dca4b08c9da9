// dense_combine on the CPU. Memory-bound: what counts is that each expert output is read once, in
// long runs. Rows go in blocks, and inside a block a few experts at a time are summed in registers.
// A gate's rows lie side by side (the result is [G, B, O] in memory, seen as [B, G, O]), so that
// what reads one gate, a tower or an expert of the next level, needs no copy.

#include "dense_combine.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "memory.h"

#define MMOE_KERNELS "dense_combine_kernels.h"
#include "each_isa.h"

namespace mmoe {
namespace {

using combination::Dense;
using combination::kBlockRows;
using combination::Room;

template <typename T>
Dense<T> describe(const ExpertOutputs& y, const Tensor& weights, const Tensor& mixes_BGO) {
  using sum_t = typename Row<T>::sum_t;
  const int64_t G = weights.size(1), E = y.experts();
  return {y.data.data(),
          y.row_stride.data(),
          static_cast<const sum_t*>(weights.const_data_ptr()),
          y.rows,
          G,
          E,
          y.width,
          G * E,
          mixes_BGO.stride(0),
          mixes_BGO.stride(1)};
}

template <typename T>
void forward(const ExpertOutputs& y, const Tensor& weights, const Tensor& out) {
  const Dense<T> d = describe<T>(y, weights, out);
  T* to = static_cast<T*>(out.mutable_data_ptr());
  const int64_t blocks = (d.B + kBlockRows - 1) / kBlockRows;
  const int64_t held_numbers =
      d.E > combination::kBlockExperts ? kBlockRows * d.G * whole_vectors<T>(d.O) : 0;
  const auto run = MMOE_BEST(forward_block<T>);
  const int64_t numbers = kBlockRows * d.O * (d.E + d.G);
  torch::stable::parallel_for(0, blocks, grain(numbers), [&](int64_t first, int64_t last) {
    std::vector<typename Row<T>::sum_t> held(held_numbers);
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockRows;
      run(d, begin, std::min(d.B, begin + kBlockRows), held.data(), to);
    }
  });
}

template <typename T>
void backward(const ExpertOutputs& y, const Tensor& weights, const Tensor& grad,
              const ExpertGradients& grad_y, const Tensor& grad_weights) {
  using sum_t = typename Row<T>::sum_t;
  const Dense<T> d = describe<T>(y, weights, grad);
  const T* from = static_cast<const T*>(grad.const_data_ptr());
  auto* to = static_cast<sum_t*>(grad_weights.mutable_data_ptr());
  const int64_t blocks = (d.B + kBlockRows - 1) / kBlockRows;
  const int64_t numbers = kBlockRows * d.O * (2 * d.E + d.G);
  const auto run = MMOE_BEST(backward_block<T>);
  torch::stable::parallel_for(0, blocks, grain(numbers), [&](int64_t first, int64_t last) {
    Room<T> room(d.G, d.O);
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockRows;
      run(d, begin, std::min(d.B, begin + kBlockRows), from, grad_y.data.data(), to, room);
    }
  });
}

Tensor dense_combine(const std::vector<Tensor>& y, const Tensor& weights_BGE) {
  const ExpertOutputs outputs(y);
  check_dense_combine(outputs, weights_BGE);
  const Tensor weights = dense(weights_BGE);
  const Tensor out_GBO = fresh(y[0], {weights.size(1), outputs.rows, outputs.width}, outputs.type);
  const Tensor out = torch::stable::transpose(out_GBO, 0, 1);
  switch (outputs.type) {
    case ScalarType::Double:
      forward<double>(outputs, weights, out);
      break;
    case ScalarType::BFloat16:
      forward<bf16>(outputs, weights, out);
      break;
    default:
      forward<float>(outputs, weights, out);
  }
  return out;
}

std::tuple<std::vector<Tensor>, Tensor> dense_combine_backward(const Tensor& grad_BGO,
                                                               const std::vector<Tensor>& y,
                                                               const Tensor& weights_BGE) {
  const ExpertOutputs outputs(y);
  check_dense_combine(outputs, weights_BGE);
  check_grad(grad_BGO, outputs.rows, weights_BGE.size(1), outputs.width, outputs.type);
  const Tensor weights = dense(weights_BGE), grad = with_whole_rows(grad_BGO);
  const ExpertGradients grad_y(y);
  const Tensor grad_weights = empty_as(weights);
  switch (outputs.type) {
    case ScalarType::Double:
      backward<double>(outputs, weights, grad, grad_y, grad_weights);
      break;
    case ScalarType::BFloat16:
      backward<bf16>(outputs, weights, grad, grad_y, grad_weights);
      break;
    default:
      backward<float>(outputs, weights, grad, grad_y, grad_weights);
  }
  return {grad_y.tensors, grad_weights};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("dense_combine", MMOE_BOX(dense_combine));
  m.impl("dense_combine_backward", MMOE_BOX(dense_combine_backward));
}

// gated_combine on the CPU. Sample by sample: the few pairs a sample owns are read for all its
// gates while they are in the cache. The backward pass writes a pair's gradient in the same visit.

#include <torch/csrc/stable/library.h>

#include <atomic>
#include <tuple>
#include <vector>

#include "indices.h"
#include "rows.h"

namespace mmoe::combination {

constexpr int32_t kNobody = -1;

template <typename T>
struct Gated {
  const T* y;
  const int32_t* slots;
  const typename Row<T>::sum_t* weights;
  int64_t P, B, G, K, O;
};

// Room for the picks of one sample that share a pair.
template <typename T>
struct Shared {
  std::vector<const T*> grads;
  std::vector<typename Row<T>::sum_t> weights, dots, scratch;
  std::vector<int64_t> picks;
  explicit Shared(int64_t n)
      : grads(n), weights(n), dots(n), scratch(n * whole_vectors<T>(1)), picks(n) {}
};

}  // namespace mmoe::combination

#define MMOE_KERNELS "gated_combine_kernels.h"
#include "each_isa.h"

namespace mmoe {
namespace {

using combination::Gated;
using combination::kNobody;
using combination::Shared;

template <typename T>
Gated<T> describe(const Tensor& y, const Tensor& slots, const Tensor& weights) {
  check_indices("slots_BGK", "slots", slots, y.size(0));
  return {static_cast<const T*>(y.const_data_ptr()),
          static_cast<const int32_t*>(slots.const_data_ptr()),
          static_cast<const typename Row<T>::sum_t*>(weights.const_data_ptr()),
          y.size(0),
          slots.size(0),
          slots.size(1),
          slots.size(2),
          y.size(1)};
}

template <typename T>
void forward(const Tensor& y, const Tensor& slots, const Tensor& weights, const Tensor& out) {
  const Gated<T> d = describe<T>(y, slots, weights);
  T* to = static_cast<T*>(out.mutable_data_ptr());
  const auto run = MMOE_BEST(forward_rows<T>);
  torch::stable::parallel_for(0, d.B, grain(d.G * (d.K + 1) * d.O),
                              [&](int64_t begin, int64_t end) { run(d, begin, end, to); });
}

template <typename T>
void backward(const Tensor& y, const Tensor& slots, const Tensor& weights, const Tensor& grad,
              const Tensor& grad_y, const Tensor& grad_weights) {
  using sum_t = typename Row<T>::sum_t;
  const Gated<T> d = describe<T>(y, slots, weights);
  const T* from = static_cast<const T*>(grad.const_data_ptr());
  T* to = static_cast<T*>(grad_y.mutable_data_ptr());
  auto* to_weights = static_cast<sum_t*>(grad_weights.mutable_data_ptr());
  std::vector<std::atomic<int32_t>> owner(d.P);
  for (auto& entry : owner) entry.store(kNobody, std::memory_order_relaxed);
  std::atomic<int32_t> claimed_twice{kNobody};

  const int64_t numbers = d.G * (2 * d.K + 1) * d.O;
  const auto run = MMOE_BEST(backward_rows<T>);
  torch::stable::parallel_for(0, d.B, grain(numbers), [&](int64_t begin, int64_t end) {
    Shared<T> shared(d.G * d.K);
    const int32_t slot = run(d, begin, end, from, to, to_weights, owner.data(), shared);
    if (slot != kNobody) claimed_twice.store(slot);
  });
  if (claimed_twice.load() != kNobody) {
    fail("slots_BGK: expected every pair to belong to one sample, got pair ", claimed_twice.load(),
         " in two");
  }
  // A pair that no pick names has gradient 0, and nobody has written it yet.
  torch::stable::parallel_for(0, d.P, grain(d.O), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      if (owner[p].load(std::memory_order_relaxed) == kNobody) fill_zero(to + p * d.O, d.O);
    }
  });
}

Tensor gated_combine(const Tensor& y_PO, const Tensor& slots_BGK, const Tensor& weights_BGK) {
  check_gated_combine(y_PO, slots_BGK, weights_BGK);
  const Tensor y = dense(y_PO), slots = dense(slots_BGK), weights = dense(weights_BGK);
  const Tensor out = empty(y, {slots.size(0), slots.size(1), y.size(1)}, y.scalar_type());
  switch (y.scalar_type()) {
    case ScalarType::Double:
      forward<double>(y, slots, weights, out);
      break;
    case ScalarType::BFloat16:
      forward<bf16>(y, slots, weights, out);
      break;
    default:
      forward<float>(y, slots, weights, out);
  }
  return out;
}

std::tuple<Tensor, Tensor> gated_combine_backward(const Tensor& grad_BGO, const Tensor& y_PO,
                                                  const Tensor& slots_BGK,
                                                  const Tensor& weights_BGK) {
  check_gated_combine(y_PO, slots_BGK, weights_BGK);
  check_grad(grad_BGO, slots_BGK.size(0), slots_BGK.size(1), y_PO.size(1), y_PO.scalar_type());
  const Tensor y = dense(y_PO), slots = dense(slots_BGK), weights = dense(weights_BGK);
  const Tensor grad = dense(grad_BGO);
  const Tensor grad_y = empty_as(y);
  const Tensor grad_weights = empty_as(weights);
  switch (y.scalar_type()) {
    case ScalarType::Double:
      backward<double>(y, slots, weights, grad, grad_y, grad_weights);
      break;
    case ScalarType::BFloat16:
      backward<bf16>(y, slots, weights, grad, grad_y, grad_weights);
      break;
    default:
      backward<float>(y, slots, weights, grad, grad_y, grad_weights);
  }
  return {grad_y, grad_weights};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("gated_combine", MMOE_BOX(gated_combine));
  m.impl("gated_combine_backward", MMOE_BOX(gated_combine_backward));
}

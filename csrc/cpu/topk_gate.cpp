// topk_gate on the CPU: checks, and the choice of kernels for this processor.

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <atomic>
#include <tuple>

#include "expert_lanes.h"
#include "indices.h"
#include "rows.h"

namespace mmoe::topk {

constexpr int64_t kGroupRows = 8;   // rows picked for side by side; their logits fit in L1
constexpr int64_t kBlockRows = 64;  // rows whose weights are computed together

template <typename T>
using sum_of = typename Row<T>::sum_t;

template <typename T>
struct Gate {
  const T* logits;
  const T* end;               // of all logits
  const mask_of<T>* visible;  // [G, padded]: all bits set, or none; none past the last expert
  int64_t rows, G, E, K, padded;
  bool after;
};

// What the backward pass reads beside the logits, and where it writes.
template <typename T>
struct Backward {
  Gate<T> gate;
  const int32_t* experts;
  const sum_of<T>* grad;
  T* out;
};

}  // namespace mmoe::topk

#define MMOE_KERNELS "topk_gate_kernels.h"
#include "each_isa.h"

namespace mmoe {
namespace {

using topk::Backward;
using topk::Gate;
using topk::sum_of;

// A call's arguments, and the memory its masks live in.
template <typename T>
struct Call {
  std::vector<mask_of<T>> masks;
  Gate<T> gate;

  Call(const Tensor& logits, const Tensor& visibility, int64_t K, bool after) {
    const int64_t lanes = MMOE_BEST(vector_bytes)() / static_cast<int64_t>(sizeof(sum_of<T>));
    const int64_t B = logits.size(0), G = logits.size(1), E = logits.size(2);
    const int64_t padded = (E + lanes - 1) / lanes * lanes;
    const T* data = static_cast<const T*>(logits.const_data_ptr());
    masks = visible_masks<T>(visibility, padded);
    gate = {data, data + logits.numel(), masks.data(), B * G, G, E, K, padded, after};
  }
};

template <typename T>
[[noreturn]] void fail_nan(const Gate<T>& d) {
  std::vector<int64_t> bad_rows(d.G, 0);
  for (int64_t row = 0; row < d.rows; ++row) {
    const auto* visible = d.visible + row % d.G * d.padded;
    bool bad = false;
    for (int64_t e = 0; e < d.E; ++e) {
      const auto x = Row<T>::to_sum(d.logits[row * d.E + e]);
      bad |= visible[e] && x != x;
    }
    bad_rows[row % d.G] += bad;
  }
  const auto worst =
      std::find_if(bad_rows.begin(), bad_rows.end(), [](int64_t n) { return n > 0; });
  fail("logits_BGE: expected numbers, got gate ", worst - bad_rows.begin(), ": ", *worst,
       " rows have NaN logits; look for NaN in the gate's input and parameters");
}

template <typename T>
void forward(const Tensor& logits, const Tensor& visibility, bool after, const Tensor& weights,
             const Tensor& experts) {
  using S = sum_of<T>;
  const Call<T> call(logits, visibility, weights.size(2), after);
  const Gate<T>& d = call.gate;
  auto* to_weights = static_cast<S*>(weights.mutable_data_ptr());
  auto* to_experts = static_cast<int32_t*>(experts.mutable_data_ptr());
  std::atomic<bool> has_nan{false};
  const auto run = MMOE_BEST(forward_rows<T>);
  torch::stable::parallel_for(0, d.rows, grain(d.padded * (d.K + 1)),
                              [&](int64_t begin, int64_t end) {
                                std::vector<S> buffer(topk::kGroupRows * d.padded);
                                if (run(d, begin, end, buffer.data(), to_weights, to_experts))
                                  has_nan.store(true);
                              });
  if (has_nan.load()) fail_nan(d);
}

template <typename T>
void backward(const Tensor& grad, const Tensor& logits, const Tensor& visibility,
              const Tensor& experts, bool after, const Tensor& out) {
  using S = sum_of<T>;
  const Call<T> call(logits, visibility, experts.size(2), after);
  const Gate<T>& gate = call.gate;
  const Backward<T> d = {gate, static_cast<const int32_t*>(experts.const_data_ptr()),
                         static_cast<const S*>(grad.const_data_ptr()),
                         static_cast<T*>(out.mutable_data_ptr())};
  const int64_t room = after ? 2 * topk::kBlockRows * gate.K : topk::kGroupRows * gate.padded;
  const auto run = MMOE_BEST(backward_rows<T>);
  torch::stable::parallel_for(0, gate.rows, grain(2 * gate.padded),
                              [&](int64_t begin, int64_t end) {
                                std::vector<S> scratch(room);
                                run(d, begin, end, scratch.data());
                              });
}

// A gate that sees fewer experts than it picks would leave picks unused without a word.
void check_visible(const Tensor& visibility, int64_t k) {
  const auto* visible = static_cast<const bool*>(visibility.const_data_ptr());
  const int64_t G = visibility.size(0), E = visibility.size(1);
  for (int64_t g = 0; g < G; ++g) {
    const int64_t seen = std::count(visible + g * E, visible + (g + 1) * E, true);
    if (seen < k) fail("k: expected at most ", seen, ", what gate ", g, " sees, got ", k);
  }
}

std::tuple<Tensor, Tensor> topk_gate(const Tensor& logits_BGE, const Tensor& visibility_GE,
                                     int64_t k, bool softmax_after) {
  check_topk_gate(logits_BGE, visibility_GE);
  if (k < 1) fail("k: expected at least 1 pick per gate, got ", k);
  const Tensor logits = dense(logits_BGE), visibility = dense(visibility_GE);
  check_visible(visibility, k);
  const int64_t B = logits.size(0), G = logits.size(1), K = std::min(k, logits.size(2));
  const Tensor weights = empty(logits, {B, G, K}, accumulate_type(logits.scalar_type()));
  const Tensor experts = empty(logits, {B, G, K}, ScalarType::Int);
  switch (logits.scalar_type()) {
    case ScalarType::Double:
      forward<double>(logits, visibility, softmax_after, weights, experts);
      break;
    case ScalarType::BFloat16:
      forward<bf16>(logits, visibility, softmax_after, weights, experts);
      break;
    default:
      forward<float>(logits, visibility, softmax_after, weights, experts);
  }
  return {weights, experts};
}

Tensor topk_gate_backward(const Tensor& grad_BGK, const Tensor& logits_BGE,
                          const Tensor& visibility_GE, const Tensor& experts_BGK,
                          bool softmax_after) {
  check_topk_gate(logits_BGE, visibility_GE);
  check_topk_gate_grad(grad_BGK, logits_BGE, experts_BGK);
  const Tensor logits = dense(logits_BGE), visibility = dense(visibility_GE);
  const Tensor grad = dense(grad_BGK), experts = dense(experts_BGK);
  check_indices("experts_BGK", "experts", experts, logits.size(2));
  const Tensor out = empty_as(logits);
  switch (logits.scalar_type()) {
    case ScalarType::Double:
      backward<double>(grad, logits, visibility, experts, softmax_after, out);
      break;
    case ScalarType::BFloat16:
      backward<bf16>(grad, logits, visibility, experts, softmax_after, out);
      break;
    default:
      backward<float>(grad, logits, visibility, experts, softmax_after, out);
  }
  return out;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("topk_gate", MMOE_BOX(topk_gate));
  m.impl("topk_gate_backward", MMOE_BOX(topk_gate_backward));
}

// gated_combine on the CPU. Sample by sample: the few pairs a sample owns are read for all its
// gates while they are in the cache. The backward pass writes a pair's gradient in the same visit.

#include <torch/csrc/stable/library.h>

#include <atomic>
#include <tuple>

#include "indices.h"
#include "rows.h"

namespace mmoe {
namespace {

constexpr int32_t kNobody = -1;

template <typename T>
struct Gated {
  const T* y;
  const int32_t* slots;
  const typename Row<T>::sum_t* weights;
  int64_t P, B, G, K, O;
};

// Pairs of one sample lie far apart, one expert's rows from the next; so ask for them early.
template <typename T>
MMOE_INLINE void prefetch_sample(const Gated<T>& d, int64_t b) {
  if (b >= d.B) return;
  const int64_t picks = d.G * d.K;
  for (int64_t i = b * picks; i < (b + 1) * picks; ++i) {
    if (d.slots[i] < 0) continue;
    const char* row = reinterpret_cast<const char*>(d.y + d.slots[i] * d.O);
    const int64_t bytes = d.O * static_cast<int64_t>(sizeof(T));
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
  }
}

// out = sum over the K picks of one gate.
template <typename T>
MMOE_INLINE void forward_gate(const Gated<T>& d, const int32_t* slots,
                              const typename Row<T>::sum_t* weights, T* out) {
  using R = Row<T>;
  for (int64_t o = 0; o < d.O; o += R::lanes) {
    const int64_t part = o + R::lanes <= d.O ? 0 : d.O - o;
    typename R::vec sum = {};
    for (int64_t k = 0; k < d.K; ++k) {
      if (slots[k] < 0) continue;
      const T* y = d.y + slots[k] * d.O + o;
      sum += weights[k] * (part ? load_part(y, part) : R::load(y));
    }
    if (part) {
      store_part(out + o, sum, part);
    } else {
      R::store(out + o, sum);
    }
  }
}

template <typename T>
MMOE_INLINE void forward_rows(const Gated<T>& d, int64_t begin, int64_t end, T* out) {
  for (int64_t b = begin; b < end; ++b) {
    prefetch_sample(d, b + 1);
    for (int64_t g = 0; g < d.G; ++g) {
      const int64_t gate = b * d.G + g;
      forward_gate(d, d.slots + gate * d.K, d.weights + gate * d.K, out + gate * d.O);
    }
  }
}

// Room for the picks of one sample that share a pair.
template <typename T>
struct Shared {
  std::vector<const T*> grads;
  std::vector<typename Row<T>::sum_t> weights, dots, scratch;
  std::vector<int64_t> picks;
  explicit Shared(int64_t n)
      : grads(n), weights(n), dots(n), scratch(n * Row<T>::lanes), picks(n) {}
};

// Collects the picks from `first` on that use the same pair; 0 where an earlier pick did.
template <typename T>
MMOE_INLINE int64_t collect(const Gated<T>& d, int64_t b, int64_t first, const T* grad,
                            Shared<T>& s) {
  const int64_t picks = d.G * d.K, base = b * picks;
  const int32_t slot = d.slots[base + first];
  for (int64_t i = 0; i < first; ++i) {
    if (d.slots[base + i] == slot) return 0;
  }
  int64_t count = 0;
  for (int64_t i = first; i < picks; ++i) {
    if (d.slots[base + i] != slot) continue;
    s.picks[count] = base + i;
    s.grads[count] = grad + (b * d.G + i / d.K) * d.O;
    s.weights[count++] = d.weights[base + i];
  }
  return count;
}

// Returns a pair that two samples claim, or kNobody.
template <typename T>
MMOE_INLINE int32_t backward_rows(const Gated<T>& d, int64_t begin, int64_t end, const T* grad,
                                  T* grad_y, typename Row<T>::sum_t* grad_weights,
                                  std::atomic<int32_t>* owner, Shared<T>& s) {
  const int64_t picks = d.G * d.K;
  for (int64_t b = begin; b < end; ++b) {
    prefetch_sample(d, b + 1);
    for (int64_t i = 0; i < picks; ++i) {
      const int32_t slot = d.slots[b * picks + i];
      if (slot < 0) {
        grad_weights[b * picks + i] = 0;
        continue;
      }
      const int64_t count = collect(d, b, i, grad, s);
      if (count == 0) continue;
      const int32_t other =
          owner[slot].exchange(static_cast<int32_t>(b), std::memory_order_relaxed);
      if (other != kNobody) return slot;
      backward_row_any<T, T>({d.y + slot * d.O, grad_y + slot * d.O, s.grads.data(),
                              s.weights.data(), s.dots.data(), s.scratch.data(), count, d.O});
      for (int64_t m = 0; m < count; ++m) grad_weights[s.picks[m]] = s.dots[m];
    }
  }
  return kNobody;
}

// target_clones takes plain functions, so each type has its own.
#define MMOE_GATED(T)                                                                              \
  MMOE_CLONES void forward_clone(const Gated<T>& d, int64_t begin, int64_t end, T* out) {          \
    forward_rows<T>(d, begin, end, out);                                                           \
  }                                                                                                \
  MMOE_CLONES int32_t backward_clone(const Gated<T>& d, int64_t begin, int64_t end, const T* grad, \
                                     T* grad_y, Row<T>::sum_t* grad_weights,                       \
                                     std::atomic<int32_t>* owner, Shared<T>& s) {                  \
    return backward_rows<T>(d, begin, end, grad, grad_y, grad_weights, owner, s);                  \
  }
MMOE_GATED(float)
MMOE_GATED(double)
MMOE_GATED(bf16)
#undef MMOE_GATED

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
  torch::stable::parallel_for(
      0, d.B, grain(d.G * (d.K + 1) * d.O),
      [&](int64_t begin, int64_t end) { forward_clone(d, begin, end, to); });
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
  torch::stable::parallel_for(0, d.B, grain(numbers), [&](int64_t begin, int64_t end) {
    Shared<T> shared(d.G * d.K);
    const int32_t slot = backward_clone(d, begin, end, from, to, to_weights, owner.data(), shared);
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

// The loops of gated_combine; see each_isa.h.

#include "combine_backward.h"

namespace mmoe::MMOE_ISA {
namespace {

using combination::Gated;
using combination::kNobody;
using combination::Shared;

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
  using L = Lanes<typename Row<T>::sum_t>;
  for (int64_t o = 0; o < d.O; o += L::count) {
    const int64_t part = o + L::count <= d.O ? 0 : d.O - o;
    typename L::vec sum = {};
    for (int64_t k = 0; k < d.K; ++k) {
      if (slots[k] < 0) continue;
      const T* y = d.y + slots[k] * d.O + o;
      sum += weights[k] * (part ? load_some(y, part) : load(y));
    }
    if (part) {
      store_some(out + o, sum, part);
    } else {
      store(out + o, sum);
    }
  }
}

template <typename T>
void forward_rows(const Gated<T>& d, int64_t begin, int64_t end, T* out) {
  for (int64_t b = begin; b < end; ++b) {
    prefetch_sample(d, b + 1);
    for (int64_t g = 0; g < d.G; ++g) {
      const int64_t gate = b * d.G + g;
      forward_gate(d, d.slots + gate * d.K, d.weights + gate * d.K, out + gate * d.O);
    }
  }
}

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
int32_t backward_rows(const Gated<T>& d, int64_t begin, int64_t end, const T* grad, T* grad_y,
                      typename Row<T>::sum_t* grad_weights, std::atomic<int32_t>* owner,
                      Shared<T>& s) {
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

}  // namespace
}  // namespace mmoe::MMOE_ISA

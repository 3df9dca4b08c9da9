// The loops of mixed_towers that are no products; see each_isa.h.

#include "../dense_combine_kernels.h"

namespace mmoe::MMOE_ISA {
namespace {

using towers::HeadTask;
using towers::TileGradients;

template <typename T>
MMOE_INLINE void head_columns(const HeadTask<T>& t, int64_t n, int64_t part) {
  const auto head = part ? load_some(t.head + n, part) : load(t.head + n);
  auto total = part ? load_some(t.grad_head + n, part) : load(t.grad_head + n);
  for (int64_t b = 0; b < t.B; ++b) {
    const auto grad = t.grad[b * t.step];
    const T* h = t.h + b * t.H + n;
    T* dh = t.dh + b * t.H + n;
    total += grad * (part ? load_some(h, part) : load(h));
    part ? store_some(dh, grad * head, part) : store(dh, grad * head);
  }
  part ? store_some(t.grad_head + n, total, part) : store(t.grad_head + n, total);
}

template <typename T>
void head_backward(const HeadTask<T>& t) {
  constexpr int64_t lanes = Lanes<typename Row<T>::sum_t>::count;
  int64_t n = 0;
  for (; n + lanes <= t.H; n += lanes) head_columns(t, n, 0);
  if (n < t.H) head_columns(t, n, t.H - n);
}

template <typename T>
void backward_tile(const Dense<T>& d, const TileGradients<T>& to) {
  const int64_t padded = whole_vectors<T>(d.O);
  PairTask<T> t;
  t.E = d.E;
  t.O = d.O;
  t.gate_step = d.gate_step;
  t.is_first = to.is_first;
  t.is_last = to.is_last;
  for (int64_t b = 0; b < d.B; ++b) {
    t.grad = to.mixes + b * d.sample_step;
    for (int64_t e = 0; e < d.E; e += kPairExperts) {
      const int64_t pair = std::min(d.E - e, kPairExperts);
      for (int64_t i = 0; i < pair; ++i) {
        t.y[i] = static_cast<const T*>(d.y[e + i]) + b * d.row_stride[e + i];
        t.dy[i] = static_cast<T*>(to.y[e + i]) + b * d.O;
        t.held[i] = to.held + (b * d.E + e + i) * padded;
      }
      t.weights = d.weights + b * d.weight_step + e;
      t.dots = to.weights + b * d.weight_step + e;
      if (pair == kPairExperts) {
        backward_gates<T, kPairExperts>(t, d.G);
      } else {
        backward_gates<T, 1>(t, d.G);
      }
    }
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

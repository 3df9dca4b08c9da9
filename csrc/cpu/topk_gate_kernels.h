// The loops of topk_gate; see each_isa.h.
//
// A row is one gate's logits for one sample, copied to a buffer where hidden experts are -inf. Each
// pick is one pass over the buffer, for the best of what comes after the last pick; for the few
// picks a gate makes that beats any sort. The softmax is taken for many rows at a time, so that its
// vectors are full.

#include "vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

using topk::Backward;
using topk::Gate;
using topk::kBlockRows;
using topk::kGroupRows;
using topk::sum_of;

// Writes a row's logits to the buffer: -inf where hidden, the largest number for +inf, with which
// softmax would have inf - inf. Marks `nan` where one that is visible is NaN.
template <typename T>
MMOE_INLINE void load_row(const Gate<T>& d, int64_t row, sum_of<T>* buffer,
                          typename Lanes<sum_of<T>>::ints* nan) {
  using L = Lanes<sum_of<T>>;
  const T* from = d.logits + row * d.E;
  const auto* visible = d.visible + row % d.G * d.padded;
  const auto most = typename L::vec{} + std::numeric_limits<sum_of<T>>::max();
  const auto lowest = typename L::vec{} + L::lowest;
  for (int64_t e = 0; e < d.padded; e += L::count) {
    // Past the row's end lies the next row, which is hidden here; past the last row lies nothing.
    const bool whole = d.end - (from + e) >= L::count;
    typename L::vec x = whole ? load(from + e) : load_some(from + e, d.end - (from + e));
    typename L::ints seen;
    std::memcpy(&seen, visible + e, sizeof seen);
    x = x > most ? most : x;
    x = seen ? x : lowest;
    *nan |= x != x;
    store(buffer + e, x);
  }
}

// The best expert after (*value, *expert) in the order of falling logits, equal ones by rising
// number; *value is -inf where there is none.
template <typename S>
MMOE_INLINE void next_pick(const S* buffer, int64_t padded, S* value,
                           typename Lanes<S>::int_t* expert) {
  using L = Lanes<S>;
  const S last = *value;
  const auto last_expert = *expert;
  auto best = typename L::vec{} + L::lowest;
  const auto nobody = typename L::ints{} + std::numeric_limits<typename L::int_t>::max();
  auto experts = nobody;
  typename L::ints number;
  std::memcpy(&number, kCounting<typename L::int_t>, sizeof number);
  for (int64_t e = 0; e < padded; e += L::count) {
    const auto x = load(buffer + e);
    const auto better = ((x < last) | ((x == last) & (number > last_expert))) & (x > best);
    best = better ? x : best;
    experts = better ? number : experts;
    number += static_cast<typename L::int_t>(L::count);
  }
  *value = join_lanes<S>(best, Larger());
  experts = best == *value ? experts : nobody;
  *expert = join_lanes<typename L::int_t>(experts, Smaller());
}

// Sum of exp(x - top) over a buffer, whose hidden experts are -inf.
template <typename S>
MMOE_INLINE S sum_exp(const S* buffer, int64_t padded, S top) {
  typename Lanes<S>::vec sum = {};
  for (int64_t e = 0; e < padded; e += Lanes<S>::count) {
    sum += exp_up_to_zero(load(buffer + e) - top);
  }
  return join_lanes<S>(sum, Sum());
}

// Picks for a few rows, pick by pick: those of different rows do not wait for one another. Leaves
// logit - largest logit in `weights`, and in `sums` what their exp is to be divided by (after the
// selection: 0, and the sum is taken later).
template <typename T>
MMOE_INLINE void pick_rows(const Gate<T>& d, int64_t begin, int64_t end, sum_of<T>* buffer,
                           sum_of<T>* weights, int32_t* experts, sum_of<T>* sums,
                           typename Lanes<sum_of<T>>::ints* nan) {
  using S = sum_of<T>;
  typename Lanes<S>::int_t last[kGroupRows];
  S values[kGroupRows], tops[kGroupRows];
  for (int64_t row = begin; row < end; ++row) {
    load_row(d, row, buffer + (row - begin) * d.padded, nan);
    values[row - begin] = std::numeric_limits<S>::infinity();
    last[row - begin] = -1;
  }
  for (int64_t k = 0; k < d.K; ++k) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t r = row - begin;
      next_pick(buffer + r * d.padded, d.padded, &values[r], &last[r]);
      if (k == 0) tops[r] = values[r];
      const bool found = values[r] > Lanes<S>::lowest;
      weights[row * d.K + k] = found ? values[r] - tops[r] : Lanes<S>::lowest;
      experts[row * d.K + k] = found ? static_cast<int32_t>(last[r]) : -1;
    }
  }
  for (int64_t r = 0; r < end - begin; ++r) {
    const bool none = !(tops[r] > Lanes<S>::lowest);
    sums[r] = none ? 1 : d.after ? 0 : sum_exp(buffer + r * d.padded, d.padded, tops[r]);
  }
}

// Returns whether a visible logit is NaN; the weights then mean nothing.
template <typename T>
bool forward_rows(const Gate<T>& d, int64_t begin, int64_t end, sum_of<T>* buffer,
                  sum_of<T>* weights, int32_t* experts) {
  using S = sum_of<T>;
  typename Lanes<S>::ints nan = {};
  S sums[kBlockRows];
  for (int64_t first = begin; first < end; first += kBlockRows) {
    const int64_t last = std::min(end, first + kBlockRows);
    for (int64_t row = first; row < last; row += kGroupRows) {
      pick_rows(d, row, std::min(last, row + kGroupRows), buffer, weights, experts,
                sums + (row - first), &nan);
    }
    exp_all(weights + first * d.K, (last - first) * d.K);
    for (int64_t row = first; row < last; ++row) {
      S* weight = weights + row * d.K;
      S sum = sums[row - first];
      if (sum == 0) sum = std::accumulate(weight, weight + d.K, S(0));
      for (int64_t k = 0; k < d.K; ++k) weight[k] /= sum;
    }
  }
  return join_lanes<typename Lanes<S>::int_t>(nan, Smaller()) != 0;
}

// Logits of one row's picks less the largest: -inf for an unused or hidden one. A pick that names
// an expert again gives its gradient to the first.
template <typename T>
MMOE_INLINE void gather_picks(const Backward<T>& d, int64_t row, sum_of<T>* x, sum_of<T>* grad) {
  using S = sum_of<T>;
  const int64_t K = d.gate.K;
  const int32_t* experts = d.experts + row * K;
  const auto* visible = d.gate.visible + row % d.gate.G * d.gate.padded;
  S top = Lanes<S>::lowest;
  for (int64_t k = 0; k < K; ++k) {
    grad[k] = d.grad[row * K + k];
    x[k] = Lanes<S>::lowest;
    const int32_t e = experts[k];
    if (e < 0 || !visible[e]) continue;
    const int64_t first = std::find(experts, experts + k, e) - experts;
    if (first < k) {
      grad[first] += grad[k];
      continue;
    }
    const S logit = Row<T>::to_sum(d.gate.logits[row * d.gate.E + e]);
    x[k] = logit > std::numeric_limits<S>::max() ? std::numeric_limits<S>::max() : logit;
    top = x[k] > top ? x[k] : top;
  }
  for (int64_t k = 0; k < K && top > Lanes<S>::lowest; ++k) x[k] -= top;
}

// Softmax over the picks: only their logits get a gradient. Scratch: 2 * kBlockRows * K numbers.
template <typename T>
MMOE_INLINE void backward_after(const Backward<T>& d, int64_t begin, int64_t end,
                                sum_of<T>* scratch) {
  using S = sum_of<T>;
  const int64_t K = d.gate.K, E = d.gate.E;
  S* const p = scratch;
  S* const grad = scratch + kBlockRows * K;
  fill_zero(d.out + begin * E, (end - begin) * E);
  for (int64_t first = begin; first < end; first += kBlockRows) {
    const int64_t last = std::min(end, first + kBlockRows);
    for (int64_t row = first; row < last; ++row) {
      gather_picks(d, row, p + (row - first) * K, grad + (row - first) * K);
    }
    exp_all(p, (last - first) * K);
    for (int64_t row = first; row < last; ++row) {
      const S* q = p + (row - first) * K;
      const S* g = grad + (row - first) * K;
      S sum = 0, dot = 0;
      for (int64_t k = 0; k < K; ++k) sum += q[k], dot += q[k] * (q[k] == 0 ? S(0) : g[k]);
      for (int64_t k = 0; k < K; ++k) {
        if (q[k] == 0) continue;
        d.out[row * E + d.experts[row * K + k]] = Row<T>::from_sum(q[k] / sum * (g[k] - dot / sum));
      }
    }
  }
}

// Turns a buffer of logits into exp(logit - largest), zeros where all are hidden; returns the sum.
template <typename S>
MMOE_INLINE S exp_row(S* buffer, int64_t padded) {
  using L = Lanes<S>;
  auto best = typename L::vec{} + L::lowest;
  for (int64_t e = 0; e < padded; e += L::count) best = Larger()(load(buffer + e), best);
  const S top = join_lanes<S>(best, Larger());
  if (top == L::lowest) {
    fill_zero(buffer, padded);
    return 0;
  }
  typename L::vec sum = {};
  for (int64_t e = 0; e < padded; e += L::count) {
    const auto p = exp_up_to_zero(load(buffer + e) - top);
    store(buffer + e, p);
    sum += p;
  }
  return join_lanes<S>(sum, Sum());
}

// Writes one row's gradient, from p = exp(logit - largest) and 1 / sum of p.
template <typename T>
MMOE_INLINE void write_row(const Backward<T>& d, int64_t row, const T* out_end, const sum_of<T>* p,
                           sum_of<T> scale) {
  using S = sum_of<T>;
  using L = Lanes<S>;
  const int64_t K = d.gate.K, E = d.gate.E;
  const int32_t* experts = d.experts + row * K;
  const S* grad = d.grad + row * K;
  T* const out = d.out + row * E;
  S dot = 0;
  for (int64_t k = 0; k < K; ++k) dot += experts[k] < 0 ? 0 : p[experts[k]] * grad[k];
  dot *= scale;
  for (int64_t e = 0; e < d.gate.padded; e += L::count) {
    const auto v = load(p + e) * (-scale * dot);
    // Numbers past the row's end fall on the next row, which is written after this one.
    if (out_end - (out + e) >= L::count) {
      store(out + e, v);
    } else {
      store_some(out + e, v, std::min(E - e, L::count));
    }
  }
  for (int64_t k = 0; k < K; ++k) {
    if (experts[k] < 0) continue;
    S total = 0;
    for (int64_t j = 0; j < K; ++j) total += experts[j] == experts[k] ? grad[j] : 0;
    out[experts[k]] = Row<T>::from_sum(p[experts[k]] * scale * (total - dot));
  }
}

// Softmax over all visible experts: each of their logits gets a gradient. Scratch: kGroupRows *
// padded numbers.
template <typename T>
MMOE_INLINE void backward_before(const Backward<T>& d, int64_t begin, int64_t end,
                                 sum_of<T>* scratch) {
  using S = sum_of<T>;
  const int64_t padded = d.gate.padded;
  typename Lanes<S>::ints nan = {};
  S scales[kGroupRows];
  for (int64_t first = begin; first < end; first += kGroupRows) {
    const int64_t rows = std::min(end - first, kGroupRows);
    for (int64_t r = 0; r < rows; ++r) {
      load_row(d.gate, first + r, scratch + r * padded, &nan);
      const S sum = exp_row(scratch + r * padded, padded);
      scales[r] = sum == 0 ? 0 : 1 / sum;
    }
    for (int64_t r = 0; r < rows; ++r) {
      write_row(d, first + r, d.out + end * d.gate.E, scratch + r * padded, scales[r]);
    }
  }
}

template <typename T>
void backward_rows(const Backward<T>& d, int64_t begin, int64_t end, sum_of<T>* scratch) {
  if (d.gate.after) {
    backward_after(d, begin, end, scratch);
  } else {
    backward_before(d, begin, end, scratch);
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

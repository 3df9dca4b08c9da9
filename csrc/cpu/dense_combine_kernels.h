// The loops of dense_combine; see each_isa.h.

#include "vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

using combination::Dense;
using combination::kBlockExperts;
using combination::kBlockGates;
using combination::kPairExperts;
using combination::Room;

// Asks for rows of some gates: with many gates there are more runs of rows than the prefetcher
// follows.
template <typename T, bool WRITES>
MMOE_INLINE void fetch(const Dense<T>& d, const T* sample, int64_t g, int64_t gates) {
  const int64_t bytes = d.O * static_cast<int64_t>(sizeof(T));
  for (int64_t i = g; i < g + gates; ++i) {
    const auto* row = reinterpret_cast<const char*>(sample + i * d.gate_step);
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, WRITES, 2);
  }
}

// Sums of NG gates over a block of experts, for one row. With more experts than one block, sums
// wait in `held` between blocks.
template <typename T>
struct RowTask {
  const T* y[kBlockExperts];              // the block's experts
  const typename Row<T>::sum_t* weights;  // of the first gate and expert
  typename Row<T>::sum_t* held;           // null where one block holds all experts
  T* out;
  int64_t experts, E, O, padded, gate_step;
  bool is_first, is_last;
};

// C vectors of numbers from `o` on. Where `part` is not 0, only that many numbers of the (single)
// vector exist; it is a constant in the hot loop.
template <typename T, int NG, int C>
MMOE_INLINE void add_experts(const RowTask<T>& t, int64_t o, int64_t part) {
  using L = Lanes<typename Row<T>::sum_t>;
  typename L::vec sums[NG][C] = {};
  if (!t.is_first) {
    for (int i = 0; i < NG; ++i) {
      for (int c = 0; c < C; ++c) sums[i][c] = load(t.held + i * t.padded + o + c * L::count);
    }
  }
  for (int64_t e = 0; e < t.experts; ++e) {
    typename L::vec value[C];
    for (int c = 0; c < C; ++c) {
      const T* y = t.y[e] + o + c * L::count;
      value[c] = part ? load_some(y, part) : load(y);
    }
    for (int i = 0; i < NG; ++i) {
      for (int c = 0; c < C; ++c) sums[i][c] += t.weights[i * t.E + e] * value[c];
    }
  }
  for (int i = 0; i < NG; ++i) {
    for (int c = 0; c < C; ++c) {
      T* out = t.out + i * t.gate_step + o + c * L::count;
      if (!t.is_last) {
        store(t.held + i * t.padded + o + c * L::count, sums[i][c]);
      } else if (part) {
        store_some(out, sums[i][c], part);
      } else {
        store(out, sums[i][c]);
      }
    }
  }
}

// Two vectors at a time (four for few gates) hide the latency of the sums.
template <typename T, int NG>
MMOE_INLINE void forward_row(const RowTask<T>& t) {
  constexpr int C = NG <= 2 ? 4 : 2;
  constexpr int64_t lanes = Lanes<typename Row<T>::sum_t>::count;
  int64_t o = 0;
  for (; o + C * lanes <= t.O; o += C * lanes) add_experts<T, NG, C>(t, o, 0);
  for (; o + lanes <= t.O; o += lanes) add_experts<T, NG, 1>(t, o, 0);
  if (o < t.O) add_experts<T, NG, 1>(t, o, t.O - o);
}

template <typename T>
void forward_block(const Dense<T>& d, int64_t begin, int64_t end, typename Row<T>::sum_t* held,
                   T* out) {
  RowTask<T> t;
  t.E = d.E;
  t.O = d.O;
  t.padded = whole_vectors<T>(d.O);
  t.gate_step = d.gate_step;
  for (int64_t first = 0; first < d.E; first += kBlockExperts) {
    t.experts = std::min(d.E - first, kBlockExperts);
    t.is_first = first == 0;
    t.is_last = first + t.experts == d.E;
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t e = 0; e < t.experts; ++e) {
        t.y[e] = static_cast<const T*>(d.y[first + e]) + b * d.row_stride[first + e];
      }
      for (int64_t g = 0; g < d.G; g += kBlockGates) {
        t.weights = d.weights + b * d.weight_step + g * d.E + first;
        t.held = held + ((b - begin) * d.G + g) * t.padded;
        t.out = out + b * d.sample_step + g * d.gate_step;
        const int64_t gates = std::min(d.G - g, kBlockGates);
        if (t.is_last && b + 1 < d.B) fetch<T, true>(d, out + (b + 1) * d.sample_step, g, gates);
        switch (gates) {
          case 1:
            forward_row<T, 1>(t);
            break;
          case 2:
            forward_row<T, 2>(t);
            break;
          case 3:
            forward_row<T, 3>(t);
            break;
          default:
            forward_row<T, 4>(t);
        }
      }
    }
  }
}

// The gradients of one sample in the accumulation type: every expert reads them again.
template <typename T>
MMOE_INLINE const typename Row<T>::sum_t* widen(const Dense<T>& d, const T* from, Room<T>& room) {
  using L = Lanes<typename Row<T>::sum_t>;
  if constexpr (std::is_same_v<T, typename Row<T>::sum_t>) {
    return from;
  } else {
    typename Row<T>::sum_t* all = room.widened.data();
    for (int64_t g = 0; g < d.G; ++g, all += d.O, from += d.gate_step) {
      int64_t o = 0;
      for (; o + L::count <= d.O; o += L::count) store(all + o, load(from + o));
      for (; o < d.O; ++o) all[o] = Row<T>::to_sum(from[o]);
    }
    return room.widened.data();
  }
}

// What NG gates add to the gradients of NE experts' rows of one sample, and their dot products:
//   dy[e] += sum over g of weight[g, e] * grad[g];   dot[g, e] = <y[e], grad[g]>
// Each vector of a gradient serves all NE experts. With more gates than one block, sums wait in
// `held` between blocks.
template <typename T>
struct PairTask {
  using sum_t = typename Row<T>::sum_t;
  const T* y[kPairExperts];
  T* dy[kPairExperts];
  sum_t* held[kPairExperts];
  const sum_t* grad;     // of the first gate
  const sum_t* weights;  // of the first gate and expert
  sum_t* dots;           // likewise
  int64_t E, O, gate_step;
  bool is_first, is_last;
};

template <typename T, int NG, int NE>
MMOE_INLINE void add_gates(const PairTask<T>& t, int64_t o, int64_t part,
                           const typename Row<T>::sum_t (&weights)[NG + 1][NE],
                           typename Lanes<typename Row<T>::sum_t>::vec (&dots)[NG + 1][NE]) {
  using V = typename Lanes<typename Row<T>::sum_t>::vec;
  V value[NE], total[NE] = {};
  for (int e = 0; e < NE; ++e) {
    value[e] = part ? load_some(t.y[e] + o, part) : load(t.y[e] + o);
    if (!t.is_first) total[e] = load(t.held[e] + o);
  }
  for (int g = 0; g < NG; ++g) {
    const auto* from = t.grad + g * t.gate_step + o;
    const V grad = part ? load_some(from, part) : load(from);
    for (int e = 0; e < NE; ++e) {
      total[e] += weights[g][e] * grad;
      dots[g][e] += value[e] * grad;
    }
  }
  for (int e = 0; e < NE; ++e) {
    if (!t.is_last) {
      store(t.held[e] + o, total[e]);
    } else if (part) {
      store_some(t.dy[e] + o, total[e], part);
    } else {
      store(t.dy[e] + o, total[e]);
    }
  }
}

template <typename T, int NG, int NE>
MMOE_INLINE void backward_pair(const PairTask<T>& t) {
  using S = typename Row<T>::sum_t;
  constexpr int64_t lanes = Lanes<S>::count;
  // C++ has no arrays of nothing
  typename Lanes<S>::vec dots[NG + 1][NE] = {};
  S weights[NG + 1][NE];  // copies: what is stored cannot change them, so they stay in registers
  for (int g = 0; g < NG; ++g) {
    for (int e = 0; e < NE; ++e) weights[g][e] = t.weights[g * t.E + e];
  }
  int64_t o = 0;
  for (; o + lanes <= t.O; o += lanes) add_gates<T, NG, NE>(t, o, 0, weights, dots);
  if (o < t.O) add_gates<T, NG, NE>(t, o, t.O - o, weights, dots);
  for (int g = 0; g < NG; ++g) {
    for (int e = 0; e < NE; ++e) t.dots[g * t.E + e] = join_lanes<S>(dots[g][e], Sum());
  }
}

template <typename T, int NE>
MMOE_INLINE void backward_gates(const PairTask<T>& t, int64_t gates) {
  switch (gates) {
    case 0:
      return backward_pair<T, 0, NE>(t);  // the gradient is 0, which has to be written too
    case 1:
      return backward_pair<T, 1, NE>(t);
    case 2:
      return backward_pair<T, 2, NE>(t);
    case 3:
      return backward_pair<T, 3, NE>(t);
    default:
      return backward_pair<T, kBlockGates, NE>(t);
  }
}

// Experts [first, first + experts) of one sample: gates in blocks, each of which all of these
// experts read while it is in the cache. `next`: of the next sample's gradients, or null.
template <typename T>
MMOE_INLINE void backward_sample(const Dense<T>& d, int64_t b, int64_t first, int64_t experts,
                                 const typename Row<T>::sum_t* grads, int64_t gate_step,
                                 const T* next, void* const* grad_y,
                                 typename Row<T>::sum_t* grad_weights, Room<T>& room) {
  PairTask<T> t;
  t.E = d.E;
  t.O = d.O;
  t.gate_step = gate_step;
  int64_t g = 0;
  do {
    const int64_t gates = std::min(d.G - g, kBlockGates);
    t.is_first = g == 0;
    t.is_last = g + gates == d.G;
    t.grad = grads + g * gate_step;
    if (next != nullptr) fetch<T, false>(d, next, g, gates);
    for (int64_t e = 0; e < experts; e += kPairExperts) {
      const int64_t pair = std::min(experts - e, kPairExperts);
      for (int64_t i = 0; i < pair; ++i) {
        const int64_t expert = first + e + i;
        t.y[i] = static_cast<const T*>(d.y[expert]) + b * d.row_stride[expert];
        t.dy[i] = static_cast<T*>(grad_y[expert]) + b * d.O;
        t.held[i] = room.held.data() + (e + i) * whole_vectors<T>(d.O);
      }
      const int64_t at = b * d.weight_step + g * d.E + first + e;
      t.weights = d.weights + at;
      t.dots = grad_weights + at;
      if (pair == kPairExperts) {
        backward_gates<T, kPairExperts>(t, gates);
      } else {
        backward_gates<T, 1>(t, gates);
      }
    }
    g += kBlockGates;
  } while (g < d.G);
}

template <typename T>
void backward_block(const Dense<T>& d, int64_t begin, int64_t end, const T* grad,
                    void* const* grad_y, typename Row<T>::sum_t* grad_weights, Room<T>& room) {
  constexpr bool narrow = !std::is_same_v<T, typename Row<T>::sum_t>;
  const int64_t gate_step = narrow ? d.O : d.gate_step;
  for (int64_t b = begin; b < end; ++b) {
    const auto* grads = widen(d, grad + b * d.sample_step, room);
    for (int64_t first = 0; first < d.E; first += kBlockExperts) {
      const int64_t experts = std::min(d.E - first, kBlockExperts);
      const T* next = first == 0 && b + 1 < d.B ? grad + (b + 1) * d.sample_step : nullptr;
      backward_sample(d, b, first, experts, grads, gate_step, next, grad_y, grad_weights, room);
    }
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

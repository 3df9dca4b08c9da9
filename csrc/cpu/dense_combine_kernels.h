// The loops of dense_combine; see each_isa.h.

#include "combine_backward.h"

namespace mmoe::MMOE_ISA {
namespace {

using combination::Dense;
using combination::kBlockExperts;
using combination::kBlockGates;
using combination::Room;

// Sums of NG gates over a block of experts, for one row. With more experts than one block, sums
// wait in `held` between blocks.
template <typename T>
struct RowTask {
  const T* y[kBlockExperts];              // the block's experts
  const typename Row<T>::sum_t* weights;  // of the first gate and expert
  typename Row<T>::sum_t* held;           // null where one block holds all experts
  T* out;
  int64_t experts, E, O, padded;
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
      T* out = t.out + i * t.O + o + c * L::count;
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
  for (int64_t first = 0; first < d.E; first += kBlockExperts) {
    t.experts = std::min(d.E - first, kBlockExperts);
    t.is_first = first == 0;
    t.is_last = first + t.experts == d.E;
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t e = 0; e < t.experts; ++e) {
        t.y[e] = static_cast<const T*>(d.y[first + e]) + b * d.row_stride[first + e];
      }
      for (int64_t g = 0; g < d.G; g += kBlockGates) {
        t.weights = d.weights + (b * d.G + g) * d.E + first;
        t.held = held + ((b - begin) * d.G + g) * t.padded;
        t.out = out + (b * d.G + g) * d.O;
        switch (std::min(d.G - g, kBlockGates)) {
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

// The gradients of a block of rows in the accumulation type: every expert reads them again.
template <typename T>
MMOE_INLINE const typename Row<T>::sum_t* widen(const T* from, int64_t count, Room<T>& room) {
  using L = Lanes<typename Row<T>::sum_t>;
  if constexpr (std::is_same_v<T, typename Row<T>::sum_t>) {
    return from;
  } else {
    typename Row<T>::sum_t* to = room.widened.data();
    int64_t i = 0;
    for (; i + L::count <= count; i += L::count) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = Row<T>::to_sum(from[i]);
    return to;
  }
}

template <typename T>
void backward_block(const Dense<T>& d, int64_t begin, int64_t end, const T* grad,
                    void* const* grad_y, typename Row<T>::sum_t* grad_weights, Room<T>& room) {
  using sum_t = typename Row<T>::sum_t;
  const int64_t GO = d.G * d.O;
  const sum_t* grads = widen(grad + begin * GO, (end - begin) * GO, room);
  for (int64_t e = 0; e < d.E; ++e) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t g = 0; g < d.G; ++g) {
        room.grads[g] = grads + (b - begin) * GO + g * d.O;
        room.weights[g] = d.weights[(b * d.G + g) * d.E + e];
      }
      backward_row_any<T, sum_t>({static_cast<const T*>(d.y[e]) + b * d.row_stride[e],
                                  static_cast<T*>(grad_y[e]) + b * d.O, room.grads.data(),
                                  room.weights.data(), room.dots.data(), room.scratch.data(), d.G,
                                  d.O});
      for (int64_t g = 0; g < d.G; ++g) grad_weights[(b * d.G + g) * d.E + e] = room.dots[g];
    }
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

// What the backward pass of gated_combine does with a row; included by its kernels, see each_isa.h.

#include "vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

// One row's share, its expert output y read once:
//   dy = sum over m of weight[m] * grad[m];   dot[m] = <y, grad[m]>
// M counts the gates (or picks) that used the row; 0 means it is given at run time. The gradients
// may already be in the accumulation type (TG).
template <typename T, typename TG>
struct BackwardRow {
  const T* y;
  T* dy;
  const TG* const* grad;
  const typename Row<T>::sum_t* weight;
  typename Row<T>::sum_t* dot;
  typename Row<T>::sum_t* scratch;  // room for `count` vectors, used where M is 0
  int64_t count, width;
};

// Adds one vector of y, and of the gradients, to the sums; returns its share of dy. Where `part` is
// not 0, only that many numbers exist.
template <typename T, typename TG, int M, typename V>
MMOE_INLINE V backward_vec(const BackwardRow<T, TG>& r, int64_t o, int64_t part, V* sums) {
  using L = Lanes<typename Row<T>::sum_t>;
  const V value = part ? load_some(r.y + o, part) : load(r.y + o);
  V total = {};
  const int64_t used = M > 0 ? M : r.count;
  for (int64_t m = 0; m < used; ++m) {
    const TG* grad = r.grad[m] + o;
    const V g = part ? load_some(grad, part) : load(grad);
    total += r.weight[m] * g;
    if constexpr (M > 0) {
      sums[m] += value * g;
    } else {
      auto* sum = r.scratch + m * L::count;
      store(sum, load(sum) + value * g);
    }
  }
  return total;
}

template <typename T, typename TG, int M>
MMOE_INLINE void backward_row(const BackwardRow<T, TG>& r) {
  using S = typename Row<T>::sum_t;
  using L = Lanes<S>;
  typename L::vec sums[M > 0 ? M : 1] = {};
  const int64_t used = M > 0 ? M : r.count;
  if (M == 0) fill_zero(r.scratch, used * L::count);
  int64_t o = 0;
  for (; o + L::count <= r.width; o += L::count) {
    store(r.dy + o, backward_vec<T, TG, M>(r, o, 0, sums));
  }
  if (o < r.width) {
    store_some(r.dy + o, backward_vec<T, TG, M>(r, o, r.width - o, sums), r.width - o);
  }
  for (int64_t m = 0; m < used; ++m) {
    r.dot[m] = join_lanes<S>(M > 0 ? sums[m] : load(r.scratch + m * L::count), Sum());
  }
}

// The same with M as a constant for the usual small counts, which keeps the sums in registers.
template <typename T, typename TG>
MMOE_INLINE void backward_row_any(const BackwardRow<T, TG>& r) {
  switch (r.count) {
    case 1:
      return backward_row<T, TG, 1>(r);
    case 2:
      return backward_row<T, TG, 2>(r);
    case 3:
      return backward_row<T, TG, 3>(r);
    case 4:
      return backward_row<T, TG, 4>(r);
    default:
      return backward_row<T, TG, 0>(r);
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

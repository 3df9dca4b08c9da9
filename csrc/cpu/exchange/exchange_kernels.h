// The loops over the numbers of rows that travel between ranks; see each_isa.h. S: the type of the
// sums, F and T: what is read and what is written. Rows of a message may start at any byte.

#include "../vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

// One vector of S from numbers of another type, and back.
template <typename S, typename F>
MMOE_INLINE auto load_as(const F* p) {
  if constexpr (std::is_same_v<typename Row<F>::sum_t, S>) {
    return load(p);
  } else {
    typename Lanes<S>::vec v;
    for (int64_t i = 0; i < Lanes<S>::count; ++i) {
      F number;
      std::memcpy(&number, p + i, sizeof number);
      v[i] = static_cast<S>(Row<F>::to_sum(number));
    }
    return v;
  }
}

template <typename S, typename T>
MMOE_INLINE void store_as(T* p, typename Lanes<S>::vec v) {
  if constexpr (std::is_same_v<typename Row<T>::sum_t, S>) {
    store(p, v);
  } else {
    for (int64_t i = 0; i < Lanes<S>::count; ++i) {
      const T number = Row<T>::from_sum(static_cast<typename Row<T>::sum_t>(v[i]));
      std::memcpy(p + i, &number, sizeof number);
    }
  }
}

// The last, incomplete vector of a row: absent lanes read as 0 and are not written.
template <typename S, typename F>
MMOE_INLINE auto load_last(const F* p, int64_t count) {
  F all[Lanes<S>::count] = {};
  std::memcpy(all, p, static_cast<size_t>(count) * sizeof(F));
  return load_as<S>(all);
}

template <typename S, typename T>
MMOE_INLINE void store_last(T* p, typename Lanes<S>::vec v, int64_t count) {
  T all[Lanes<S>::count];
  store_as<S>(all, v);
  std::memcpy(p, all, static_cast<size_t>(count) * sizeof(T));
}

// Calls run(column, load, store) for each vector of a row: where it starts, and how its numbers are
// read and written.
template <typename S, typename Run>
MMOE_INLINE void for_vectors(int64_t width, const Run& run) {
  int64_t o = 0;
  for (; o + Lanes<S>::count <= width; o += Lanes<S>::count) {
    run(
        o, [](const auto* p) { return load_as<S>(p); },
        [](auto* p, typename Lanes<S>::vec v) { store_as<S>(p, v); });
  }
  if (o == width) return;
  const int64_t count = width - o;
  run(
      o, [count](const auto* p) { return load_last<S>(p, count); },
      [count](auto* p, typename Lanes<S>::vec v) { store_last<S>(p, v, count); });
}

template <typename S, typename F, typename T>
void copy_row(const F* from, T* to, int64_t width) {
  if constexpr (std::is_same_v<F, T>) {
    if (width > 0)
      std::memcpy(static_cast<void*>(to), from, static_cast<size_t>(width) * sizeof(T));
  } else {
    for_vectors<S>(width, [&](int64_t o, const auto& load, const auto& store) {
      store(to + o, load(from + o));
    });
  }
}

// to = the sum of `count` rows, in their order.
template <typename S, typename F, typename T>
void add_rows(const F* const* from, int64_t count, T* to, int64_t width) {
  if (count == 1) return copy_row<S>(from[0], to, width);
  for_vectors<S>(width, [&](int64_t o, const auto& load, const auto& store) {
    typename Lanes<S>::vec sum = {};
    for (int64_t i = 0; i < count; ++i) sum += load(from[i] + o);
    store(to + o, sum);
  });
}

// As a number of type T would keep it.
template <typename T, typename V>
MMOE_INLINE V rounded_to(V v) {
  if constexpr (std::is_same_v<T, bf16>) {
    return reinterpret_cast<V>(rounded(v) & 0xffff0000u);
  } else {
    return v;
  }
}

// to = the sum over parts of the sum over the part's rows of weight times row. A part is rounded to
// C, the type that experts compute in: so it is if it was summed on another rank.
template <typename S, typename C, typename F, typename T>
void mix_rows(const exchange::Step<F, S>* steps, int64_t count, T* to, int64_t width) {
  for_vectors<S>(width, [&](int64_t o, const auto& load, const auto& store) {
    typename Lanes<S>::vec total = {}, part = {};
    for (int64_t i = 0; i < count; ++i) {
      if (steps[i].begins) {
        total += rounded_to<C>(part);
        part = typename Lanes<S>::vec{};
      }
      part += steps[i].weight * load(steps[i].row + o);
    }
    store(to + o, total + rounded_to<C>(part));
  });
}

// One row's share of the gradient, the row y read once; `M` uses, 0: as many as `count` says.
//   dy = sum over m of weight[m] * grad[m];   dot[m] = <y, grad[m]>
template <typename S, int M, typename F, typename G>
MMOE_INLINE void differentiate(const exchange::Uses<F, G, S>& u, int64_t width) {
  constexpr int64_t lanes = Lanes<S>::count;
  const int64_t count = M > 0 ? M : u.count;
  typename Lanes<S>::vec sums[M > 0 ? M : 1] = {};
  if (M == 0) std::fill(u.scratch, u.scratch + count * lanes, S{0});
  for_vectors<S>(width, [&](int64_t o, const auto& load, const auto& store) {
    const typename Lanes<S>::vec y = load(u.y + o);
    typename Lanes<S>::vec dy = {};
    for (int64_t m = 0; m < count; ++m) {
      const typename Lanes<S>::vec grad = load(u.grad[m] + o);
      dy += u.weight[m] * grad;
      if (M > 0) {
        sums[m] += y * grad;
      } else {
        S* sum = u.scratch + m * lanes;
        mmoe::MMOE_ISA::store(sum, mmoe::MMOE_ISA::load(sum) + y * grad);
      }
    }
    store(u.dy + o, dy);
  });
  for (int64_t m = 0; m < count; ++m) {
    const auto sum = M > 0 ? sums[m] : mmoe::MMOE_ISA::load(u.scratch + m * lanes);
    u.dot[m] = join_lanes<S>(sum, Sum{});
  }
}

// The usual small counts as constants, which keeps the sums in registers.
template <typename S, typename F, typename G>
void differentiate_row(const exchange::Uses<F, G, S>& u, int64_t width) {
  switch (u.count) {
    case 1:
      return differentiate<S, 1>(u, width);
    case 2:
      return differentiate<S, 2>(u, width);
    case 3:
      return differentiate<S, 3>(u, width);
    case 4:
      return differentiate<S, 4>(u, width);
    default:
      return differentiate<S, 0>(u, width);
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

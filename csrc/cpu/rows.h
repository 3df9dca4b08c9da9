// Rows of numbers as vectors of 64 bytes: loads, stores and weighted sums in the accumulation type.
// The vectors are the compiler's own (GCC and Clang); it splits them where registers are narrower.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

// One copy of a kernel per instruction set, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__clang__) && \
    defined(__GNUC__) && __GNUC__ >= 12
#define MMOE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MMOE_CLONES
#endif

// What a clone calls must be inlined into it, or it would be compiled for the oldest processor.
#define MMOE_INLINE inline __attribute__((always_inline))

namespace mmoe {

struct bf16 {
  uint16_t bits;
};

template <typename T>
struct Row;

template <>
struct Row<float> {
  using sum_t = float;
  static constexpr int64_t lanes = 16;
  typedef float vec __attribute__((vector_size(64)));
  static MMOE_INLINE vec load(const float* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static MMOE_INLINE void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
  static MMOE_INLINE float to_sum(float x) { return x; }
  static MMOE_INLINE float from_sum(float x) { return x; }
};

template <>
struct Row<double> {
  using sum_t = double;
  static constexpr int64_t lanes = 8;
  typedef double vec __attribute__((vector_size(64)));
  static MMOE_INLINE vec load(const double* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static MMOE_INLINE void store(double* p, vec v) { std::memcpy(p, &v, sizeof v); }
  static MMOE_INLINE double to_sum(double x) { return x; }
  static MMOE_INLINE double from_sum(double x) { return x; }
};

template <>
struct Row<bf16> {
  using sum_t = float;
  static constexpr int64_t lanes = 16;
  typedef float vec __attribute__((vector_size(64)));
  typedef uint32_t words __attribute__((vector_size(64)));
  typedef uint16_t halves __attribute__((vector_size(32)));

  // A bfloat16 is the upper half of a float.
  static MMOE_INLINE vec load(const bf16* p) {
    halves h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<vec>(__builtin_convertvector(h, words) << 16);
  }

  // Rounds to the nearest, ties to even; a NaN keeps its sign and becomes a quiet one.
  static MMOE_INLINE void store(bf16* p, vec v) {
    const words bits = reinterpret_cast<words>(v);
    const words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const words quiet = (bits >> 16) | 0x40u;
    const words is_nan = reinterpret_cast<words>(v != v);
    const halves h = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), halves);
    std::memcpy(p, &h, sizeof h);
  }

  static MMOE_INLINE float to_sum(bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  static MMOE_INLINE bf16 from_sum(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return bf16{static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded)};
  }
};

// The last, incomplete vector of a row: absent lanes read as 0 and are not written.
template <typename T>
MMOE_INLINE typename Row<T>::vec load_part(const T* p, int64_t count) {
  typename Row<T>::vec v = {};
  for (int64_t i = 0; i < count; ++i) v[i] = Row<T>::to_sum(p[i]);
  return v;
}

template <typename T>
MMOE_INLINE void store_part(T* p, typename Row<T>::vec v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = Row<T>::from_sum(v[i]);
}

// Adds the lanes in a fixed order, halves onto halves, so a sum has the same bits in every run.
MMOE_INLINE float add_lanes(Row<float>::vec v) {
  typedef float half __attribute__((vector_size(32)));
  typedef float quarter __attribute__((vector_size(16)));
  half h[2];
  std::memcpy(h, &v, sizeof v);
  h[0] += h[1];
  quarter q[2];
  std::memcpy(q, h, sizeof q);
  q[0] += q[1];
  return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
}

MMOE_INLINE double add_lanes(Row<double>::vec v) {
  typedef double half __attribute__((vector_size(32)));
  half h[2];
  std::memcpy(h, &v, sizeof v);
  h[0] += h[1];
  return (h[0][0] + h[0][2]) + (h[0][1] + h[0][3]);
}

template <typename T>
MMOE_INLINE void fill_zero(T* p, int64_t count) {
  if (count > 0) std::memset(static_cast<void*>(p), 0, static_cast<size_t>(count) * sizeof(T));
}

// One row's share of a combine's backward pass, its expert output y read once:
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
template <typename T, typename TG, int M>
MMOE_INLINE typename Row<T>::vec backward_vec(const BackwardRow<T, TG>& r, int64_t o, int64_t part,
                                              typename Row<T>::vec* sums) {
  using R = Row<T>;
  using S = Row<typename R::sum_t>;
  const typename R::vec value = part ? load_part(r.y + o, part) : R::load(r.y + o);
  typename R::vec total = {};
  const int64_t used = M > 0 ? M : r.count;
  for (int64_t m = 0; m < used; ++m) {
    const TG* grad = r.grad[m] + o;
    const typename R::vec g = part ? load_part(grad, part) : Row<TG>::load(grad);
    total += r.weight[m] * g;
    if (M > 0) {
      sums[m] += value * g;
    } else {
      // Memory of the caller, whose code may align vectors less strictly than this clone.
      typename R::sum_t* sum = r.scratch + m * R::lanes;
      S::store(sum, S::load(sum) + value * g);
    }
  }
  return total;
}

template <typename T, typename TG, int M>
MMOE_INLINE void backward_row(const BackwardRow<T, TG>& r) {
  using R = Row<T>;
  typename R::vec sums[M > 0 ? M : 1] = {};
  const int64_t used = M > 0 ? M : r.count;
  if (M == 0) fill_zero(r.scratch, used * R::lanes);
  int64_t o = 0;
  for (; o + R::lanes <= r.width; o += R::lanes) {
    R::store(r.dy + o, backward_vec<T, TG, M>(r, o, 0, sums));
  }
  if (o < r.width) {
    const typename R::vec total = backward_vec<T, TG, M>(r, o, r.width - o, sums);
    store_part(r.dy + o, total, r.width - o);
  }
  for (int64_t m = 0; m < used; ++m) {
    r.dot[m] = add_lanes(M > 0 ? sums[m] : Row<typename R::sum_t>::load(r.scratch + m * R::lanes));
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

// Rows a thread takes at least, so that a small batch does not pay for waking threads.
inline int64_t grain(int64_t numbers_per_row) {
  constexpr int64_t numbers_per_task = 1 << 15;  // about 10 us of work
  return std::max<int64_t>(1, numbers_per_task / std::max<int64_t>(1, numbers_per_row));
}

}  // namespace mmoe

// Around the products of gemm.h, for one instruction set: bias and activation behind them, the
// activation's gradient before them. Included by gemm_kernels.h, whose rules hold here too.

#include "../vectors.h"
#include "gemm.h"

namespace mmoe::gemm {
namespace MMOE_ISA {

using namespace ::mmoe::MMOE_ISA;  // vectors

// exp: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (the Taylor series to degree 7; its error
// there, 5e-9, is below half a last place). 0 where the result is below 2^-125.5, infinity where it
// is above the largest float, NaN for NaN.
MMOE_INLINE Lanes<float>::vec exponential(Lanes<float>::vec x) {
  using vec = Lanes<float>::vec;
  using ints = Lanes<float>::ints;
  // n from -126 to 129: with one factor 2 apart, the exponent's field goes from 0 to infinity's.
  const vec most = vec{} + 89.2f, least = vec{} - 87.6f;
  x = x > most ? most : x;
  x = x < least ? least : x;
  const vec scaled = x * 1.44269504088896f;
  const vec half = scaled > 0.0f ? vec{} + 0.5f : vec{} - 0.5f;
  const ints n = __builtin_convertvector(scaled + half, ints);
  const vec whole = __builtin_convertvector(n, vec);
  const vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  vec p = vec{} + 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return (p + p) * reinterpret_cast<vec>((n + 126) << 23);
}

MMOE_INLINE Lanes<double>::vec exponential(Lanes<double>::vec x) {
  for (int i = 0; i < Lanes<double>::count; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

// The normal distribution's Phi(x). Abramowitz and Stegun, Handbook of Mathematical Functions,
// 7.1.26: absolute error below 1.5e-7, the rounding of float32.
MMOE_INLINE Lanes<float>::vec normal_cdf(Lanes<float>::vec x) {
  using vec = Lanes<float>::vec;
  const vec z = (x < 0.0f ? -x : x) * 0.707106781186548f;
  const vec t = 1.0f / (1.0f + 0.3275911f * z);
  vec p = vec{} + 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const vec half_erfc = 0.5f * p * t * exponential(-z * z);
  return x < 0.0f ? half_erfc : 1.0f - half_erfc;
}

MMOE_INLINE Lanes<double>::vec normal_cdf(Lanes<double>::vec x) {
  for (int i = 0; i < Lanes<double>::count; ++i) {
    x[i] = 0.5 * __builtin_erfc(-x[i] * 0.70710678118654752440);
  }
  return x;
}

template <typename V>
MMOE_INLINE V activate(V z, Activation activation) {
  switch (activation) {
    case Activation::relu:
      // The condition lets NaN through.
      return z < 0 ? V{} : z;
    case Activation::gelu:
      return z * normal_cdf(z);
    case Activation::silu:
      return z / (1 + exponential(-z));
    default:
      return z;
  }
}

// activation'(z).
template <typename V>
MMOE_INLINE V slope(V z, Activation activation) {
  switch (activation) {
    case Activation::gelu: {
      using S = std::remove_reference_t<decltype(z[0])>;
      const V density = exponential(z * z * static_cast<S>(-0.5));
      return normal_cdf(z) + z * density * static_cast<S>(0.39894228040143267794);
    }
    case Activation::silu: {
      const V s = 1 / (1 + exponential(-z));
      return s * (1 + z * (1 - s));
    }
    default:
      return V{} + 1;
  }
}

template <typename T>
using sums_of = Lanes<typename Row<T>::sum_t>;

// A whole vector, or what is left of a row.
template <typename T>
MMOE_INLINE void store_up_to(int64_t count, typename sums_of<T>::vec value, T* to) {
  count >= sums_of<T>::count ? store(to, value) : store_some(to, value, count);
}

template <typename T>
MMOE_INLINE typename sums_of<T>::vec load_up_to(int64_t count, const T* from) {
  return count >= sums_of<T>::count ? load(from) : load_some(from, count);
}

// What becomes of one vector of sums, those of row m from column n on, before the activation.
template <typename T, typename V>
MMOE_INLINE V with_added(const Finish& f, int64_t m, int64_t n, V sums) {
  using S = typename Row<T>::sum_t;
  if (f.added != nullptr) {
    sums += load_up_to(f.N - n, static_cast<const T*>(f.added) + f.numbers[m] * f.added_step + n);
  }
  // The bias has room for whole vectors.
  return f.bias == nullptr ? sums : sums + load(static_cast<const S*>(f.bias) + n);
}

template <typename T, typename TO>
MMOE_INLINE void finish_as(const Finish& f) {
  using S = typename Row<T>::sum_t;
  for (int64_t m = 0; m < f.M; ++m) {
    const S* c = static_cast<const S*>(f.c) + m * f.c_step;
    TO* y = static_cast<TO*>(f.y) + m * f.y_step;
    TO* kept = f.z == nullptr ? nullptr : static_cast<TO*>(f.z) + m * f.y_step;
    for (int64_t n = 0; n < f.N; n += Lanes<S>::count) {
      // c has room for whole vectors.
      const auto z = with_added<T>(f, m, n, load(c + n));
      if (kept != nullptr) store_up_to(f.N - n, z, kept + n);
      store_up_to(f.N - n, activate(z, f.activation), y + n);
    }
  }
}

// One vector of a product that `is_quick`.
template <typename T, typename V>
MMOE_INLINE void finish_quickly(const Finish& f, int64_t m, int64_t n, V sums) {
  using S = typename Row<T>::sum_t;
  auto z = with_added<T>(f, m, n, reinterpret_cast<typename Lanes<S>::vec>(sums));
  if (f.activation == Activation::relu) z = activate(z, Activation::relu);
  if (f.wide) {
    store_up_to<S>(f.N - n, z, static_cast<S*>(f.y) + m * f.y_step + n);
  } else {
    store_up_to<T>(f.N - n, z, static_cast<T*>(f.y) + m * f.y_step + n);
  }
}

template <typename T>
void finish(const Finish& f) {
  using S = typename Row<T>::sum_t;
  f.wide ? finish_as<T, S>(f) : finish_as<T, T>(f);
}

// ReLU's part needs no arithmetic: the gradient where y is positive, or not a number.
template <typename T>
MMOE_INLINE void derive_relu(const T* grad, const T* y, int64_t count, T* dz) {
  if constexpr (sizeof(T) == sizeof(bf16)) {
    for (int64_t i = 0; i < count; ++i) {
      // A bfloat16 is positive where its bits, as a number with a sign, are; NaN has any sign.
      // Masks, since AVX2 has vectors of them, but not of conditions.
      const auto bits = static_cast<int16_t>(y[i].bits);
      const uint16_t positive = bits > 0 ? 0xffff : 0;
      const uint16_t is_nan = static_cast<int16_t>(bits & 0x7fff) > 0x7f80 ? 0xffff : 0;
      dz[i].bits = grad[i].bits & (positive | is_nan);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) dz[i] = y[i] <= 0 ? 0 : grad[i];
  }
}

template <typename T>
void derive(const void* grad, const void* y, const void* z, Activation activation, int64_t count,
            void* dz) {
  const T* from = static_cast<const T*>(grad);
  T* to = static_cast<T*>(dz);
  if (activation == Activation::relu) {
    return derive_relu(from, static_cast<const T*>(y), count, to);
  }
  const T* told = static_cast<const T*>(z);
  for (int64_t i = 0; i < count; i += sums_of<T>::count) {
    const auto factor = slope(load_up_to(count - i, told + i), activation);
    store_up_to(count - i, load_up_to(count - i, from + i) * factor, to + i);
  }
}

template <typename T>
void add_rows(const void* from, int64_t step, int64_t K, int64_t N, void* sums) {
  using S = typename Row<T>::sum_t;
  for (int64_t n = 0; n < N; n += sums_of<T>::count) {
    const T* column = static_cast<const T*>(from) + n;
    S* sum = static_cast<S*>(sums) + n;
    auto total = load_up_to(N - n, sum);
    for (int64_t k = 0; k < K; ++k) total += load_up_to(N - n, column + k * step);
    store_up_to(N - n, total, sum);
  }
}

template <typename T>
void widen(const void* from, bool wide, int64_t count, void* to) {
  using S = typename Row<T>::sum_t;
  for (int64_t i = 0; i < count; ++i) {
    static_cast<S*>(to)[i] =
        wide ? static_cast<const S*>(from)[i] : Row<T>::to_sum(static_cast<const T*>(from)[i]);
  }
}

}  // namespace MMOE_ISA
}  // namespace mmoe::gemm

// Products for processors with AVX2 and FMA.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../rows.h"
#pragma GCC target("avx2,fma")

#define MMOE_ISA avx2
#define MMOE_VECTOR_BYTES 32
#include "gemm_kernels.h"

namespace mmoe::gemm {
namespace avx2 {
namespace {

struct Float32 {
  using word = float;
  using number = float;
  using sum = float;
  using vec = __m256;
  using bvec = __m256;
  using avec = __m256;
  static constexpr int64_t lanes = 8, depth = 1;
  static constexpr int rows = 6, vecs = 2;
  static constexpr bool can_transpose = false;

  static MMOE_INLINE vec zero() { return _mm256_setzero_ps(); }
  static MMOE_INLINE vec load(const float* p) { return _mm256_loadu_ps(p); }
  static MMOE_INLINE bvec load_b(const float* p) { return _mm256_loadu_ps(p); }
  static MMOE_INLINE void store(float* p, vec v) { _mm256_storeu_ps(p, v); }
  static MMOE_INLINE avec spread(float x) { return _mm256_set1_ps(x); }
  static MMOE_INLINE vec fma(avec a, bvec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
  static MMOE_INLINE number narrow(float x) { return x; }
  static MMOE_INLINE void pack(const float* row, int64_t, word* out) {
    _mm256_storeu_ps(out, _mm256_loadu_ps(row));
  }
  static MMOE_INLINE void pack(const bf16* row, int64_t, word* out) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), wide);
  }
};

struct Float64 {
  using word = double;
  using number = double;
  using sum = double;
  using vec = __m256d;
  using bvec = __m256d;
  using avec = __m256d;
  static constexpr int64_t lanes = 4, depth = 1;
  static constexpr int rows = 6, vecs = 2;
  static constexpr bool can_transpose = false;

  static MMOE_INLINE vec zero() { return _mm256_setzero_pd(); }
  static MMOE_INLINE vec load(const double* p) { return _mm256_loadu_pd(p); }
  static MMOE_INLINE bvec load_b(const double* p) { return _mm256_loadu_pd(p); }
  static MMOE_INLINE void store(double* p, vec v) { _mm256_storeu_pd(p, v); }
  static MMOE_INLINE avec spread(double x) { return _mm256_set1_pd(x); }
  static MMOE_INLINE vec fma(avec a, bvec b, vec c) { return _mm256_fmadd_pd(a, b, c); }
  static MMOE_INLINE number narrow(double x) { return x; }
  static MMOE_INLINE void pack(const double* row, int64_t, word* out) {
    _mm256_storeu_pd(out, _mm256_loadu_pd(row));
  }
};

}  // namespace
}  // namespace avx2

const Kernels avx2_f32 = avx2::kernels<avx2::Float32, float>();
const Kernels avx2_f64 = avx2::kernels<avx2::Float64, double>();
const Kernels avx2_bf16 = avx2::kernels<avx2::Float32, bf16>();

}  // namespace mmoe::gemm
#endif

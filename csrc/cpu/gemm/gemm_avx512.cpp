// Products for processors with AVX-512 (F, BW, DQ, VL).

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of the deliberately undefined registers in its own header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../rows.h"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")

#define MMOE_ISA avx512
#define MMOE_VECTOR_BYTES 64
#include "gemm_avx512.h"
#include "gemm_kernels.h"

namespace mmoe::gemm {
namespace avx512 {
namespace {

struct Float32 {
  using word = float;
  using number = float;
  using sum = float;
  using vec = __m512;
  using bvec = __m512;
  using avec = __m512;
  static constexpr int64_t lanes = 16, depth = 1;
  static constexpr int rows = 12, vecs = 2;
  static constexpr bool can_transpose = true;

  static MMOE_INLINE vec zero() { return _mm512_setzero_ps(); }
  static MMOE_INLINE vec load(const float* p) { return _mm512_loadu_ps(p); }
  static MMOE_INLINE bvec load_b(const float* p) { return _mm512_loadu_ps(p); }
  static MMOE_INLINE void store(float* p, vec v) { _mm512_storeu_ps(p, v); }
  static MMOE_INLINE avec spread(float x) { return _mm512_set1_ps(x); }
  static MMOE_INLINE vec fma(avec a, bvec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
  static MMOE_INLINE number narrow(float x) { return x; }

  static MMOE_INLINE __m512i words_at(const float* p) { return _mm512_loadu_si512(p); }
  static MMOE_INLINE __m512i words_at(const bf16* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
  }
  template <typename T>
  static MMOE_INLINE void pack(const T* row, int64_t, word* out) {
    _mm512_storeu_si512(out, words_at(row));
  }
  template <typename T>
  static MMOE_INLINE void transpose(const T* data, int64_t step, word* out, int64_t out_step) {
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = words_at(data + i * step);
    transpose_registers(r);
    store_registers(r, out, out_step);
  }
};

struct Float64 {
  using word = double;
  using number = double;
  using sum = double;
  using vec = __m512d;
  using bvec = __m512d;
  using avec = __m512d;
  static constexpr int64_t lanes = 8, depth = 1;
  static constexpr int rows = 12, vecs = 2;
  static constexpr bool can_transpose = false;

  static MMOE_INLINE vec zero() { return _mm512_setzero_pd(); }
  static MMOE_INLINE vec load(const double* p) { return _mm512_loadu_pd(p); }
  static MMOE_INLINE bvec load_b(const double* p) { return _mm512_loadu_pd(p); }
  static MMOE_INLINE void store(double* p, vec v) { _mm512_storeu_pd(p, v); }
  static MMOE_INLINE avec spread(double x) { return _mm512_set1_pd(x); }
  static MMOE_INLINE vec fma(avec a, bvec b, vec c) { return _mm512_fmadd_pd(a, b, c); }
  static MMOE_INLINE number narrow(double x) { return x; }
  static MMOE_INLINE void pack(const double* row, int64_t, word* out) {
    _mm512_storeu_pd(out, _mm512_loadu_pd(row));
  }
};

}  // namespace
}  // namespace avx512

const Kernels avx512_f32 = avx512::kernels<avx512::Float32, float>();
const Kernels avx512_f64 = avx512::kernels<avx512::Float64, double>();
const Kernels avx512_bf16 = avx512::kernels<avx512::Float32, bf16>();

}  // namespace mmoe::gemm
#endif

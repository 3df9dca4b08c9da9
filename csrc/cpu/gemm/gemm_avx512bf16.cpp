// Products in bfloat16 for processors that multiply pairs of them (AVX512_BF16).

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of the deliberately undefined registers in its own header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../rows.h"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")

#define MMOE_ISA avx512bf16
#define MMOE_VECTOR_BYTES 64
#include "gemm_avx512.h"
#include "gemm_kernels.h"

namespace mmoe::gemm {
namespace avx512bf16 {
namespace {

// A word holds the numbers 2k (lower half) and 2k + 1.
struct PairBf16 {
  using word = uint32_t;
  using number = uint16_t;
  using sum = float;
  using vec = __m512;
  using bvec = __m512bh;
  using avec = __m512bh;
  static constexpr int64_t lanes = 16, depth = 2;
  static constexpr int rows = 12, vecs = 2;
  static constexpr bool can_transpose = true;

  static MMOE_INLINE vec zero() { return _mm512_setzero_ps(); }
  static MMOE_INLINE vec load(const float* p) { return _mm512_loadu_ps(p); }
  static MMOE_INLINE bvec load_b(const uint32_t* p) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
  }
  static MMOE_INLINE void store(float* p, vec v) { _mm512_storeu_ps(p, v); }
  static MMOE_INLINE avec spread(uint32_t x) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x)));
  }
  static MMOE_INLINE vec fma(avec a, bvec b, vec c) { return _mm512_dpbf16_ps(c, a, b); }
  static MMOE_INLINE number narrow(float x) { return Row<bf16>::from_sum(x).bits; }

  // 16 numbers as the lower halves of words.
  static MMOE_INLINE __m512i halves_at(const bf16* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static MMOE_INLINE __m512i halves_at(const float* p) {
    const __m256bh narrow = _mm512_cvtneps_pbh(_mm512_loadu_ps(p));
    return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(narrow));
  }
  template <typename T>
  static MMOE_INLINE void pack(const T* row, int64_t step, word* out) {
    const __m512i high = _mm512_slli_epi32(halves_at(row + step), 16);
    _mm512_storeu_si512(out, _mm512_or_si512(halves_at(row), high));
  }

  // 32 neighbours along k: 16 words.
  static MMOE_INLINE __m512i words_at(const bf16* p) { return _mm512_loadu_si512(p); }
  static MMOE_INLINE __m512i words_at(const float* p) {
    return reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p)));
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

}  // namespace
}  // namespace avx512bf16

const Kernels avx512bf16_bf16 = avx512bf16::kernels<avx512bf16::PairBf16, bf16>();

}  // namespace mmoe::gemm
#endif

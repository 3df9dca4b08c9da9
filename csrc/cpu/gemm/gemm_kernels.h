// The kernels of gemm.h for one instruction set, included by one source file for each. That file
// defines, in its own namespace MMOE_ISA, the types Float32, Float64 and perhaps PairBf16:
//
//   word, sum    what A and B are made of, and C
//   vec          a vector of `lanes` sums; bvec the words of B that go with it
//   rows, vecs   the register block: rows of A times vecs vectors of B
//   load, load_b, store, fma(a word, bvec, vec)
//
// and MMOE_VECTOR_BYTES, the vectors' width. Nothing here may use the standard library's templates:
// an instance compiled for AVX-512 could be the one that the linker keeps for everybody.

#include <cstring>

#include "../rows.h"
#include "gemm.h"
#include "gemm_finish.h"

#define MMOE_UNROLL _Pragma("GCC unroll 16")

namespace mmoe::gemm {
namespace MMOE_ISA {

MMOE_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- One block in registers: MR rows times NV vectors.

// Where a block of results is: row m at `row + m`, column n of C at `column + n`.
struct Place {
  int64_t row, column;
};

template <class I, int MR, int NV, bool ROWS, typename T>
MMOE_INLINE void block(const char* a, int64_t a_step, const typename I::word* b, int64_t b_step,
                       int64_t K, const Product& p, Place at) {
  auto* c = static_cast<typename I::sum*>(p.c) + at.row * p.c_step + at.column;
  const int64_t c_step = p.c_step;
  const bool accumulate = p.accumulate;
  using word = typename I::word;
  typename I::vec acc[MR][NV];
  MMOE_UNROLL
  for (int m = 0; m < MR; ++m) {
    MMOE_UNROLL
    for (int v = 0; v < NV; ++v) {
      acc[m][v] = accumulate ? I::load(c + m * c_step + v * I::lanes) : I::zero();
    }
  }
  for (int64_t k = 0; k < K; ++k) {
    typename I::bvec panel[NV];
    MMOE_UNROLL
    for (int v = 0; v < NV; ++v) panel[v] = I::load_b(b + k * b_step + v * I::lanes);
    MMOE_UNROLL
    for (int m = 0; m < MR; ++m) {
      word number;
      const char* from = ROWS ? a + m * a_step + k * static_cast<int64_t>(sizeof(word))
                              : a + (k * MR + m) * static_cast<int64_t>(sizeof(word));
      std::memcpy(&number, from, sizeof number);
      const typename I::avec spread = I::spread(number);
      MMOE_UNROLL
      for (int v = 0; v < NV; ++v) acc[m][v] = I::fma(spread, panel[v], acc[m][v]);
    }
  }
  if (p.finish != nullptr) {
    MMOE_UNROLL
    for (int v = 0; v < NV; ++v) {
      MMOE_UNROLL
      for (int m = 0; m < MR; ++m) {
        finish_quickly<T>(*p.finish, at.row + m, at.column + v * I::lanes, acc[m][v]);
      }
    }
    return;
  }
  MMOE_UNROLL
  for (int m = 0; m < MR; ++m) {
    MMOE_UNROLL
    for (int v = 0; v < NV; ++v) I::store(c + m * c_step + v * I::lanes, acc[m][v]);
  }
}

template <class I, int NV, bool ROWS, typename T, int MR = I::rows>
MMOE_INLINE void block_of(int64_t rows, const char* a, int64_t a_step, const typename I::word* b,
                          int64_t b_step, int64_t K, const Product& p, Place at) {
  if (rows == MR) {
    block<I, MR, NV, ROWS, T>(a, a_step, b, b_step, K, p, at);
  } else if constexpr (MR > 1) {
    block_of<I, NV, ROWS, T, MR - 1>(rows, a, a_step, b, b_step, K, p, at);
  }
}

// Panels are of I::vecs vectors, the last one perhaps of fewer.
template <class I, bool ROWS, typename T, int NV = I::vecs>
MMOE_INLINE void panel_of(int64_t vecs, int64_t rows, const char* a, const typename I::word* b,
                          const Product& p, Place at) {
  if (vecs == NV) {
    block_of<I, NV, ROWS, T>(rows, a, p.a_step, b, NV * I::lanes, p.K, p, at);
  } else if constexpr (NV > 1) {
    panel_of<I, ROWS, T, NV - 1>(vecs, rows, a, b, p, at);
  }
}

MMOE_INLINE void fetch(const Ahead& ahead) {
  for (int64_t r = 0; r < ahead.rows; ++r) {
    const char* row = ahead.data + r * ahead.step;
    for (int64_t at = 0; at < ahead.bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}

template <class I, bool ROWS, typename T>
void multiply_as(const Product& p) {
  using word = typename I::word;
  const auto* b = static_cast<const word*>(p.b);
  constexpr int64_t panel = I::vecs * I::lanes;
  const int64_t panels = (p.N + panel - 1) / panel;
  const Parts groups(p.M, I::rows);
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t m = groups.begin(g), rows = groups.begin(g + 1) - m;
    const char* a = static_cast<const char*>(p.a) +
                    m * (ROWS ? p.a_step : p.K * static_cast<int64_t>(sizeof(word)));
    for (int64_t n = 0; n < p.N; n += I::vecs * I::lanes) {
      // A few rows before every block, since the processor remembers only so many requests.
      for (const Ahead& ahead : p.ahead) {
        if (ahead.rows > 0) fetch(ahead.part(g * panels + n / panel, groups.count * panels));
      }
      const int64_t vecs = smaller((p.N - n + I::lanes - 1) / I::lanes, I::vecs);
      panel_of<I, ROWS, T>(vecs, rows, a, b + n * p.K, p, {m, n});
    }
  }
}

template <class I, typename T>
void multiply(const Product& p) {
  p.a_rows ? multiply_as<I, true, T>(p) : multiply_as<I, false, T>(p);
}

// ---- Packing. T is the type of a number in memory.

template <class I, typename T>
MMOE_INLINE typename I::number number_of(T value) {
  return I::narrow(Row<T>::to_sum(value));
}

// One word of B from the numbers (k, n) on, whatever the layout.
template <class I, typename T>
MMOE_INLINE typename I::word word_of(const T* data, int64_t along_k, int64_t left) {
  if constexpr (I::depth == 1) {
    return number_of<I>(data[0]);
  } else {
    const uint32_t low = number_of<I>(data[0]);
    const uint32_t high = left > 1 ? number_of<I>(data[along_k]) : 0;
    return low | high << 16;
  }
}

// Panels from rows of B: a row of memory at a time, which is how it streams in.
template <class I, typename T>
MMOE_INLINE void pack_panels(const T* data, int64_t step, int64_t K, int64_t N,
                             typename I::word* out) {
  constexpr int64_t panel = I::vecs * I::lanes;
  const int64_t words = (K + I::depth - 1) / I::depth;
  for (int64_t k = 0; k < K; k += I::depth) {
    const T* row = data + k * step;
    for (int64_t n = 0; n < N; n += I::lanes) {
      // The panel's width in memory: whole vectors.
      const int64_t first = n / panel * panel;
      const int64_t width = smaller(panel, (N - first + I::lanes - 1) / I::lanes * I::lanes);
      typename I::word* to = out + first * words + k / I::depth * width + (n - first);
      if (n + I::lanes <= N && (I::depth == 1 || k + 1 < K)) {
        I::pack(row + n, step, to);
      } else {
        for (int64_t i = 0; i < I::lanes; ++i) {
          to[i] = n + i < N ? word_of<I>(row + n + i, step, K - k) : 0;
        }
      }
    }
  }
}

template <class I, typename T>
MMOE_INLINE void pack_transposed_panel(const T* data, int64_t step, int64_t K, int64_t width,
                                       int64_t padded, typename I::word* out) {
  const int64_t words = (K + I::depth - 1) / I::depth;
  int64_t n = 0;
  for (; n + I::lanes <= width; n += I::lanes) {
    int64_t k = 0;
    if constexpr (I::can_transpose) {
      for (; (k + I::lanes) * I::depth <= K; k += I::lanes) {
        I::transpose(data + n * step + k * I::depth, step, out + k * padded + n, padded);
      }
    }
    for (; k < words; ++k) {
      for (int64_t i = 0; i < I::lanes; ++i) {
        out[k * padded + n + i] =
            word_of<I>(data + (n + i) * step + k * I::depth, 1, K - k * I::depth);
      }
    }
  }
  for (; n < padded; ++n) {
    for (int64_t k = 0; k < words; ++k) {
      out[k * padded + n] =
          n < width ? word_of<I>(data + n * step + k * I::depth, 1, K - k * I::depth) : 0;
    }
  }
}

template <class I, typename T>
MMOE_INLINE void pack_b_of(const Matrix& b, int64_t K, int64_t N, typename I::word* out) {
  const T* data = static_cast<const T*>(b.data);
  if (!b.transposed) return pack_panels<I>(data, b.step, K, N, out);
  const int64_t words = (K + I::depth - 1) / I::depth;
  for (int64_t n = 0; n < N; n += I::vecs * I::lanes) {
    const int64_t width = smaller(N - n, I::vecs * I::lanes);
    const int64_t padded = (width + I::lanes - 1) / I::lanes * I::lanes;
    pack_transposed_panel<I>(data + n * b.step, b.step, K, width, padded, out + n * words);
  }
}

// Where words are sums, float32 weights beside bfloat16 rows are rounded here: elsewhere the word
// is too small for more.
template <class I, typename T>
MMOE_INLINE void round_words(int64_t count, typename I::word* words) {
  if constexpr (sizeof(typename I::number) > sizeof(T)) {
    for (int64_t i = 0; i < count; ++i) words[i] = Row<T>::to_sum(Row<T>::from_sum(words[i]));
  }
}

template <class I, typename T>
void pack_b(const Matrix& b, int64_t K, int64_t N, void* out) {
  auto* words = static_cast<typename I::word*>(out);
  if (!b.wide) return pack_b_of<I, T>(b, K, N, words);
  pack_b_of<I, typename Row<T>::sum_t>(b, K, N, words);
  if (b.rounded) round_words<I, T>(K * ((N + I::lanes - 1) / I::lanes * I::lanes), words);
}

template <class I, typename T>
void copy_rows(const void* from, int64_t step, int64_t M, int64_t K, void* to, int64_t to_step) {
  for (int64_t m = 0; m < M; ++m) {
    const T* row = static_cast<const T*>(from) + m * step;
    auto* words = reinterpret_cast<typename I::word*>(static_cast<char*>(to) + m * to_step);
    if constexpr (sizeof(typename I::number) == sizeof(T)) {
      std::memcpy(words, row, static_cast<size_t>(K) * sizeof(T));
      if (K % I::depth) words[K / I::depth] = word_of<I>(row + K - 1, 1, 1);
    } else {
      for (int64_t k = 0; k < K; ++k) words[k] = number_of<I>(row[k]);
    }
  }
}

template <class I, typename T>
void pack_columns(const void* from, int64_t step, int64_t K, int64_t M, void* out) {
  const Parts groups(M, I::rows);
  const int64_t depth = (K + I::depth - 1) / I::depth;
  // Groups begin where Parts::begin says, without a division for each: of narrow layers these took
  // as long as the product
  const int64_t least = groups.count > 0 ? M / groups.count : 0, more = M - least * groups.count;
  // Row after row, since a column's numbers lie a row apart: too far for the caches' prefetching.
  for (int64_t k = 0; k < K; k += I::depth) {
    const T* row = static_cast<const T*>(from) + k * step;
    int64_t width = 0, left = 0;
    for (int64_t m = 0; m < M; m += width) {
      left += more;
      width = least + (left >= groups.count ? 1 : 0);
      if (left >= groups.count) left -= groups.count;
      auto* words = static_cast<typename I::word*>(out) + m * depth + k / I::depth * width;
      if constexpr (I::lanes >= I::rows) {
        // A whole vector, where there is one and what follows it is still to be written.
        if (m + I::lanes <= M && k + 2 * I::depth <= K) {
          I::pack(row + m, step, words);
          continue;
        }
      }
      for (int64_t i = 0; i < width; ++i) words[i] = word_of<I>(row + m + i, step, K - k);
    }
  }
}

template <class I, typename T>
constexpr Kernels kernels() {
  Kernels k = {};
  k.mr = I::rows;
  k.nr = I::vecs * I::lanes;
  static_assert(I::lanes == sums_of<T>::count, "c has room for whole vectors of either");
  k.lanes = I::lanes;
  k.word = sizeof(typename I::word);
  k.depth = I::depth;
  k.size = sizeof(T);
  k.sum_size = sizeof(typename I::sum);
  k.direct = sizeof(typename I::number) == sizeof(T);
  k.pack_b = pack_b<I, T>;
  k.copy_rows = copy_rows<I, T>;
  k.pack_columns = pack_columns<I, T>;
  k.multiply = multiply<I, T>;
  k.finish = finish<T>;
  k.derive = derive<T>;
  k.add_rows = add_rows<T>;
  k.widen = widen<T>;
  return k;
}

}  // namespace MMOE_ISA
}  // namespace mmoe::gemm

// The loops of unpermute; see each_isa.h.

#include "vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

using permutation::Scatter;

// Neighbouring numbers of a row, as many as are added at once.
template <typename T>
struct Run {
  static constexpr int64_t count = Lanes<T>::count;
  typename Lanes<T>::vec sum = {};

  MMOE_INLINE void add(const T* p) { sum += load(p); }
  MMOE_INLINE void write(T* p) const { store(p, sum); }
};

// Two bfloat16 are the halves of a word, and either is a float once the other is cleared: cheaper
// than widening them in their order. (Little-endian, as is every processor torch runs on.)
template <>
struct Run<bf16> {
  static constexpr int64_t count = 2 * Lanes<float>::count;
  using vec = Lanes<float>::vec;
  vec even = {}, odd = {};

  MMOE_INLINE void add(const bf16* p) {
    words pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    even += reinterpret_cast<vec>(pairs << 16);
    odd += reinterpret_cast<vec>(pairs & 0xffff0000u);
  }
  MMOE_INLINE void write(bf16* p) const {
    const words pairs = (rounded(even) >> 16) | (rounded(odd) & 0xffff0000u);
    std::memcpy(p, &pairs, sizeof pairs);
  }
};

// out = sum of `count` rows, in their order. M is the count where it is known when compiling.
template <typename T, int M>
MMOE_INLINE void add_rows(const T* const* rows, int64_t count, int64_t width, T* out) {
  constexpr int64_t step = Run<T>::count;
  const int64_t used = M > 0 ? M : count;
  int64_t o = 0;
  for (; o + step <= width; o += step) {
    Run<T> run;
    for (int64_t i = 0; i < used; ++i) run.add(rows[i] + o);
    run.write(out + o);
  }
  if (o == width) return;
  Run<T> run;
  T some[step] = {};
  for (int64_t i = 0; i < used; ++i) {
    std::copy(rows[i] + o, rows[i] + width, some);
    run.add(some);
  }
  run.write(some);
  std::copy(some, some + (width - o), out + o);
}

// Most samples have few pairs.
template <typename T>
MMOE_INLINE void add_rows_any(const T* const* rows, int64_t count, int64_t width, T* out) {
  if (width == 0) return;  // no memory, and memcpy takes no null pointer
  switch (count) {
    case 1:
      std::memcpy(static_cast<void*>(out), rows[0], static_cast<size_t>(width) * sizeof(T));
      return;
    case 2:
      return add_rows<T, 2>(rows, count, width, out);
    case 3:
      return add_rows<T, 3>(rows, count, width, out);
    case 4:
      return add_rows<T, 4>(rows, count, width, out);
    default:
      return add_rows<T, 0>(rows, count, width, out);
  }
}

MMOE_INLINE void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
}

template <typename T>
void scatter_rows(const Scatter<T>& d, int64_t begin, int64_t end, int32_t* pairs, const T** from) {
  const int64_t bytes = d.D * static_cast<int64_t>(sizeof(T));
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t i = (b + 1) * d.N; i < (b + 2) * d.N && b + 1 < d.B; ++i) {
      if (d.slots[i] < 0) continue;
      prefetch_row(reinterpret_cast<const char*>(d.y + d.slots[i] * d.stride), bytes);
    }
    const int64_t count = distinct(d.slots + b * d.N, d.N, pairs);
    for (int64_t i = 0; i < count; ++i) from[i] = d.y + pairs[i] * d.stride;
    add_rows_any(from, count, d.D, d.out + b * d.D);
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

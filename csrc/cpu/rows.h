// Numbers of rows and the type their sums are taken in; vectors of them are in vectors.h.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

// What a kernel calls must be inlined into it, or it would be compiled for the oldest processor.
#define MMOE_INLINE inline __attribute__((always_inline))

namespace mmoe {

constexpr int64_t kWidestVector = 64;  // bytes, of any instruction set

struct bf16 {
  uint16_t bits;
};

template <typename T>
struct Row;

template <>
struct Row<float> {
  using sum_t = float;
  static MMOE_INLINE float to_sum(float x) { return x; }
  static MMOE_INLINE float from_sum(float x) { return x; }
};

template <>
struct Row<double> {
  using sum_t = double;
  static MMOE_INLINE double to_sum(double x) { return x; }
  static MMOE_INLINE double from_sum(double x) { return x; }
};

template <>
struct Row<bf16> {
  using sum_t = float;

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

template <typename T>
MMOE_INLINE void fill_zero(T* p, int64_t count) {
  if (count > 0) std::memset(static_cast<void*>(p), 0, static_cast<size_t>(count) * sizeof(T));
}

// Sums of T in as many whole vectors as hold `count`, whichever the instruction set.
template <typename T>
constexpr int64_t whole_vectors(int64_t count) {
  constexpr int64_t lanes = kWidestVector / sizeof(typename Row<T>::sum_t);
  return (count + lanes - 1) / lanes * lanes;
}

// Rows a thread takes at least, so that a small batch does not pay for waking threads.
inline int64_t grain(int64_t numbers_per_row) {
  constexpr int64_t numbers_per_task = 1 << 15;  // about 10 us of work
  return std::max<int64_t>(1, numbers_per_task / std::max<int64_t>(1, numbers_per_row));
}

}  // namespace mmoe

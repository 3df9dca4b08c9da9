// Rows that travel between ranks, on CUDA: a warp for each row, which starts at any byte of a
// message. Where both rows allow it, a lane moves several numbers at once.

#pragma once

#include "../../exchange.h"
#include "../common.cuh"

namespace mmoe::exchange {

inline Links read_links(const Tensor& links) {
  return {static_cast<const int64_t*>(links.const_data_ptr()), links.size(0) - 1};
}

// All that links count has int32 numbers.
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

// A message on the GPU. What links_WL says of it is on the GPU too, so each access is held against
// its length: links of another exchange stop the kernel, and reach no memory of others.
template <typename Byte>
struct Message {
  Byte* data;
  int64_t bytes;

  // `count` bytes from `first` on.
  __device__ Byte* at(int64_t first, int64_t count) const {
    MMOE_DEVICE_CHECK(first >= 0 && count >= 0 && first <= bytes - count,
                      "message: expected the bytes that links_WL counts", bytes);
    return data + first;
  }
};

inline Message<const char> read_message(const Tensor& message) {
  return {static_cast<const char*>(message.const_data_ptr()), message.numel()};
}
inline Message<char> write_message(const Tensor& message) {
  return {static_cast<char*>(message.mutable_data_ptr()), message.numel()};
}

// As it is read: nothing in a message lies at an odd byte, unless it itself does.
inline Tensor even(const Tensor& message) {
  const bool is_odd = reinterpret_cast<uintptr_t>(message.const_data_ptr()) % 2 == 1;
  return is_odd ? torch::stable::clone(message) : dense(message);
}

// What the CPU refuses before it begins. Here the first block of a kernel looks, beside the others.
__device__ inline void check_table(const Links& links) {
  for (int64_t i = threadIdx.x; i < (links.W + 1) * kColumns; i += blockDim.x) {
    const int64_t at = links.table[i], before = i < kColumns ? 0 : links.table[i - kColumns];
    MMOE_DEVICE_CHECK(before <= at && at <= (i < kColumns ? 0 : kMost),
                      "links_WL: expected numbers that rise from 0", at);
  }
  for (int64_t w = threadIdx.x; w < links.W; w += blockDim.x) {
    const int64_t picks = links.count(w, kPicks), weights = links.count(w, kWeights);
    MMOE_DEVICE_CHECK(weights == 0 || weights == picks,
                      "links_WL: expected a weight for all picks of a rank, or for none", weights);
  }
}

// The same for a message: its length, and that no more rows and picks travel than there are.
__device__ inline void check_layout(const Layout& layout, int64_t bytes, int64_t rows,
                                    int64_t picks) {
  const Links& links = layout.links;
  check_table(links);
  if (threadIdx.x > 0) return;
  MMOE_DEVICE_CHECK(links.first(links.W, kRows) <= rows,
                    "links_WL: expected at most the rows that there are", rows);
  MMOE_DEVICE_CHECK(links.first(links.W, kPicks) <= picks,
                    "links_WL: expected at most the picks that there are", picks);
  MMOE_DEVICE_CHECK(layout.begin(links.W) == bytes,
                    "message: expected the bytes that links_WL counts", bytes);
}

// Calls run with a value of the type that rows have, and one of the type that they travel in.
template <typename Run>
void for_types(ScalarType dtype, ScalarType wire, const Run& run) {
  for_type(dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, double>) {
      if (wire == ScalarType::Float) return run(type, float{});
    }
    if (wire == ScalarType::BFloat16) return run(type, __nv_bfloat16{});
    run(type, type);
  });
}

// A number at any byte: units of two bytes, as nothing in a message lies at an odd one.
template <typename T>
__device__ inline T read_number(const char* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0) return *reinterpret_cast<const T*>(p);
  union {
    uint16_t half[sizeof(T) / 2];
    T number;
  } value;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
    value.half[i] = reinterpret_cast<const uint16_t*>(p)[i];
  }
  return value.number;
}

template <typename T>
__device__ inline void write_number(char* p, T number) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0) {
    *reinterpret_cast<T*>(p) = number;
    return;
  }
  union {
    uint16_t half[sizeof(T) / 2];
    T number;
  } value;
  value.number = number;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
    reinterpret_cast<uint16_t*>(p)[i] = value.half[i];
  }
}

// In the type of T's sums, from and to any type.
template <typename S, typename F>
__device__ inline S widened(F x) {
  return static_cast<S>(to_sum(x));
}

template <typename T, typename S>
__device__ inline T narrowed(S x) {
  return from_sum<T>(static_cast<sum_t<T>>(x));
}

// As a number of type T would keep it.
template <typename T, typename S>
__device__ inline S rounded_to(S x) {
  return widened<S>(narrowed<T>(x));
}

// Calls run(column) for the columns of this lane.
template <typename Run>
__device__ inline void for_columns(int64_t width, const Run& run) {
  for (int64_t o = threadIdx.x % kWarp; o < width; o += kWarp) run(o);
}

__device__ inline int64_t warp_number() {
  return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
}

// Whether pick i is the first among the earlier ones that names the same number.
__device__ inline bool is_first(const int32_t* numbers, int64_t i) {
  for (int64_t j = 0; j < i; ++j) {
    if (numbers[j] == numbers[i]) return false;
  }
  return true;
}

constexpr uint32_t kNone = ~0u;

// The smallest number above `last` among a row's picks, the same in all lanes; kNone: no more.
__device__ inline uint32_t next_number(const int32_t* numbers, int64_t count, int32_t last) {
  uint32_t next = kNone;
  for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp) {
    if (numbers[i] > last) next = min(next, static_cast<uint32_t>(numbers[i]));
  }
  return __reduce_min_sync(~0u, next);
}

}  // namespace mmoe::exchange

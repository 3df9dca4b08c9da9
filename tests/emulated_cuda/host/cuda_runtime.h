// The names of CUDA C++ and its runtime that the kernels use.

#pragma once

#include <math.h>

#include <algorithm>
#include <limits>

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __restrict__

#define threadIdx ::emulated::thread_index
#define blockIdx ::emulated::block_index
#define blockDim ::emulated::block_size
#define gridDim ::emulated::grid_size

#define printf ::emulated::device_printf
#define __trap() ::emulated::trap("the kernel stopped itself")
#define __syncthreads() ::emulated::synchronize_block(EMULATED_HERE)
#define __syncwarp() ::emulated::synchronize_warp(EMULATED_HERE, ~0u)
#define __shfl_xor_sync(mask, value, step) ::emulated::shuffle_xor(EMULATED_HERE, mask, value, step)
#define __shfl_sync(mask, value, from) ::emulated::shuffle(EMULATED_HERE, mask, value, from)
#define __ballot_sync(mask, value) ::emulated::ballot(EMULATED_HERE, mask, value)
#define __reduce_min_sync(mask, value) ::emulated::reduce_min(EMULATED_HERE, mask, value)

using dim3 = ::emulated::Dim3;
using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

enum { cudaDevAttrComputeCapabilityMajor, cudaDevAttrMultiProcessorCount };
enum {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout,
  cudaSharedmemCarveoutMaxShared = 100
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, int which, int) {
  return *value = ::emulated::attribute(which), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  if (to == nullptr || bytes == 0) return cudaErrorInvalidValue;  // not every driver takes it
  std::memset(to, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = 0, cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, int which, int value) {
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) ::emulated::reserve(value);
  return cudaSuccess;
}

// As CUDA has them for mixed types; of floats the one that is a number.
template <typename A, typename B>
inline auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>)
    return fmin(static_cast<C>(a), static_cast<C>(b));
  else
    return std::min(static_cast<C>(a), static_cast<C>(b));
}
template <typename A, typename B>
inline auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>)
    return fmax(static_cast<C>(a), static_cast<C>(b));
  else
    return std::max(static_cast<C>(a), static_cast<C>(b));
}

inline int __clz(unsigned x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

inline uint32_t atomicOr(uint32_t* at, uint32_t bits) {
  const uint32_t before = *at;
  *at |= bits;
  return before;
}
template <typename T>
inline T atomicExch(T* at, T value) {
  return std::swap(*at, value), value;
}
template <typename T>
inline T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }

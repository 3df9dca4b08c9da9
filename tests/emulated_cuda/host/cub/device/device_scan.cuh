// CUB's prefix sum.

#pragma once

#include "../../cuda_runtime.h"

namespace cub {

struct DeviceScan {
  // Without room it says how much it needs, as CUB does.
  template <typename In, typename Out>
  static cudaError_t ExclusiveSum(void* room, size_t& bytes, const In* in, Out* out, int64_t number,
                                  cudaStream_t) {
    constexpr size_t needed = 767;  // whatever it is, never 0
    if (room == nullptr) return bytes = needed, cudaSuccess;
    if (bytes < needed) return 1;
    std::memset(room, 0xff, needed);  // it is written to
    Out sum = 0;
    for (int64_t i = 0; i < number; ++i) {
      const Out next = sum + in[i];  // `in` and `out` may be the same
      out[i] = sum;
      sum = next;
    }
    return cudaSuccess;
  }
};

}  // namespace cub

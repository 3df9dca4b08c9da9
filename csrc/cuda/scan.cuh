// A prefix sum over the whole GPU.

#pragma once

#include <cub/device/device_scan.cuh>

#include "common.cuh"

namespace mmoe {

// Replaces each of the first `number` counts by the sum of those before it.
inline void scan(const Tensor& counts, int64_t number, cudaStream_t stream) {
  auto* at = static_cast<int32_t*>(counts.mutable_data_ptr());
  size_t bytes = 0;
  STD_CUDA_CHECK(cub::DeviceScan::ExclusiveSum(nullptr, bytes, at, at, number, stream));
  // Without an address for its room, the second call would tell the size again and sum nothing.
  const Tensor room = empty(counts, {std::max<int64_t>(1, bytes)}, ScalarType::Byte);
  void* to = room.mutable_data_ptr();
  STD_CUDA_CHECK(cub::DeviceScan::ExclusiveSum(to, bytes, at, at, number, stream));
}

}  // namespace mmoe

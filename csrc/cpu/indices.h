// Checks of index tensors, over all their numbers.

#pragma once

#include "../checks.h"

namespace mmoe {

// Refuses an index outside [-1, limit).
inline void check_indices(const char* name, const char* noun, const Tensor& indices,
                          int64_t limit) {
  const auto* index = static_cast<const int32_t*>(indices.const_data_ptr());
  const int64_t count = indices.numel();
  const auto most =
      static_cast<uint32_t>(std::min<int64_t>(limit, std::numeric_limits<int32_t>::max()));
  // One comparison for both ends, and no early exit, so that the compiler vectorises the loop.
  uint32_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong |= static_cast<uint32_t>(index[i]) + 1u > most;
  if (!wrong) return;
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] >= -1 && index[i] < limit) continue;
    fail(name, ": expected ", noun, " in [0, ", limit, ") or -1, got ", index[i]);
  }
}

}  // namespace mmoe

// What loops over a row's experts share: lanes' numbers, and masks of the experts that a gate sees.

#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "../checks.h"

namespace mmoe {

// A whole number as wide as a lane, for its mask.
template <typename T>
using mask_of = std::conditional_t<std::is_same_v<T, double>, int64_t, int32_t>;

// The numbers of a vector's lanes.
template <typename I>
constexpr I kCounting[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Each gate's visible experts as lanes' masks, hidden beyond the last.
template <typename T>
std::vector<mask_of<T>> visible_masks(const Tensor& visibility, int64_t padded) {
  const auto* visible = static_cast<const bool*>(visibility.const_data_ptr());
  const int64_t G = visibility.size(0), E = visibility.size(1);
  std::vector<mask_of<T>> masks(G * padded, 0);
  for (int64_t g = 0; g < G; ++g) {
    for (int64_t e = 0; e < E; ++e) masks[g * padded + e] = visible[g * E + e] ? -1 : 0;
  }
  return masks;
}

}  // namespace mmoe

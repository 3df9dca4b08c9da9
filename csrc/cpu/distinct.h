// The distinct rows among the few that a sample's picks name.

#pragma once

#include <algorithm>
#include <cstdint>

namespace mmoe {

// Writes the distinct numbers >= 0 among `count` in increasing order; returns how many.
inline int64_t distinct(const int32_t* slots, int64_t count, int32_t* found) {
  constexpr int64_t few = 32;  // up to here insertion beats std::sort
  int64_t used = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] < 0) continue;
    int64_t at = used;
    if (count <= few) {
      while (at > 0 && found[at - 1] > slots[i]) --at;
      if (at > 0 && found[at - 1] == slots[i]) continue;
      std::copy_backward(found + at, found + used, found + used + 1);
    }
    found[at] = slots[i];
    ++used;
  }
  if (count <= few) return used;
  std::sort(found, found + used);
  return std::unique(found, found + used) - found;
}

}  // namespace mmoe

// What the loops of dense_combine are called with, by it and by mixed_towers.

#pragma once

#include <type_traits>
#include <vector>

#include "../checks.h"
#include "rows.h"

namespace mmoe::combination {

constexpr int64_t kBlockRows = 16;    // rows of one expert read in a run: 8 KiB of 128 floats
constexpr int64_t kBlockExperts = 8;  // streams the prefetcher follows at a time
constexpr int64_t kBlockGates = 4;    // sums held in registers
constexpr int64_t kPairExperts = 2;   // of a backward pass, which holds a dot product for each

template <typename T>
struct Dense {
  const void* const* y;
  const int64_t* row_stride;
  const typename Row<T>::sum_t* weights;
  int64_t B, G, E, O;
  // In numbers: from a sample's weights to the next one's; of the mixes or their gradients, from a
  // sample to the next, and from a gate to the next
  int64_t weight_step, sample_step, gate_step;
};

// A thread's room for the backward pass of one sample.
template <typename T>
struct Room {
  using sum_t = typename Row<T>::sum_t;
  std::vector<sum_t> held;     // [kBlockExperts, O]: sums that wait for the next gates
  std::vector<sum_t> widened;  // [G, O], where T is narrower than its sums
  Room(int64_t G, int64_t O)
      : held(kBlockExperts * whole_vectors<T>(O)),
        widened(std::is_same_v<T, sum_t> ? 0 : G * whole_vectors<T>(O)) {}
};

}  // namespace mmoe::combination

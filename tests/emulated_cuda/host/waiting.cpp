// Threads that wait for each other: those of a block, and the lanes of a warp.

#include <algorithm>
#include <cstring>

#include "block.h"

namespace emulated {

void release_barrier() {
  if (block.at_barrier == 0 || block.at_barrier < block.alive.count()) return;
  block.at_barrier = 0;
  block.runnable = block.alive;
}

void synchronize_block(Place here) {
  if (block.at_barrier > 0 && (block.barrier.line != here.line)) {
    trap("threads of a block wait in " + describe(block.barrier) + " and in " + describe(here));
  }
  block.barrier = here;
  block.runnable.reset(block.running);
  ++block.at_barrier;
  release_barrier();
  wait_here(here, "__syncthreads");
}

unsigned lane() { return block.running % kLanes; }

bool lane_exists(unsigned of) { return block.running / kLanes * kLanes + of < block.threads; }

void check_mask(Place here, unsigned mask) {
  if (mask != ~0u) trap("only whole warps are emulated, in " + describe(here));
}

const Slot* gather_warp(Place here, const char* what, const void* mine, size_t bytes) {
  static_assert(kLanes == 32);
  const unsigned number = block.running / kLanes;
  Warp& warp = block.warps[number];
  if (warp.arrived != 0 && (warp.place.line != here.line || warp.what != what)) {
    trap("lanes of a warp are in " + describe(warp.place) + " and in " + describe(here));
  }
  warp.place = here;
  warp.what = what;
  warp.arrived |= 1u << lane();
  if (bytes > 0) std::memcpy(warp.giving[lane()].bytes, mine, bytes);
  unsigned all = 0;
  for (unsigned l = 0; l < kLanes; ++l) all |= lane_exists(l) ? 1u << l : 0;
  block.runnable.reset(block.running);
  if (warp.arrived == all) {
    warp.given = warp.giving;
    warp.arrived = 0;
    for (unsigned l = 0; l < kLanes; ++l) {
      if (lane_exists(l)) block.runnable.set(number * kLanes + l);
    }
  }
  wait_here(here, what);
  return warp.given.data();
}

unsigned ballot(Place here, unsigned mask, bool value) {
  check_mask(here, mask);
  const Slot* all = gather_warp(here, "a ballot", &value, sizeof value);
  unsigned bits = 0;
  for (unsigned l = 0; l < kLanes; ++l) {
    if (lane_exists(l) && value_of<bool>(all[l])) bits |= 1u << l;
  }
  return bits;
}

unsigned reduce_min(Place here, unsigned mask, unsigned value) {
  check_mask(here, mask);
  const Slot* all = gather_warp(here, "a reduction", &value, sizeof value);
  unsigned least = value;
  for (unsigned l = 0; l < kLanes; ++l) {
    if (lane_exists(l)) least = std::min(least, value_of<unsigned>(all[l]));
  }
  return least;
}

void synchronize_warp(Place here, unsigned mask) {
  check_mask(here, mask);
  gather_warp(here, "__syncwarp", nullptr, 0);
}

}  // namespace emulated

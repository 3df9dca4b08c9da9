// The block that runs, one at a time: its threads, what they wait for, and what is under way.

#pragma once

#include <array>
#include <bitset>
#include <random>
#include <string>
#include <vector>

#include "emulator.h"
#include "settings.h"
#include "shared_memory.h"
#include "switch.h"

namespace emulated {

constexpr size_t kStackBytes = EMULATED_ASAN ? 256 << 10 : 64 << 10;
constexpr unsigned kMostThreads = 1024;

struct Copy {
  void* shared;
  const void* global;
  int bytes;
  bool exists;
};

struct Fiber {
  Context context;
  void* asan_stack = nullptr;
  std::vector<std::vector<Copy>> groups;  // committed and not landed, oldest first
  std::vector<Copy> open;
  Place place = {nullptr, 0};
  const char* waits_for = nullptr;
};

struct Warp {
  unsigned arrived = 0;  // a bit for each lane
  Place place = {nullptr, 0};
  const char* what = nullptr;
  std::array<Slot, kLanes> giving, given;
};

struct Block {
  std::vector<Fiber> fibers = std::vector<Fiber>(kMostThreads);
  std::vector<Warp> warps = std::vector<Warp>(kMostThreads / kLanes);
  std::bitset<kMostThreads> runnable, alive;
  unsigned char* stacks = nullptr;
  SharedMemory shared;
  Context host;
  void* host_asan = nullptr;
  const void* host_stack = nullptr;
  size_t host_stack_bytes = 0;
  unsigned threads = 0, running = 0, at_barrier = 0;
  Place barrier = {nullptr, 0};
  Body body = nullptr;
  const void* body_context = nullptr;
  std::string failure, printed;
  std::mt19937 random;

  unsigned char* stack_of(unsigned thread) { return stacks + thread * kStackBytes; }
};

extern Block block;

// FILE:LINE
std::string describe(Place place);

// Lets others run until the thread that runs is runnable again.
void wait_here(Place place, const char* what);

// Lets all go on where the last one has come, or ended.
void release_barrier();

}  // namespace emulated

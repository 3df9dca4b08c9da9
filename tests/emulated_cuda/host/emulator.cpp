// Runs blocks: a fiber for each thread, switched where threads wait for each other.

#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>

#include "settings.h"
#include "shared_memory.h"
#include "switch.h"

namespace emulated {

Dim3 thread_index, block_index, block_size, grid_size;
Settings settings;

namespace {

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

std::string describe(Place place) {
  const char* slash = std::strrchr(place.file, '/');
  return std::string(slash == nullptr ? place.file : slash + 1) + ":" + std::to_string(place.line);
}

// All state of the block that runs: one at a time.
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

Block block;
std::recursive_mutex one_at_a_time;

// ---- switching ----

void leave_fiber(bool for_good) {
  Fiber& fiber = block.fibers[block.running];
#if EMULATED_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.asan_stack, block.host_stack,
                                 block.host_stack_bytes);
#else
  (void)for_good;
#endif
  swap(fiber.context, block.host);
#if EMULATED_ASAN
  __sanitizer_finish_switch_fiber(fiber.asan_stack, nullptr, nullptr);
#endif
}

void enter_fiber(unsigned thread) {
  block.running = thread;
  thread_index.x = thread % block_size.x;
  thread_index.y = thread / block_size.x % block_size.y;
  thread_index.z = thread / block_size.x / block_size.y;
#if EMULATED_ASAN
  __sanitizer_start_switch_fiber(&block.host_asan, block.stack_of(thread), kStackBytes);
#endif
  swap(block.host, block.fibers[thread].context);
#if EMULATED_ASAN
  __sanitizer_finish_switch_fiber(block.host_asan, nullptr, nullptr);
#endif
}

void release_barrier() {
  if (block.at_barrier == 0 || block.at_barrier < block.alive.count()) return;
  block.at_barrier = 0;
  block.runnable = block.alive;
}

void begin_thread() {
#if EMULATED_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &block.host_stack, &block.host_stack_bytes);
#endif
  block.body(block.body_context);
  wait_copies(0);  // what a thread has begun lands, though it has ended
  block.runnable.reset(block.running);
  block.alive.reset(block.running);
  release_barrier();
  leave_fiber(true);
}

void wait_here(Place place, const char* what) {
  Fiber& fiber = block.fibers[block.running];
  fiber.place = place;
  fiber.waits_for = what;
  leave_fiber(false);
  fiber.waits_for = nullptr;
}

// ---- the order of threads and blocks ----

// The first runnable thread in the order asked for; at random: one of them.
unsigned next_thread() {
  if (settings.order == Order::forward) return static_cast<unsigned>(block.runnable._Find_first());
  if (settings.order == Order::backward) {
    for (unsigned t = block.threads; t-- > 0;) {
      if (block.runnable.test(t)) return t;
    }
  }
  const unsigned from = block.random() % block.threads;
  const auto after = block.runnable._Find_next(from);
  return static_cast<unsigned>(after < block.threads ? after : block.runnable._Find_first());
}

void report_deadlock() {
  std::ostringstream text;
  text << "threads wait for each other and nobody comes:";
  unsigned told = 0;
  for (unsigned t = 0; t < block.threads && told < 4; ++t) {
    if (!block.alive.test(t)) continue;
    const Fiber& fiber = block.fibers[t];
    text << " thread " << t << " for " << fiber.waits_for << " in " << describe(fiber.place) << ';';
    ++told;
  }
  block.failure = text.str();
}

void run_block() {
  block.shared.clear();
  for (unsigned t = 0; t < block.threads; ++t) {
    Fiber& fiber = block.fibers[t];
#if EMULATED_ASAN
    // A thread that was stopped has left marks of its frames
    ASAN_UNPOISON_MEMORY_REGION(block.stack_of(t), kStackBytes);
#endif
    fiber.groups.clear();
    fiber.open.clear();
    fiber.asan_stack = nullptr;
    prepare(fiber.context, block.stack_of(t), kStackBytes, begin_thread);
    block.alive.set(t);
    block.runnable.set(t);
  }
  for (Warp& warp : block.warps) warp.arrived = 0;
  block.at_barrier = 0;
  while (block.alive.any() && block.failure.empty()) {
    if (block.runnable.none()) {
      report_deadlock();
      break;
    }
    enter_fiber(next_thread());
  }
  block.alive.reset();
  block.runnable.reset();
  if (block.failure.empty() && !block.shared.is_whole()) {
    block.failure = "something was written beside shared memory";
  }
}

void check_config(const Config& config) {
  const auto refuse = [](const std::string& why) {
    throw std::runtime_error("CUDA error: invalid configuration argument: " + why);
  };
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  if (threads == 0 || threads > kMostThreads) refuse(std::to_string(threads) + " threads a block");
  const Dim3& grid = config.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) refuse("an empty grid");
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) refuse("too large a grid");
  const size_t most = std::min(kSharedBytes, std::max(kSharedUnasked, settings.reserved));
  if (config.shared > most) refuse(std::to_string(config.shared) + " bytes of shared memory");
}

// A step that meets every block once.
uint64_t stride_over(uint64_t blocks) {
  uint64_t stride = 1 + block.random() % blocks;
  while (std::gcd(stride, blocks) != 1) ++stride;
  return stride;
}

void run_blocks(const Config& config) {
  const uint64_t blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  const uint64_t first = block.random() % blocks, stride = stride_over(blocks);
  for (uint64_t i = 0; i < blocks && block.failure.empty(); ++i) {
    const uint64_t number = settings.order == Order::forward    ? i
                            : settings.order == Order::backward ? blocks - 1 - i
                                                                : (first + i * stride) % blocks;
    block_index.x = static_cast<unsigned>(number % config.grid.x);
    block_index.y = static_cast<unsigned>(number / config.grid.x % config.grid.y);
    block_index.z = static_cast<unsigned>(number / config.grid.x / config.grid.y);
    run_block();
  }
}

void land(const Copy& copy) {
  if (copy.exists) {
    std::memcpy(copy.shared, copy.global, copy.bytes);
  } else {
    std::memset(copy.shared, 0, copy.bytes);
  }
}

}  // namespace

void run(const Config& config, Body body, const void* context) {
  const std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
  check_config(config);
  if (block.stacks == nullptr) {
    const size_t bytes = kMostThreads * kStackBytes;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for the emulated threads");
    block.stacks = static_cast<unsigned char*>(memory);
  }
  grid_size = config.grid;
  block_size = config.block;
  block.threads = config.block.x * config.block.y * config.block.z;
  block.body = body;
  block.body_context = context;
  block.shared.reserve(config.shared);
  block.random.seed(settings.seed);
  block.failure.clear();
  block.printed.clear();
  settings.reserved = 0;  // kernels are not told apart: each launch needs its own
  run_blocks(config);
  if (block.failure.empty()) check_guards();
  if (!block.failure.empty()) {
    throw std::runtime_error("CUDA error: " + block.failure +
                             (block.printed.empty() ? "" : ": " + block.printed));
  }
}

void trap(const std::string& why) {
  block.failure = why;
  for (;;) leave_fiber(false);
}

int device_printf(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (block.printed.empty()) block.printed = std::string(text, std::strcspn(text, "\n"));
  return length;
}

// ---- threads that wait for each other ----

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

// ---- shared memory and asynchronous copies ----

unsigned char* dynamic_shared() { return block.shared.dynamic(); }

void* static_shared(Place here, size_t bytes, size_t alignment) {
  std::string why;
  void* at = block.shared.variable(here, bytes, alignment, why);
  if (at == nullptr) trap(why);
  return at;
}

void check_aligned(Place here, const void* pointer, size_t bytes, const char* what) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) {
    trap("misaligned address: " + std::string(what) + " in " + describe(here));
  }
}

void copy_async(Place here, void* shared, const void* global, int bytes, bool exists) {
  check_aligned(here, shared, bytes, "shared memory of cp.async");
  check_aligned(here, global, bytes, "global memory of cp.async");
  if (!block.shared.is_dynamic(static_cast<unsigned char*>(shared), bytes)) {
    trap("cp.async leaves the block's shared memory, in " + describe(here));
  }
  const Copy copy = {shared, global, bytes, exists};
  if (settings.copies_early) return land(copy);
  block.fibers[block.running].open.push_back(copy);
}

void commit_copies() {
  Fiber& fiber = block.fibers[block.running];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

void wait_copies(int open) {
  auto& groups = block.fibers[block.running].groups;
  const size_t stay = std::min<size_t>(groups.size(), std::max(open, 0));
  for (size_t i = 0; i + stay < groups.size(); ++i) {
    for (const Copy& copy : groups[i]) land(copy);
  }
  groups.erase(groups.begin(), groups.end() - static_cast<std::ptrdiff_t>(stay));
}

}  // namespace emulated

// What -fsanitize=alignment calls: a vector access to an address that a GPU would refuse.
extern "C" {
struct AlignmentData {
  const char* file;
  uint32_t line, column;
};
void __ubsan_handle_type_mismatch_v1(AlignmentData* data, uintptr_t) {
  ::emulated::trap("misaligned address in " +
                   ::emulated::describe({data->file, static_cast<int>(data->line)}));
}
void __ubsan_handle_type_mismatch_v1_abort(AlignmentData* data, uintptr_t pointer) {
  __ubsan_handle_type_mismatch_v1(data, pointer);
}
}

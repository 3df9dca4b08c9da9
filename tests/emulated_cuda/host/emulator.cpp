// Runs blocks: a fiber for each thread, switched where threads wait for each other (waiting.cpp).

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "block.h"

namespace emulated {

Dim3 thread_index, block_index, block_size, grid_size;
Settings settings;
Block block;

namespace {

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

}  // namespace

std::string describe(Place place) {
  const char* slash = std::strrchr(place.file, '/');
  return std::string(slash == nullptr ? place.file : slash + 1) + ":" + std::to_string(place.line);
}

void wait_here(Place place, const char* what) {
  Fiber& fiber = block.fibers[block.running];
  fiber.place = place;
  fiber.waits_for = what;
  leave_fiber(false);
  fiber.waits_for = nullptr;
}

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

}  // namespace emulated

// CUDA as the host runs it: a fiber for each thread of a block, blocks one after the other. What a
// kernel may not rely on is varied or made bad: the order of the threads, the moment at which an
// asynchronous copy lands, what memory holds that nobody wrote. Sources are rewritten to call this
// (rewrite.py); cuda_runtime.h beside this file has what they call by CUDA's own names.

#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace emulated {

constexpr unsigned kLanes = 32;
constexpr size_t kSlotBytes = 64;  // the most that a lane gives to the others at once

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  Dim3() = default;
  Dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the thread that runs; written at each switch.
extern Dim3 thread_index, block_index, block_size, grid_size;

struct Place {
  const char* file;
  int line;
};
#define EMULATED_HERE (::emulated::Place{__FILE__, __LINE__})

// Stops the kernel, as __trap does; the launch then throws std::runtime_error.
[[noreturn]] void trap(const std::string& why);
int device_printf(const char* format, ...);

void synchronize_block(Place here);

struct alignas(16) Slot {
  unsigned char bytes[kSlotBytes];
};

// Gives `mine` to the other lanes of the warp, waits for theirs, and returns them all.
const Slot* gather_warp(Place here, const char* what, const void* mine, size_t bytes);
unsigned lane();
bool lane_exists(unsigned lane);

template <typename T>
T value_of(const Slot& slot) {
  T value;
  std::memcpy(&value, slot.bytes, sizeof(T));
  return value;
}

void check_mask(Place here, unsigned mask);

template <typename T>
T shuffle_xor(Place here, unsigned mask, T value, int step) {
  check_mask(here, mask);
  const Slot* all = gather_warp(here, "a shuffle", &value, sizeof(T));
  const unsigned from = lane() ^ static_cast<unsigned>(step);
  return from < kLanes && lane_exists(from) ? value_of<T>(all[from]) : value;
}

template <typename T>
T shuffle(Place here, unsigned mask, T value, int from) {
  check_mask(here, mask);
  const Slot* all = gather_warp(here, "a shuffle", &value, sizeof(T));
  const unsigned source = static_cast<unsigned>(from) % kLanes;
  return lane_exists(source) ? value_of<T>(all[source]) : value;
}

unsigned ballot(Place here, unsigned mask, bool value);
unsigned reduce_min(Place here, unsigned mask, unsigned value);
void synchronize_warp(Place here, unsigned mask);

// Memory that the threads of a block share; NaN when the block begins.
unsigned char* dynamic_shared();
void* static_shared(Place here, size_t bytes, size_t alignment);

template <typename T>
T& shared_variable(Place here) {
  return *static_cast<T*>(static_shared(here, sizeof(T), alignof(std::remove_all_extents_t<T>)));
}

// Asynchronous copies to shared memory: done at once, or when they are waited for.
void copy_async(Place here, void* shared, const void* global, int bytes, bool exists);
void commit_copies();
void wait_copies(int open);

void check_aligned(Place here, const void* pointer, size_t bytes, const char* what);

struct Config {
  Dim3 grid, block;
  size_t shared;
  Config(Dim3 grid, Dim3 block, size_t shared = 0, void* = nullptr)
      : grid(grid), block(block), shared(shared) {}
};

using Body = void (*)(const void*);
void run(const Config& config, Body body, const void* context);

template <typename Kernel, typename... Arguments>
void launch(const Config& config, Kernel&& kernel, Arguments... arguments) {
  static_assert((sizeof(Arguments) + ... + 0) <= 4096, "parameters of a launch");
  const auto call = [&] { kernel(arguments...); };
  run(config, [](const void* context) { (*static_cast<const decltype(call)*>(context))(); }, &call);
}

// Of the host.
void reserve(size_t bytes);
int attribute(int which);
using Tensor = torch::stable::Tensor;
Tensor new_empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes);
Tensor new_empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes,
                 torch::headeronly::ScalarType type);
bool is_cuda(const Tensor& tensor);
inline bool is_cuda(const Tensor* tensor) { return is_cuda(*tensor); }
inline int32_t device_index(const Tensor& tensor) { return is_cuda(tensor) ? 0 : -1; }
inline int32_t device_index(const Tensor* tensor) { return device_index(*tensor); }
// PyTorch's operators whose CUDA kernels differ from the CPU's are replaced in Python.
const char* operator_name(const char* name, const char* overload);

struct DeviceGuard {
  explicit DeviceGuard(int32_t) {}
};
inline int32_t current_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}
inline void check(int error) {
  if (error != 0) throw std::runtime_error("CUDA error: invalid argument");
}

}  // namespace emulated

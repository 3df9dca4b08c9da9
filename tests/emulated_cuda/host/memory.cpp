// Memory that operators ask for, with guards around it, and what Python sets.

#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "emulator.h"
#include "sanitized.h"
#include "settings.h"

namespace emulated {

namespace {

constexpr uint16_t kPoison = 0x7fff;  // NaN in bfloat16; repeated, in float and double too
constexpr int64_t kGuardNumbers = 64;

struct Guarded {
  Tensor whole;
  int64_t begin, end;  // what was asked for, in bytes
};

std::vector<Guarded> guarded;
std::set<const void*> on_host;  // tensors of the call that are not on the device
std::set<std::string> replaced;

}  // namespace

void poison(void* memory, size_t bytes) {
  auto* at = static_cast<unsigned char*>(memory);
  for (size_t i = 0; i + 1 < bytes; i += 2) std::memcpy(at + i, &kPoison, sizeof kPoison);
  if (bytes % 2 != 0) at[bytes - 1] = kPoison & 0xff;
}

void close(const void* memory, size_t bytes) {
#if EMULATED_ASAN
  __asan_poison_memory_region(memory, bytes);
#else
  (void)memory, (void)bytes;
#endif
}

void open(const void* memory, size_t bytes) {
#if EMULATED_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#else
  (void)memory, (void)bytes;
#endif
}

bool is_poison(const unsigned char* whole, size_t from, size_t to) {
  for (size_t i = from; i < to; ++i) {
    if (whole[i] != (i % 2 == 0 ? kPoison & 0xff : kPoison >> 8)) return false;
  }
  return true;
}

Tensor new_empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes,
                 torch::headeronly::ScalarType type) {
  int64_t numbers = 1;
  for (const int64_t size : sizes) numbers *= size;
  const std::vector<int64_t> all = {numbers + 2 * kGuardNumbers};
  Tensor whole = torch::stable::new_empty(like, all, type);
  auto* bytes = static_cast<unsigned char*>(whole.mutable_data_ptr());
  const auto size = static_cast<int64_t>(whole.element_size());
  poison(bytes, all[0] * size);
  guarded.push_back({whole, kGuardNumbers * size, (kGuardNumbers + numbers) * size});
  close(bytes, kGuardNumbers * size);
  close(bytes + (kGuardNumbers + numbers) * size, kGuardNumbers * size);
  Tensor part = torch::stable::narrow(whole, 0, kGuardNumbers, numbers);
  return torch::stable::view(part, sizes);
}

Tensor new_empty(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef sizes) {
  return new_empty(like, sizes, like.scalar_type());
}

void check_guards() {
#if !EMULATED_ASAN  // it has stopped the process by now
  for (const Guarded& memory : guarded) {
    const auto* begin = static_cast<const unsigned char*>(memory.whole.const_data_ptr());
    const int64_t size = static_cast<int64_t>(memory.whole.element_size()) * memory.whole.numel();
    if (!is_poison(begin, 0, memory.begin) || !is_poison(begin, memory.end, size)) {
      guarded.clear();
      throw std::runtime_error(
          "CUDA error: an illegal memory access: something was written beside memory that an "
          "operator asked for");
    }
  }
#endif
}

bool is_cuda(const Tensor& tensor) { return on_host.count(tensor.const_data_ptr()) == 0; }

const char* operator_name(const char* name, const char* overload) {
  const std::string full = std::string(name) + (*overload == 0 ? "" : ".") + overload;
  const auto found = replaced.find(full);
  if (found == replaced.end()) return name;
  static std::set<std::string> names;
  const std::string bare = std::string(name).substr(std::string(name).find("::"));
  return names.insert("mmoe_emulated" + bare).first->c_str();
}

void reserve(size_t bytes) { settings.reserved = std::max(settings.reserved, bytes); }

int attribute(int which) {
  if (which != 0) return settings.multiprocessors;
  settings.asked = true;
  return settings.capability;
}

}  // namespace emulated

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void emulated_configure(int order, unsigned seed, int copies_early, int capability) {
  auto& settings = emulated::settings;
  settings.order = static_cast<emulated::Order>(order);
  settings.seed = seed;
  settings.copies_early = copies_early != 0;
  settings.capability = capability;
}

EXPORTED int emulated_capability() { return emulated::attribute(0); }

// Whether anybody asked for it since the last call.
EXPORTED int emulated_capability_asked() { return std::exchange(emulated::settings.asked, false); }

// Before a call: which of its tensors are not on the device.
EXPORTED void emulated_begin_call(const void* const* host, int count) {
  emulated::on_host = std::set<const void*>(host, host + count);
}

EXPORTED void emulated_end_call() {
  emulated::on_host.clear();
  emulated::guarded.clear();
}

// Memory beside an input, which nobody may read.
EXPORTED void emulated_close(const void* memory, size_t bytes) { emulated::close(memory, bytes); }
EXPORTED void emulated_open(const void* memory, size_t bytes) { emulated::open(memory, bytes); }

EXPORTED void emulated_replace_operator(const char* name) { emulated::replaced.insert(name); }

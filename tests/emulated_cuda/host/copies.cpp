// Shared memory, asynchronous copies into it, and addresses that a GPU would refuse.

#include <algorithm>
#include <cstring>

#include "block.h"

namespace emulated {

namespace {

void land(const Copy& copy) {
  if (copy.exists) {
    std::memcpy(copy.shared, copy.global, copy.bytes);
  } else {
    std::memset(copy.shared, 0, copy.bytes);
  }
}

}  // namespace

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

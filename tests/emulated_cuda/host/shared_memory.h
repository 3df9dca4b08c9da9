// The memory that the threads of a block share: the part whose size a launch names, then the
// variables of its kernel. Between them lies poison that nobody may write; AddressSanitizer is told
// that nobody may read it either.

#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "emulator.h"
#include "sanitized.h"
#include "settings.h"

namespace emulated {

constexpr size_t kSharedBytes = 227 << 10;  // of a block, on sm_90
constexpr size_t kSharedUnasked = 48 << 10;

class SharedMemory {
 public:
  // For the blocks of a launch.
  void reserve(size_t dynamic_bytes) {
    dynamic_bytes_ = dynamic_bytes;
    if (memory_.empty()) {
      memory_.resize(kSharedBytes + kRoomForGuards);
      written_ = memory_.size();
    }
  }

  // As a block finds it.
  void clear() {
#if EMULATED_ASAN
    ASAN_UNPOISON_MEMORY_REGION(memory_.data(), memory_.size());
#endif
    poison(memory_.data(), std::min(memory_.size(), std::max(written_, end_ + kFarther)));
    written_ = 0;
    variables_.clear();
    static_bytes_ = 0;
    const size_t first = begin() - memory_.data();
    end_ = first + dynamic_bytes_ + kGuard;
#if EMULATED_ASAN
    ASAN_POISON_MEMORY_REGION(memory_.data(), first);
    ASAN_POISON_MEMORY_REGION(begin() + dynamic_bytes_, memory_.size() - first - dynamic_bytes_);
#endif
  }

  unsigned char* dynamic() { return begin(); }
  bool is_dynamic(const unsigned char* at, size_t bytes) {
    return begin() <= at && at + bytes <= begin() + dynamic_bytes_;
  }

  // Of a declaration, the same for all threads; null where there is no room, and `why`.
  void* variable(Place here, size_t bytes, size_t alignment, std::string& why) {
    for (const Variable& variable : variables_) {
      if (variable.place.line == here.line && variable.bytes == bytes &&
          std::strcmp(variable.place.file, here.file) == 0) {
        return memory_.data() + variable.at;
      }
    }
    static_bytes_ = (static_bytes_ + alignment - 1) / alignment * alignment + bytes;
    if (static_bytes_ > kSharedUnasked)
      return why = "more than 48 KiB of static shared memory", nullptr;
    if (dynamic_bytes_ + static_bytes_ > kSharedBytes)
      return why = "too much shared memory", nullptr;
    const size_t at = (end_ + 15) / 16 * 16;
    if (at + bytes + kGuard > memory_.size()) return why = "too many shared variables", nullptr;
    end_ = at + bytes + kGuard;
    variables_.push_back({here, bytes, at});
#if EMULATED_ASAN
    ASAN_UNPOISON_MEMORY_REGION(memory_.data() + at, bytes);
#endif
    return memory_.data() + at;
  }

  // Whether what lies between and behind is as it was; looked at when a block has ended.
  bool is_whole() {
#if EMULATED_ASAN
    return true;  // it has been looked at all the time
#else
    size_t from = 0;
    bool whole = is_poison(from, begin() - memory_.data());
    from = begin() - memory_.data() + dynamic_bytes_;
    for (const Variable& variable : variables_) {
      whole = whole && is_poison(from, variable.at);
      from = variable.at + variable.bytes;
    }
    return whole && is_poison(from, std::min(from + kFarther, memory_.size()));
#endif
  }

 private:
  struct Variable {
    Place place;
    size_t bytes, at;
  };
  static constexpr size_t kGuard = 256, kFarther = 4096, kRoomForGuards = 16 << 10;

  // With poison before it.
  unsigned char* begin() {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<unsigned char*>((at + kGuard + 15) & ~uintptr_t{15});
  }
  bool is_poison(size_t from, size_t to) const {
    return emulated::is_poison(memory_.data(), from, to);
  }

  std::vector<unsigned char> memory_;
  std::vector<Variable> variables_;
  size_t dynamic_bytes_ = 0, static_bytes_ = 0;
  size_t end_ = 0, written_ = 0;  // of what is in use, and of what may not be poison
};

}  // namespace emulated

// How the emulation runs, set from Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulated {

enum class Order : int { forward, backward, shuffled };

struct Settings {
  Order order = Order::forward;
  uint32_t seed = 0;
  bool copies_early = false;
  int capability = 8;         // the major one
  bool asked = false;         // for the capability, since somebody looked
  int multiprocessors = 132;  // of an H100
  size_t reserved = 0;        // the most dynamic shared memory asked for
};
extern Settings settings;

// NaN in every type of float, and a number of no row in every type of integer.
void poison(void* memory, size_t bytes);
// Tells AddressSanitizer, where it is built in, that memory may not be used, or may again.
void close(const void* memory, size_t bytes);
void open(const void* memory, size_t bytes);

// Whether the bytes from one place of poisoned memory to another still are.
bool is_poison(const unsigned char* whole, size_t from, size_t to);

// Fails the launch where something was written beside memory that an operator asked for.
void check_guards();

}  // namespace emulated

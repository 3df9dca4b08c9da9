// From one stack to another. On x86-64 by hand, since swapcontext makes two system calls; elsewhere
// by ucontext.

#pragma once

#include <cstddef>
#include <cstdint>

#include "sanitized.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulated {

#if defined(__x86_64__)

struct Context {
  void* stack_pointer = nullptr;
};

// Saves what a call must keep, and goes on where `to` was saved (switch.cpp).
extern "C" void emulated_switch(void** from, void* to);

inline void swap(Context& from, const Context& to) {
  emulated_switch(&from.stack_pointer, to.stack_pointer);
}

// A context that begins with `entry` at the top of a stack.
inline void prepare(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
  auto top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15};
  auto* words = reinterpret_cast<void**>(top);
  *--words = nullptr;  // where `entry` would return to; it never does
  *--words = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--words = nullptr;
  context.stack_pointer = words;
}

#else

struct Context {
  ucontext_t saved;
};
inline void swap(Context& from, const Context& to) { swapcontext(&from.saved, &to.saved); }
inline void prepare(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = stack;
  context.saved.uc_stack.ss_size = bytes;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
}

#endif

}  // namespace emulated

// Operators that are switched to another one while `emulated::mutant` is their number. mutants.py
// puts them into the sources: `a < b` becomes `a < ::emulated::Less{7} < b`, which C++ groups as
// it grouped `a < b`, whatever stands around.

#pragma once

#include <type_traits>

#include "emulator.h"

namespace emulated {

inline bool is_on(int number) {
  reached[number] = true;
  return number == mutant;
}

template <typename A, typename Operator>
struct Half {
  A a;
  int number;
};

// NAME stands between two SYMBOLs; with the mutation it computes OTHER.
#define EMULATED_OPERATOR(NAME, SYMBOL, OTHER)                           \
  struct NAME {                                                          \
    int number;                                                          \
  };                                                                     \
  template <typename A>                                                  \
  inline Half<A, NAME> operator SYMBOL(A a, NAME here) {                 \
    return {a, here.number};                                             \
  }                                                                      \
  template <typename A, typename B>                                      \
  inline auto operator SYMBOL(Half<A, NAME> half, B b) {                 \
    const A a = half.a;                                                  \
    using Result = decltype(a SYMBOL b);                                 \
    return is_on(half.number) ? static_cast<Result>(OTHER) : a SYMBOL b; \
  }

EMULATED_OPERATOR(Less, <, a <= b)
EMULATED_OPERATOR(LessOrEqual, <=, a < b)
EMULATED_OPERATOR(Greater, >, a >= b)
EMULATED_OPERATOR(GreaterOrEqual, >=, a > b)
EMULATED_OPERATOR(Equal, ==, a != b)
EMULATED_OPERATOR(NotEqual, !=, a == b)
EMULATED_OPERATOR(Plus, +, a + b + 1)
EMULATED_OPERATOR(Minus, -, a - b + 1)
EMULATED_OPERATOR(Times, *, a* b + 1)
EMULATED_OPERATOR(Divide, /, a % b)
EMULATED_OPERATOR(Modulo, %, a / b)
#undef EMULATED_OPERATOR

}  // namespace emulated

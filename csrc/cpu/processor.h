// What this processor can run: for each set of kernels exactly what its `#pragma GCC target` names.
// A virtual machine may show any part of a processor, so nothing follows from anything else.

#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
namespace mmoe {

inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

inline bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

}  // namespace mmoe
#endif

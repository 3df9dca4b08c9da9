// Includes the file MMOE_KERNELS once per instruction set, as namespaces mmoe::generic, avx2 and
// avx512; MMOE_BEST(f) is then the address of the best `f` this processor can run.
// With MMOE_AVX512_ALONE, the third alone: .ci/sanitize tests what runs on the machine at hand.
//
// Why not target_clones: GCC takes operations of vectors apart for the oldest processor before it
// makes the clones.

// All that the kernels include, here, where no instruction set is chosen yet.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "processor.h"
#include "rows.h"

#ifndef MMOE_AVX512_ALONE
#define MMOE_ISA generic
#define MMOE_VECTOR_BYTES 16
#include MMOE_KERNELS
#undef MMOE_ISA
#undef MMOE_VECTOR_BYTES
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#ifndef MMOE_AVX512_ALONE
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define MMOE_ISA avx2
#define MMOE_VECTOR_BYTES 32
#include MMOE_KERNELS
#undef MMOE_ISA
#undef MMOE_VECTOR_BYTES
#pragma GCC pop_options
#endif

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define MMOE_ISA avx512
#define MMOE_VECTOR_BYTES 64
#include MMOE_KERNELS
#undef MMOE_ISA
#undef MMOE_VECTOR_BYTES
#pragma GCC pop_options

#ifdef MMOE_AVX512_ALONE
#define MMOE_BEST(...) (&mmoe::avx512::__VA_ARGS__)
#else
namespace mmoe {

template <typename F>
F* best_of(F* generic, F* avx2, F* avx512) {
  if (has_avx512()) return avx512;
  return has_avx2() ? avx2 : generic;
}

}  // namespace mmoe

#define MMOE_BEST(...) \
  best_of(&mmoe::generic::__VA_ARGS__, &mmoe::avx2::__VA_ARGS__, &mmoe::avx512::__VA_ARGS__)
#endif
#else
#define MMOE_BEST(...) (&mmoe::generic::__VA_ARGS__)
#endif

// The instructions that CUDA C++ has no words for; all of them exist from sm_80 on.

#pragma once

#include <cuda_bf16.h>

namespace mmoe {

// Copies Bytes (4, 8 or 16) to shared memory in the background; zeros where `exists` is false, and
// then `global` is not read.
template <int Bytes>
__device__ inline void copy_async(void* shared, const void* global, bool exists) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const unsigned size = exists ? Bytes : 0;
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(size)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(to), "l"(global),
                 "n"(Bytes), "r"(size)
                 : "memory");
  }
}

// Closes a group of copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most `Open` of this thread's groups are under way.
template <int Open>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Open) : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers. Lane 8 * i + r names row r of matrix i; lane l receives
// of each the numbers (l / 4, 2 * (l % 4)) and the one beside it, of the transpose if Transposed.
template <bool Transposed>
__device__ inline void load_matrices(unsigned (&to)[4], const __nv_bfloat16* row) {
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
}

// sums[16, 8] += a[16, 16] * b[16, 8] by one warp. Lane l holds, with r = l / 4 and c = 2 * (l %
// 4), sums: (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1); a: the pairs from (r, c), (r + 8, c),
// (r, c + 8), (r + 8, c + 8) on; b: the pairs (c, r), (c + 1, r) and (c + 8, r), (c + 9, r).
__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace mmoe

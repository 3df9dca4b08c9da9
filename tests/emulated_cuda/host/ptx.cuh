// What csrc/cuda/gemm/ptx.cuh has, by the layouts that the PTX manual documents.

#pragma once

#include <cuda_bf16.h>

namespace mmoe {

template <int Bytes>
inline void copy_async(void* shared, const void* global, bool exists) {
  ::emulated::copy_async(EMULATED_HERE, shared, global, Bytes, exists);
}

inline void commit_copies() { ::emulated::commit_copies(); }

template <int Open>
inline void wait_copies() {
  ::emulated::wait_copies(Open);
}

// ldmatrix.x4: lane 8 * i + r names row r of matrix i; lane l receives two numbers of each, those
// at (l / 4, 2 * (l % 4)) of the matrix or of its transpose, the first in the low half.
template <bool Transposed>
inline void load_matrices(unsigned (&to)[4], const __nv_bfloat16* row) {
  ::emulated::check_aligned(EMULATED_HERE, row, 16, "a row of ldmatrix");
  const ::emulated::Slot* rows =
      ::emulated::gather_warp(EMULATED_HERE, "ldmatrix", &row, sizeof row);
  const unsigned lane = ::emulated::lane(), r = lane / 4, c = lane % 4 * 2;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const auto number = [&](unsigned row_number, unsigned column) {
      const auto* at = ::emulated::value_of<const __nv_bfloat16*>(rows[matrix * 8 + row_number]);
      return static_cast<unsigned>(at[column].bits);
    };
    to[matrix] =
        Transposed ? number(c, r) | number(c + 1, r) << 16 : number(r, c) | number(r, c + 1) << 16;
  }
}

// mma.m16n8k16. Of a, lane l holds the pairs from (l / 4, 2 * (l % 4)) on, then 8 rows below, 8
// columns to the right, and both; of b the pairs from row 2 * (l % 4) on in column l / 4, then 8
// rows below; of the sums (l / 4, 2 * (l % 4)), its neighbour, and both 8 rows below.
inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const ::emulated::Slot* all = ::emulated::gather_warp(EMULATED_HERE, "mma", mine, sizeof mine);
  const unsigned lane = ::emulated::lane(), r = lane / 4, c = lane % 4 * 2;
  const auto half = [&](unsigned of_lane, unsigned word, unsigned which) {
    unsigned bits;
    std::memcpy(&bits, all[of_lane].bytes + word * sizeof bits, sizeof bits);
    return __uint_as_float((which == 0 ? bits & 0xffff : bits >> 16) << 16);
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned column = c + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const float x = half(r * 4 + k % 8 / 2, i / 2 + k / 8 * 2, k % 2);
      const float y = half(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
      sum += x * y;
    }
    sums[i] += sum;
  }
}

}  // namespace mmoe

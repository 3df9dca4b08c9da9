// A of the products of grouped_mm: rows of a table that the pairs read, each its own or, where
// there are numbers, the one of its number. They are found while they are copied to shared memory,
// so that no permuted copy of them is written and read again.

#pragma once

#include "gemm.cuh"
#include "grouped_mm.h"

namespace mmoe {

// PairRows as kernels see them.
template <typename T>
struct PairTable {
  const T* data;
  int64_t stride;
  const int32_t* numbers;  // null: pair p reads row p
  int32_t rows;            // of the table
  int bytes;               // per copy

  PairTable(const PairRows& pairs, int64_t width)
      : data(static_cast<const T*>(pairs.table.data)),
        stride(pairs.table.stride),
        numbers(pairs.numbers),
        rows(pairs.rows),
        bytes(copy_bytes<T>(pairs.table.data, pairs.table.stride, width)) {}

  __device__ int32_t number(int32_t pair) const { return numbers ? numbers[pair] : pair; }

  __device__ void check(int32_t number) const {
    MMOE_DEVICE_CHECK(number >= -1 && number < rows, "rows_P: expected a row in [0, B) or -1",
                      number);
  }

  // Starts the copy of 16 bytes of a row from `column` on, of which `left` numbers exist; zeros for
  // row -1.
  __device__ void copy(T* to, int32_t number, int column, int left) const {
    if (number < 0) left = 0;
    copy_pack(to, left > 0 ? data + number * stride + column : data, data, left, bytes);
  }
};

// A whose rows are the rows of pairs, numbers of one row side by side: every part of the depth is
// copied from the same rows, so a thread keeps the numbers of those that it copies from.
template <typename T, int Across>
struct RowsOfPairs : Placed<T, Across, true> {
  using Copy = typename Placed<T, Across, true>::Copy;
  const PairTable<T>& table;
  int32_t numbers[Copy::kRounds];

  // `count` pairs from `first` on.
  __device__ RowsOfPairs(const PairTable<T>& table, int32_t first, int count) : table(table) {
#pragma unroll
    for (int round = 0; round < Copy::kRounds; ++round) {
      const int r = Copy::row(round);
      numbers[round] = r < count ? table.number(first + r) : -1;
      table.check(numbers[round]);
    }
  }

  __device__ void copy(T* to, int from, int depth) const {
#pragma unroll
    for (int round = 0; round < Copy::kRounds; ++round) {
      const int r = Copy::row(round), c = Copy::column(round);
      table.copy(to + r * Copy::kStride + c, numbers[round], from + c, depth - from - c);
    }
  }
};

// A whose columns are the rows of pairs, a step of the depth for each: the numbers of a part's rows
// are asked for while the part before is copied, as the copies would else wait for them.
template <typename T, int Across>
struct ColumnsOfPairs : Placed<T, Across, false> {
  using Copy = typename Placed<T, Across, false>::Copy;
  const PairTable<T>& table;
  int32_t first, column;
  int across;  // numbers of a row that exist from `column` on
  int32_t ahead[Copy::kRounds];

  // `count` pairs from `first` on; of each row the numbers from `column` on.
  __device__ ColumnsOfPairs(const PairTable<T>& table, int32_t first, int count, int32_t column,
                            int across)
      : table(table), first(first), column(column), across(across) {
    look_ahead(0, count);
  }

  __device__ void look_ahead(int from, int count) {
#pragma unroll
    for (int round = 0; round < Copy::kRounds; ++round) {
      const int r = from + Copy::row(round);
      ahead[round] = r < count ? table.number(first + r) : -1;
    }
  }

  __device__ void copy(T* to, int from, int depth) {
#pragma unroll
    for (int round = 0; round < Copy::kRounds; ++round) {
      const int r = Copy::row(round), c = Copy::column(round);
      table.check(ahead[round]);
      table.copy(to + r * Copy::kStride + c, ahead[round], column + c, across - c);
    }
    look_ahead(from + this->kDepth, depth);
  }
};

}  // namespace mmoe

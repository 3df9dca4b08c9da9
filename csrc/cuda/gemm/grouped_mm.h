// The parts of grouped_mm on CUDA, each in a file of its own (they compile side by side).

#pragma once

#include "../experts.cuh"

namespace mmoe {

inline int32_t to_int32(const char* name, int64_t size) {
  return within_int32(size, name, ": a size of ", size, " is too large");
}

// A matrix whose rows lie `stride` numbers apart.
struct Table {
  const void* data;
  int64_t stride;
};

// The rows that pairs read: pair p row numbers[p] of the table, zeros for -1; without numbers row
// p.
struct PairRows {
  Table table;
  const int32_t* numbers;
  int32_t rows;  // of the table
};

// y = finish(rows @ W[e]), or rows @ W[e]^T. rows_PK, weight_EKN or (transposed) weight_ENK; the
// tail becomes 0.
struct RowsProduct {
  ScalarType type;
  Experts experts;
  PairRows rows;  // [P, depth]
  Table weight;   // [E, depth, width] or [E, width, depth]
  bool transposed;
  int32_t depth;
  Finish finish;
};
void multiply_rows(const RowsProduct& product, cudaStream_t stream);

// weight_EDH[e] = sum over the rows p of expert e of x[p]^T @ dz[p]
struct WeightProduct {
  ScalarType type;
  Experts experts;
  PairRows x;
  Table dz;
  int32_t D, H;
  bool wide;  // a float result beside bfloat16 rows
};
void multiply_weights(const WeightProduct& product, const Tensor& weight_EDH, cudaStream_t stream);

// dz = grad * the activation's derivative, and the sums of dz over the rows of each expert. dz may
// be wider than grad: zeros then fill it up. The tail of dz is left as it is.
struct Differentiation {
  ScalarType type;
  Experts experts;
  const void* grad;  // [P, H]
  const void* kept;  // [P, H]: z, or y of relu
  Activation activation;
  int32_t H;
  void* dz;  // [P, dz_width], or null
  int32_t dz_width;
};
void differentiate(const Differentiation& d, const Tensor* bias_EH, const Tensor& like,
                   cudaStream_t stream);

// The rows that pairs read as a copy of `columns` numbers each, filled up with zeros: x_BD and
// rows_P contiguous, whole packs of columns.
Tensor gather_bf16(const Tensor& x_BD, const Tensor& rows_P, int64_t columns, cudaStream_t stream);

// A copy in bfloat16, each matrix filled up with zeros to [rows, columns], whole packs of columns.
Tensor pad_to_bf16(const Tensor& matrices, int64_t rows, int64_t columns, cudaStream_t stream);

// y = finish(product), where the product's rows may be wider than y's and its tail is garbage.
void finish_rows(const Experts& experts, const Tensor& product_PN, const Finish& finish,
                 cudaStream_t stream);

// Cuts the gradients of the weights out of a wider product, or finishes them in place; experts
// without rows get zeros.
void finish_weights(const Experts& experts, const Tensor& product_EDH, const Tensor& weight_EDH,
                    cudaStream_t stream);

}  // namespace mmoe

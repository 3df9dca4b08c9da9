// Products of small matrices on the CPU, the building blocks of grouped_mm and dense_mm.
//
// Why our own: a row's result must depend on that row alone (not on its place in the batch, the
// batch's height or the number of threads), which no BLAS promises, and experts come in many
// heights, for which oneDNN builds a new kernel each. Every number here is one sum over k in rising
// order, started in one register and never split by thread.
//
// The form is the usual one (Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", 2008): B is packed into panels of `nr` columns, and a kernel holds `mr` rows
// times one panel in registers.

#pragma once

#include <cstdint>

#include "../../activation.h"

namespace mmoe::gemm {

using mmoe::Activation;

// B as it lies in memory: number (k, n) at data[k * step + n], or at data[n * step + k] where
// transposed. `wide`: float32 although the rows are bfloat16; `rounded`: read as the nearest
// bfloat16 by kernels that could multiply the whole number, too.
struct Matrix {
  const void* data;
  int64_t step;
  bool transposed, wide, rounded = true;
};

// Rows of memory that will be read soon: a product fetches them into the cache while it computes,
// as packing them later would otherwise wait for the memory.
struct Ahead {
  const char* data;
  int64_t step, bytes, rows;  // step and bytes of a row

  // Of `parts` equal parts, number `part`.
  Ahead part(int64_t part, int64_t parts) const {
    const int64_t begin = rows * part / parts;
    return {data + begin * step, step, bytes, rows * (part + 1) / parts - begin};
  }
};
constexpr int kMostAhead = 4;

// y = activation(z), rounded, of z = c + added + bias; z too where it is kept.
struct Finish {
  const void* c;
  int64_t c_step, M, N;
  const void* bias;  // sums, or null
  Activation activation;
  void* y;
  int64_t y_step;
  void* z;    // like y, or null
  bool wide;  // y in the type of the sums
  // Rows of the dtype, of which number numbers[m] is added to row m; or null.
  const void* added = nullptr;
  int64_t added_step = 0;
  const int32_t* numbers = nullptr;

  // Whether a product's registers can be finished before they are stored.
  bool is_quick() const {
    return z == nullptr && (activation == Activation::none || activation == Activation::relu);
  }
};

// C = A * B, or C += A * B. A word is one number, or two neighbours along k in bfloat16.
struct Product {
  const void* a;   // rows: word k of row m at a + m * a_step + k * word (bytes); else pack_columns
  int64_t a_step;  // bytes; unused for packed columns
  bool a_rows;
  const void* b;    // from pack_b
  int64_t M, N, K;  // K in words
  void* c;          // sums, M rows of c_step numbers; room for padded(N)
  int64_t c_step;
  bool accumulate;
  const Finish* finish;     // where it `is_quick`: done at once, and nothing is left in c; or null
  Ahead ahead[kMostAhead];  // those of no rows are not there
};

// What there is for one dtype of rows on this processor.
struct Kernels {
  int64_t mr, nr, lanes;   // the most rows and columns of one register block; its vectors
  int64_t word, depth;     // bytes of a word, numbers along k in it
  int64_t size, sum_size;  // bytes of a number of rows, and of a sum
  bool direct;             // rows can be read where they are (if K is whole words)

  void (*pack_b)(const Matrix& b, int64_t K, int64_t N, void* out);
  // Rows to words, a zero behind an odd end.
  void (*copy_rows)(const void* from, int64_t step, int64_t M, int64_t K, void* to,
                    int64_t to_step);
  // The transpose of K rows of M numbers, in groups of at most mr columns. May write words of a
  // later row or group before their time, none past the end.
  void (*pack_columns)(const void* from, int64_t step, int64_t K, int64_t M, void* out);
  void (*multiply)(const Product& product);
  void (*finish)(const Finish& finish);
  // dz = grad * activation'(y or z), for `count` numbers.
  void (*derive)(const void* grad, const void* y, const void* z, Activation activation,
                 int64_t count, void* dz);
  // sums[n] += the numbers of K rows, in order.
  void (*add_rows)(const void* from, int64_t step, int64_t K, int64_t N, void* sums);
  // bias in its own dtype to sums.
  void (*widen)(const void* from, bool wide, int64_t count, void* to);

  int64_t words(int64_t numbers) const { return (numbers + depth - 1) / depth; }
  int64_t padded(int64_t columns) const { return (columns + lanes - 1) / lanes * lanes; }
};

// Splits `total` into the fewest parts of at most `most`, of nearly equal size: 13 rows make 7 + 6,
// not 12 + 1, since small blocks use the registers badly.
struct Parts {
  int64_t total, count;
  Parts(int64_t total, int64_t most) : total(total), count((total + most - 1) / most) {}
  int64_t begin(int64_t part) const { return total * part / count; }
};

extern const Kernels generic_f32, generic_f64, generic_bf16;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MMOE_X86_KERNELS
extern const Kernels avx2_f32, avx2_f64, avx2_bf16;
extern const Kernels avx512_f32, avx512_f64, avx512_bf16;
extern const Kernels avx512bf16_bf16;  // with the processor's own bfloat16 product
#endif

}  // namespace mmoe::gemm

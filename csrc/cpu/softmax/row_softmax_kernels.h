// The loops of row_softmax; see each_isa.h.

#include "../vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

using softmax::kBlockRows;
using softmax::kMostNumbers;

// Rows as columns: a vector then holds one number of many rows.
template <typename S>
MMOE_INLINE void turn(const S* rows, int64_t count, int64_t N, S* columns) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t n = 0; n < N; ++n) columns[n * kBlockRows + r] = rows[r * N + n];
  }
}

template <typename S>
MMOE_INLINE void turn_back(const S* columns, int64_t count, int64_t N, S* rows) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t n = 0; n < N; ++n) rows[r * N + n] = columns[n * kBlockRows + r];
  }
}

template <typename S>
MMOE_INLINE void softmax_of_columns(S* columns, int64_t N) {
  for (int64_t r = 0; r < kBlockRows; r += Lanes<S>::count) {
    auto most = load(columns + r), total = typename Lanes<S>::vec{};
    for (int64_t n = 1; n < N; ++n) most = Larger()(load(columns + n * kBlockRows + r), most);
    for (int64_t n = 0; n < N; ++n) {
      S* at = columns + n * kBlockRows + r;
      const auto e = exp_up_to_zero(load(at) - most);
      total += e;
      store(at, e);
    }
    for (int64_t n = 0; n < N; ++n) {
      S* at = columns + n * kBlockRows + r;
      store(at, load(at) / total);
    }
  }
}

// Rows [begin, end).
template <typename S>
void softmax_rows(const S* x, int64_t begin, int64_t end, int64_t N, S* out) {
  S columns[kMostNumbers * kBlockRows] = {};
  for (int64_t row = begin; row < end; row += kBlockRows) {
    const int64_t count = std::min(kBlockRows, end - row);
    turn(x + row * N, count, N, columns);
    softmax_of_columns(columns, N);
    turn_back(columns, count, N, out + row * N);
  }
}

// p (g - sum of p g).
template <typename S>
MMOE_INLINE void gradient_of_columns(const S* p, S* grad, int64_t N) {
  for (int64_t r = 0; r < kBlockRows; r += Lanes<S>::count) {
    auto total = typename Lanes<S>::vec{};
    for (int64_t n = 0; n < N; ++n) {
      total += load(p + n * kBlockRows + r) * load(grad + n * kBlockRows + r);
    }
    for (int64_t n = 0; n < N; ++n) {
      S* at = grad + n * kBlockRows + r;
      store(at, load(p + n * kBlockRows + r) * (load(at) - total));
    }
  }
}

template <typename S>
void softmax_gradient(const S* grad, const S* p, int64_t begin, int64_t end, int64_t N, S* out) {
  S grads[kMostNumbers * kBlockRows] = {}, values[kMostNumbers * kBlockRows] = {};
  for (int64_t row = begin; row < end; row += kBlockRows) {
    const int64_t count = std::min(kBlockRows, end - row);
    turn(grad + row * N, count, N, grads);
    turn(p + row * N, count, N, values);
    gradient_of_columns(values, grads, N);
    turn_back(grads, count, N, out + row * N);
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

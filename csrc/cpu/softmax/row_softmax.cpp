// row_softmax on the CPU: a softmax over few numbers for very many rows. A row fills less than half
// a vector; so rows are turned, some at a time in the cache, and a vector holds a number of many.

#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "../memory.h"
#include "../rows.h"

namespace mmoe::softmax {

constexpr int64_t kMostNumbers = 16, kBlockRows = 64;

}  // namespace mmoe::softmax

#define MMOE_KERNELS "softmax/row_softmax_kernels.h"
#include "../each_isa.h"

namespace mmoe {
namespace {

// Its rows, one after another, and how many numbers each has.
struct RowsOf {
  int64_t rows, N;

  RowsOf(const char* name, const Tensor& x) {
    check_dim(name, x, 2);
    const ScalarType type = x.scalar_type();
    if (type != ScalarType::Float && type != ScalarType::Double) {
      fail(name, ": expected torch.float32 or torch.float64, got ", type_name(type));
    }
    rows = x.size(0);
    N = x.size(1);
    if (N < 1 || N > softmax::kMostNumbers) {
      fail(name, ": expected rows of 1 to ", softmax::kMostNumbers, " numbers, got ", N);
    }
  }

  template <typename F>
  void each(const F& run) const {
    torch::stable::parallel_for(0, rows, grain(4 * N), run);
  }
};

template <typename S>
void forward(const RowsOf& of, const Tensor& x, const Tensor& out) {
  const auto run = MMOE_BEST(softmax_rows<S>);
  const S* from = static_cast<const S*>(x.const_data_ptr());
  S* to = static_cast<S*>(out.mutable_data_ptr());
  of.each([&](int64_t begin, int64_t end) { run(from, begin, end, of.N, to); });
}

template <typename S>
void backward(const RowsOf& of, const Tensor& grad, const Tensor& p, const Tensor& out) {
  const auto run = MMOE_BEST(softmax_gradient<S>);
  const S* from = static_cast<const S*>(grad.const_data_ptr());
  const S* values = static_cast<const S*>(p.const_data_ptr());
  S* to = static_cast<S*>(out.mutable_data_ptr());
  of.each([&](int64_t begin, int64_t end) { run(from, values, begin, end, of.N, to); });
}

Tensor row_softmax(const Tensor& x_RN) {
  const RowsOf of("x_RN", x_RN);
  const Tensor x = dense(x_RN), out = fresh(x, {of.rows, of.N}, x.scalar_type());
  x.scalar_type() == ScalarType::Double ? forward<double>(of, x, out) : forward<float>(of, x, out);
  return out;
}

Tensor row_softmax_backward(const Tensor& grad_RN, const Tensor& p_RN) {
  const RowsOf of("p_RN", p_RN);
  check_dim("grad_RN", grad_RN, 2);
  check_type("grad_RN", grad_RN, p_RN.scalar_type());
  check_size("grad_RN", grad_RN, 0, of.rows);
  check_size("grad_RN", grad_RN, 1, of.N);
  const Tensor grad = dense(grad_RN), p = dense(p_RN);
  const Tensor out = fresh(p, {of.rows, of.N}, p.scalar_type());
  p.scalar_type() == ScalarType::Double ? backward<double>(of, grad, p, out)
                                        : backward<float>(of, grad, p, out);
  return out;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("row_softmax", MMOE_BOX(row_softmax));
  m.impl("row_softmax_backward", MMOE_BOX(row_softmax_backward));
}

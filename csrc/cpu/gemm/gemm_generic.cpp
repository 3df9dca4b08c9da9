// Products for any processor: plain C++ in small blocks, which the compiler turns into whatever
// vectors the target has.

#include <limits>
#include <type_traits>

#define MMOE_ISA generic
#define MMOE_VECTOR_BYTES 16
#include "gemm_kernels.h"

namespace mmoe::gemm {
namespace generic {
namespace {

template <typename S>
struct Plain {
  using word = S;
  using number = S;
  using sum = S;
  typedef S vec __attribute__((vector_size(16)));
  using bvec = vec;
  using avec = S;
  static constexpr int64_t lanes = 16 / sizeof(S), depth = 1;
  static constexpr int rows = 4, vecs = 2;
  static constexpr bool can_transpose = false;

  static MMOE_INLINE vec zero() { return vec{}; }
  static MMOE_INLINE vec load(const S* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static MMOE_INLINE bvec load_b(const S* p) { return load(p); }
  static MMOE_INLINE void store(S* p, vec v) { std::memcpy(p, &v, sizeof v); }
  static MMOE_INLINE avec spread(S x) { return x; }
  static MMOE_INLINE vec fma(avec a, bvec b, vec c) { return c + a * b; }
  static MMOE_INLINE number narrow(S x) { return x; }
  template <typename T>
  static MMOE_INLINE void pack(const T* row, int64_t, word* out) {
    for (int64_t i = 0; i < lanes; ++i) out[i] = Row<T>::to_sum(row[i]);
  }
};

}  // namespace
}  // namespace generic

const Kernels generic_f32 = generic::kernels<generic::Plain<float>, float>();
const Kernels generic_f64 = generic::kernels<generic::Plain<double>, double>();
const Kernels generic_bf16 = generic::kernels<generic::Plain<float>, bf16>();

}  // namespace mmoe::gemm

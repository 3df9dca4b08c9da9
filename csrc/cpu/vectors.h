// Vectors as wide as the instruction set's, in the compiler's own notation: loads, stores, sums and
// exp. Included by kernels that each_isa.h includes, once per instruction set, and by those of
// gemm/.

namespace mmoe::MMOE_ISA {
namespace {

template <typename N, int Bytes>
struct Vector {
  typedef N type __attribute__((vector_size(Bytes)));
};

// Vectors of the accumulation type S, and the whole numbers that go with them.
template <typename S>
struct Lanes {
  using vec = typename Vector<S, MMOE_VECTOR_BYTES>::type;
  using ints = decltype(vec{} < vec{});
  using int_t = std::decay_t<decltype(ints{}[0])>;
  static constexpr int64_t count = MMOE_VECTOR_BYTES / sizeof(S);
  static constexpr S lowest = -std::numeric_limits<S>::infinity();
};

// To pad rows by to whole vectors.
inline int64_t vector_bytes() { return MMOE_VECTOR_BYTES; }

template <typename S>
MMOE_INLINE typename Lanes<S>::vec load_vec(const S* p) {
  typename Lanes<S>::vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

MMOE_INLINE auto load(const float* p) { return load_vec(p); }
MMOE_INLINE auto load(const double* p) { return load_vec(p); }
MMOE_INLINE void store(float* p, Lanes<float>::vec v) { std::memcpy(p, &v, sizeof v); }
MMOE_INLINE void store(double* p, Lanes<double>::vec v) { std::memcpy(p, &v, sizeof v); }

using words = Vector<uint32_t, MMOE_VECTOR_BYTES>::type;
using halves = Vector<uint16_t, MMOE_VECTOR_BYTES / 2>::type;

// A bfloat16 is the upper half of a float.
MMOE_INLINE Lanes<float>::vec load(const bf16* p) {
  halves h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<Lanes<float>::vec>(__builtin_convertvector(h, words) << 16);
}

// The bits of a float, its upper half rounded to the nearest bfloat16, ties to even; a NaN keeps
// its sign and becomes a quiet one.
MMOE_INLINE words rounded(Lanes<float>::vec v) {
  const words bits = reinterpret_cast<words>(v);
  return v != v ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
}

MMOE_INLINE void store(bf16* p, Lanes<float>::vec v) {
  const halves h = __builtin_convertvector(rounded(v) >> 16, halves);
  std::memcpy(p, &h, sizeof h);
}

// An incomplete vector: absent lanes read as 0 and are not written.
template <typename T>
MMOE_INLINE auto load_some(const T* p, int64_t count) {
  T all[Lanes<typename Row<T>::sum_t>::count] = {};
  for (int64_t i = 0; i < count; ++i) all[i] = p[i];
  return load(all);
}

template <typename T>
MMOE_INLINE void store_some(T* p, typename Lanes<typename Row<T>::sum_t>::vec v, int64_t count) {
  T all[Lanes<typename Row<T>::sum_t>::count];
  store(all, v);
  for (int64_t i = 0; i < count; ++i) p[i] = all[i];
}

struct Larger {
  template <typename V>
  MMOE_INLINE V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

struct Smaller {
  template <typename V>
  MMOE_INLINE V operator()(V a, V b) const {
    return a < b ? a : b;
  }
};

struct Sum {
  template <typename V>
  MMOE_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

// Joins the lanes, halves with halves and then the last few: a fixed order.
template <typename N, int Bytes, typename Join>
MMOE_INLINE N across(typename Vector<N, Bytes>::type v, Join join) {
  if constexpr (Bytes > 16) {
    typename Vector<N, Bytes / 2>::type h[2];
    std::memcpy(h, &v, sizeof v);
    return across<N, Bytes / 2>(join(h[0], h[1]), join);
  } else {
    N all = v[0];
    for (size_t i = 1; i < Bytes / sizeof(N); ++i) all = join(all, v[i]);
    return all;
  }
}

template <typename N, typename Join>
MMOE_INLINE N join_lanes(typename Vector<N, MMOE_VECTOR_BYTES>::type v, Join join) {
  return across<N, MMOE_VECTOR_BYTES>(v, join);
}

// exp of numbers up to 0, with a relative error below 1.2e-7; 0 below -87.3, where float runs out
// of normal numbers. NaN stays NaN. The polynomial is that of Cephes' expf (S. Moshier, 1992):
// exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2.
MMOE_INLINE Lanes<float>::vec exp_up_to_zero(Lanes<float>::vec x) {
  using vec = Lanes<float>::vec;
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  constexpr float log2_e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  const vec shifted = x * log2_e + magic;
  const vec n = shifted - magic;
  const vec r = (x - n * ln2_high) - n * ln2_low;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  // The low bits of `shifted` hold n; moved to the exponent's place they multiply by 2^n.
  const words scaled = reinterpret_cast<words>(p) + (reinterpret_cast<words>(shifted) << 23);
  const vec result = x == x ? reinterpret_cast<vec>(scaled) : x;
  return x < -87.3f ? vec{} : result;
}

// float64 serves gradient checks, where speed does not matter.
MMOE_INLINE Lanes<double>::vec exp_up_to_zero(Lanes<double>::vec x) {
  for (int64_t i = 0; i < Lanes<double>::count; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

// x = exp(x) over a run of numbers.
template <typename S>
MMOE_INLINE void exp_all(S* x, int64_t count) {
  constexpr int64_t lanes = Lanes<S>::count;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(x + i, exp_up_to_zero(load(x + i)));
  if (i < count) store_some(x + i, exp_up_to_zero(load_some(x + i, count - i)), count - i);
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

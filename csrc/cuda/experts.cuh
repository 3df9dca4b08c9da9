// The rows of the experts, and what becomes of a row's sums. Kernels find everything from the
// offsets, on the device: the grid is sized for the most tiles there can be, and tiles that are not
// needed end at once.

#pragma once

#include "common.cuh"

namespace mmoe {

// Expert e owns the rows from offsets[e] up to offsets[e + 1]; from offsets[E] up to P is the tail.
struct Experts {
  const int32_t* offsets;
  int32_t E, P;
};

// `expert` is E for the tail.
struct Tile {
  int32_t expert, first, rows;
};

// Rows from the first to the last of an expert, or of the tail.
__device__ inline Tile rows_of(const Experts& experts, int32_t e) {
  const int32_t first = experts.offsets[e];
  const int32_t end = e < experts.E ? experts.offsets[e + 1] : experts.P;
  MMOE_DEVICE_CHECK(0 <= first && first <= end && end <= experts.P,
                    "offsets_E1: expected offsets that rise from 0 to at most P", first);
  return {e, first, end - first};
}

// The tiles of expert e are numbered from here on. Expert e + 1 starts at least as many numbers
// later as e needs tiles: floor(b / M) - floor(a / M) + 1 >= ceil((b - a) / M).
template <int M>
__device__ int32_t first_tile(const Experts& experts, int32_t e) {
  return experts.offsets[e] / M + e;
}

template <int M>
int64_t most_tiles(const Experts& experts) {
  return int64_t{experts.P} / M + experts.E + 1;
}

// The rows of a tile of M rows by its number; there may be none. For whole warps: the last expert
// whose tiles start at or before the number is searched for by all the lanes.
template <int M>
__device__ Tile find_tile(const Experts& experts, int32_t number) {
  const int32_t lane = threadIdx.x % kWarp;
  int32_t low = 0, count = experts.E + 1;
  while (count > 1) {
    const int32_t step = (count + kWarp - 1) / kWarp, at = lane * step;
    const bool starts = at < count && first_tile<M>(experts, low + at) <= number;
    const int32_t last = 31 - __clz(__ballot_sync(~0u, starts) | 1u);
    low += last * step;
    count = min(step, count - last * step);
  }
  const Tile all = rows_of(experts, low);
  const int32_t skipped = (number - first_tile<M>(experts, low)) * M;
  return {low, all.first + skipped, min(M, all.rows - skipped)};
}

// Offsets that do not start at 0, or fall, would leave rows unwritten without anybody's notice.
__device__ inline void check_offsets(const Experts& experts) {
  MMOE_DEVICE_CHECK(experts.offsets[0] == 0, "offsets_E1: expected the first offset to be 0",
                    experts.offsets[0]);
  for (int32_t e = threadIdx.x; e <= experts.E; e += blockDim.x) rows_of(experts, e);
}

template <typename S>
__device__ S activate(S z, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return z < 0 ? S(0) : z;  // NaN stays NaN
    case Activation::gelu:
      return S(0.5) * z * (1 + erf(z * S(0.70710678118654752)));  // 1 / sqrt(2)
    case Activation::silu:
      return z / (1 + exp(-z));
    default:
      return z;
  }
}

// The gradient of z from that of the result, and from z itself or (relu) the result.
template <typename S>
__device__ S differentiate(S grad, S kept, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return kept <= 0 ? S(0) : grad;  // where y is NaN, the gradient stays
    case Activation::gelu: {
      const S below = S(0.5) * (1 + erf(kept * S(0.70710678118654752)));
      const S density = exp(S(-0.5) * kept * kept) * S(0.39894228040143268);  // 1 / sqrt(2 pi)
      return grad * (below + kept * density);
    }
    case Activation::silu: {
      const S share = 1 / (1 + exp(-kept));
      return grad * share * (1 + kept * (1 - share));
    }
    default:
      return grad;
  }
}

// V neighbours, the first `count` of which exist; in one go where the caller knows that they fit.
template <typename To, int V, typename S>
__device__ void store_some(To* to, const S (&values)[V], int count, bool packs) {
  constexpr int W = V < kPack<To> ? V : kPack<To>;
  if (packs) {
#pragma unroll
    for (int first = 0; first < V; first += W) {
      S part[W];
#pragma unroll
      for (int i = 0; i < W; ++i) part[i] = values[first + i];
      store_pack<To, W>(to + first, part);
    }
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i < count) to[i] = from_sum<To>(values[i]);
    }
  }
}

// What becomes of sums: y = activation(z), z = sums + bias.
struct Finish {
  const void* bias;  // [E, width], or null
  bool wide_bias;    // float beside bfloat16 rows
  Activation activation;
  void* z;  // [P, width], or null
  void* y;  // [P, width]
  int32_t width;
  bool packs;  // width and pointers are multiples of 16 bytes
};

// V sums of one row, from `column` on. The tail has no expert, and its sums are 0.
template <typename T, int V>
__device__ void finish(const Finish& to, int32_t expert, bool is_tail, int64_t row, int32_t column,
                       sum_t<T> (&sums)[V]) {
  using S = sum_t<T>;
  const int count = min(V, to.width - column);
  if (to.bias != nullptr && !is_tail) {
    const int64_t at = int64_t{expert} * to.width + column;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i >= count) break;
      sums[i] += to.wide_bias ? static_cast<const S*>(to.bias)[at + i]
                              : to_sum(static_cast<const T*>(to.bias)[at + i]);
    }
  }
  const int64_t at = row * to.width + column;
  if (to.z != nullptr) store_some(static_cast<T*>(to.z) + at, sums, count, to.packs);
#pragma unroll
  for (int i = 0; i < V; ++i) sums[i] = activate(sums[i], to.activation);
  store_some(static_cast<T*>(to.y) + at, sums, count, to.packs);
}

}  // namespace mmoe

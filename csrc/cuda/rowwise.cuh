// The derivative of an activation and the sums over rows that make a bias's gradient, by blocks of
// eight warps: a tile of rows by 32 lanes' columns, then the tiles' sums, all in a fixed order.

#pragma once

#include "experts.cuh"

namespace mmoe {

constexpr int kTileRows = 128;
constexpr int kWarps = kThreads / kWarp;

// A tile's rows, from the first one on. dz may be wider than the gradient: zeros fill it up.
template <typename T>
struct DerivativeTile {
  const T* grad;  // [rows, H]
  const T* kept;  // [rows, H]: z, or y of relu
  T* dz;          // [rows, dz_width], or null
  int64_t dz_stride;
  sum_t<T>* sums;  // [H], or null
  int32_t rows, H, dz_width;
  Activation activation;
};

template <typename T, int V>
__device__ void differentiate_tile(const DerivativeTile<T>& d, int32_t first_column) {
  using S = sum_t<T>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t column = first_column + lane * V;
  S sums[V] = {};
  for (int64_t row = warp; row < d.rows; row += kWarps) {
    S values[V] = {};
    if (column < d.H) {
      const auto grad = load_pack<T, V>(d.grad + row * d.H + column);
      const auto kept = load_pack<T, V>(d.kept + row * d.H + column);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const S exact = differentiate(to_sum(grad.at[v]), to_sum(kept.at[v]), d.activation);
        values[v] = to_sum(from_sum<T>(exact));  // the bias adds up what the products read
        sums[v] += values[v];
      }
    }
    if (d.dz != nullptr && column < d.dz_width) {
      store_pack<T, V>(d.dz + row * d.dz_stride + column, values);
    }
  }
  if (d.sums == nullptr) return;
  __shared__ S parts[kWarps][kWarp * V];
#pragma unroll
  for (int v = 0; v < V; ++v) parts[warp][lane * V + v] = sums[v];
  __syncthreads();
  for (int c = threadIdx.x; c < kWarp * V && first_column + c < d.H; c += kThreads) {
    S sum = 0;
    for (int i = 0; i < kWarps; ++i) sum += parts[i][c];
    d.sums[first_column + c] = sum;
  }
}

// to[column] = the sum of from[row, column] over the rows, for 32 columns.
template <typename S, typename To>
__device__ void add_rows(const S* from, int32_t rows, int32_t width, int32_t first_column, To* to) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t column = first_column + lane;
  S sum = 0;
  if (column < width) {
    for (int64_t row = warp; row < rows; row += kWarps) sum += from[row * width + column];
  }
  __shared__ S parts[kWarps][kWarp];
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= width) return;
  for (int i = 1; i < kWarps; ++i) sum += parts[i][lane];
  to[column] = from_sum<To>(sum);
}

}  // namespace mmoe

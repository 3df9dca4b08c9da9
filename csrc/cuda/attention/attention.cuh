// target_attention on CUDA, a block of four warps for a row of the batch. A warp takes eight events
// at a time: every weight it reads serves all of them. The weight of an event's own number and that
// of its product with the target are joined where they are read, half of the products' work.
// Blocks go through the rows in turn; backward they hold their sums of the weights' gradients,
// which are then added up in order.

#pragma once

#include "../../target_attention.h"
#include "../common.cuh"

namespace mmoe::attention {

constexpr int kEvents = 8;  // of a warp
constexpr int kTeam = 4;    // warps of a block
constexpr int kTile = kEvents * kTeam;
constexpr int kTeamThreads = kTeam * kWarp;
constexpr int64_t kMostBlocks = 1024;       // backward; forward four times as many
constexpr int64_t kMostPartials = 1 << 24;  // numbers of the weights' gradients, of all blocks

// Neighbours in shared memory that no two rows share a bank for.
template <typename S>
constexpr int kEventPitch = kEvents + kPack<S>;
template <typename S>
constexpr int kTilePitch = kTile + kPack<S>;

constexpr int kMostLayers = static_cast<int>(kMostDeeper);

// A layer after the first one.
template <typename S>
struct Layer {
  const S* weight;         // [in, out]
  const S* bias;           // [out]
  const S* turned;         // backward: the weight [out, in],
  S* of_weight;            // [blocks, in, out]: the block's sums of its gradient,
  S* of_bias;              // [blocks, kTeam, out]: each warp's
  int32_t in, out, first;  // number of its first value among those of all layers
};

template <typename T>
struct Attention {
  using S = sum_t<T>;
  const T* e;
  const int32_t* offsets;
  const T* q;
  const S* weight;  // [2 D, H]
  const S* bias;    // [B, H]
  const S* score;   // [N]
  S* values;        // [blocks, all, kTile]: what the layers make of a tile
  int32_t B, V, D, H, N;
  int32_t all;  // numbers of all layers
  int32_t deeper;
  bool softmax;
  Layer<S> layers[kMostLayers];

  __device__ int32_t width_of(int i) const { return i == 0 ? H : layers[i - 1].out; }
  __device__ int32_t first_of(int i) const { return i == 0 ? 0 : layers[i - 1].first; }
  // Those of a layer's number `n`, for a block's whole tile.
  __device__ S* values_of(int i, int64_t n) const {
    return values + ((int64_t{blockIdx.x} * all + first_of(i)) + n) * kTile;
  }
};

struct Span {
  int32_t begin, end;
};

template <typename T>
__device__ Span events_of(const Attention<T>& d, int64_t b) {
  const int32_t begin = d.offsets[b], end = d.offsets[b + 1];
  MMOE_DEVICE_CHECK(0 <= begin && begin <= end && end <= d.V,
                    "offsets_B1: expected offsets that rise from 0 to the number of events", end);
  MMOE_DEVICE_CHECK(b > 0 || begin == 0, "offsets_B1: expected the first offset to be 0", begin);
  MMOE_DEVICE_CHECK(b + 1 < d.B || end == d.V,
                    "offsets_B1: expected the last offset to be the number of events", end);
  return {begin, end};
}

// N neighbours, 16 bytes at a time.
template <int N, typename S>
__device__ void read(const S* from, S (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += kPack<S>) {
    const auto pack = load_pack<S, kPack<S>>(from + i);
#pragma unroll
    for (int v = 0; v < kPack<S>; ++v) to[i + v] = pack.at[v];
  }
}

template <int N, typename S>
__device__ void write(S* to, const S (&from)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += kPack<S>) {
    Pack<S, kPack<S>> pack;
#pragma unroll
    for (int v = 0; v < kPack<S>; ++v) pack.at[v] = from[i + v];
    *reinterpret_cast<Pack<S, kPack<S>>*>(to + i) = pack;
  }
}

// Eight events of a warp, the last ones perhaps not there.
template <typename T>
struct Events {
  const T* e;  // of the first one
  int32_t count, D;

  __device__ sum_t<T> at(int v, int32_t c) const {
    return v < count && c < D ? to_sum(e[int64_t{v} * D + c]) : sum_t<T>(0);
  }
};

// 1 / the root of the mean square of each, in all lanes.
template <typename T>
__device__ void find_scales(const Events<T>& events, sum_t<T> (&scales)[kEvents]) {
  using S = sum_t<T>;
#pragma unroll
  for (int v = 0; v < kEvents; ++v) {
    S sum = 0;
    for (int32_t c = threadIdx.x % kWarp; c < events.D; c += kWarp) {
      const S x = events.at(v, c);
      sum += x * x;
    }
    scales[v] = 1 / sqrt(add_over_warp(sum) / max(events.D, 1) + S(1e-6));
  }
}

// The products of the events, as they are, with the weights of one hidden number for each lane.
// `room`: shared, the warp's own.
template <typename T>
__device__ void multiply(const Attention<T>& d, const T* q, const Events<T>& events, int32_t h,
                         sum_t<T>* room, sum_t<T> (&z)[kEvents]) {
  using S = sum_t<T>;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int v = 0; v < kEvents; ++v) z[v] = 0;
  for (int32_t first = 0; first < d.D; first += kWarp) {
    __syncwarp();
#pragma unroll
    for (int v = 0; v < kEvents; ++v) {
      room[lane * kEventPitch<S> + v] = events.at(v, first + lane);
    }
    __syncwarp();
    const int32_t width = min(kWarp, d.D - first);
    for (int32_t i = 0; i < width; ++i) {
      const int64_t c = first + i;
      S weight = 0;
      if (h < d.H) weight = d.weight[c * d.H + h] + d.weight[(d.D + c) * d.H + h] * to_sum(q[c]);
      S numbers[kEvents];
      read(room + i * kEventPitch<S>, numbers);
#pragma unroll
      for (int v = 0; v < kEvents; ++v) z[v] += weight * numbers[v];
    }
  }
}

template <typename S>
__device__ S relu(S z) {
  return z < 0 ? S(0) : z;  // NaN stays NaN
}

// The products of a warp's columns of `from` [depth, kTile] with column n of a matrix [depth,
// width].
template <typename S>
__device__ void multiply_columns(const S* from, const S* matrix, int64_t depth, int64_t width,
                                 int64_t n, S (&out)[kEvents]) {
#pragma unroll
  for (int v = 0; v < kEvents; ++v) out[v] = 0;
  for (int64_t k = 0; k < depth; ++k) {
    const S weight = matrix[k * width + n];
    S numbers[kEvents];
    read(from + k * kTile, numbers);
#pragma unroll
    for (int v = 0; v < kEvents; ++v) out[v] += weight * numbers[v];
  }
}

// What all layers make of a warp's events, to the block's values.
template <typename T>
__device__ void find_values(const Attention<T>& d, int64_t b, const Events<T>& events,
                            const sum_t<T> (&scales)[kEvents], sum_t<T>* room) {
  using S = sum_t<T>;
  const int lane = threadIdx.x % kWarp, column = threadIdx.x / kWarp * kEvents;
  for (int32_t start = 0; start < d.H; start += kWarp) {
    const int32_t h = start + lane;
    S z[kEvents];
    multiply(d, d.q + b * d.D, events, h, room, z);
    if (h >= d.H) continue;
#pragma unroll
    for (int v = 0; v < kEvents; ++v) z[v] = relu(z[v] * scales[v] + d.bias[b * d.H + h]);
    write(d.values_of(0, h) + column, z);
  }
  for (int i = 0; i < d.deeper; ++i) {
    const Layer<S>& layer = d.layers[i];
    __syncwarp();
    for (int32_t n = lane; n < layer.out; n += kWarp) {
      S z[kEvents];
      multiply_columns(d.values_of(i, 0) + column, layer.weight, layer.in, layer.out, n, z);
#pragma unroll
      for (int v = 0; v < kEvents; ++v) z[v] = relu(z[v] + layer.bias[n]);
      write(d.values_of(i + 1, n) + column, z);
    }
  }
  __syncwarp();
}

constexpr const char* kTooWide = "weight_2DH: too wide for one CUDA launch";

// The tensors of a call, and their sizes.
struct Read : AttentionTensors {
  int64_t B, V, D, H, N, all;

  explicit Read(AttentionTensors tensors)
      : AttentionTensors(std::move(tensors)),
        B(q.size(0)),
        V(e.size(0)),
        D(q.size(1)),
        H(weight.size(1)),
        N(score.size(0)),
        all(H) {
    for (const Tensor& one : deep_biases) all += one.size(0);
  }

  ScalarType type() const { return score.scalar_type(); }
  Tensor room(int64_t rows, int64_t width) const { return empty(score, {rows, width}, type()); }

  // `values`: room for what the layers make of a tile, for each block.
  template <typename T>
  Attention<T> as(const Tensor& values) const {
    using S = sum_t<T>;
    Attention<T> d = {static_cast<const T*>(e.const_data_ptr()),
                      static_cast<const int32_t*>(offsets.const_data_ptr()),
                      static_cast<const T*>(q.const_data_ptr()),
                      static_cast<const S*>(weight.const_data_ptr()),
                      static_cast<const S*>(bias.const_data_ptr()),
                      static_cast<const S*>(score.const_data_ptr()),
                      static_cast<S*>(values.mutable_data_ptr()),
                      within_int32(B, "q_BD: too many rows for one CUDA launch"),
                      within_int32(V, "e_VD: too many events for one CUDA launch"),
                      within_int32(2 * D, "e_VD: too wide for one CUDA launch") / 2,
                      within_int32(H, kTooWide),
                      within_int32(N, kTooWide),
                      within_int32(all, kTooWide),
                      static_cast<int32_t>(deep_weights.size()),
                      softmax};
    int64_t first = H;
    for (size_t i = 0; i < deep_weights.size(); ++i) {
      Layer<S>& layer = d.layers[i];
      layer.weight = static_cast<const S*>(deep_weights[i].const_data_ptr());
      layer.bias = static_cast<const S*>(deep_biases[i].const_data_ptr());
      layer.in = static_cast<int32_t>(deep_weights[i].size(0));
      layer.out = static_cast<int32_t>(deep_weights[i].size(1));
      layer.first = static_cast<int32_t>(first);
      first += layer.out;
    }
    return d;
  }
};

// As many as go through the rows in turn, whose rooms of so many numbers each are not too large.
inline int64_t blocks_of(const Read& read, int64_t most, int64_t numbers) {
  const int64_t fit = kMostPartials / std::max<int64_t>(numbers, 1);
  return std::min(read.B, std::clamp<int64_t>(fit, 1, most));
}

}  // namespace mmoe::attention

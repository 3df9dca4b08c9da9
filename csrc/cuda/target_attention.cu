// target_attention on CUDA, a block of four warps for a row of the batch. A warp takes eight events
// at a time: every weight it reads serves all of them. The weight of an event's own number and that
// of its product with the target are joined where they are read, half of the products' work.
// Forward a block for each row; backward blocks that go through the rows in turn and hold their
// sums of the weights' gradients, which are then added up in order.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "rowwise.cuh"

namespace mmoe {
namespace {

constexpr int kEvents = 8;  // of a warp
constexpr int kTeam = 4;    // warps of a block
constexpr int kTile = kEvents * kTeam;
constexpr int kTeamThreads = kTeam * kWarp;
constexpr int64_t kMostBlocks = 1024;       // backward
constexpr int64_t kMostPartials = 1 << 24;  // numbers of the weights' gradients, of all blocks

template <typename S>
constexpr S kLeast = -std::numeric_limits<S>::infinity();

// Neighbours in shared memory that no two rows share a bank for.
template <typename S>
constexpr int kEventPitch = kEvents + kPack<S>;
template <typename S>
constexpr int kTilePitch = kTile + kPack<S>;

template <typename T>
struct Attention {
  const T* e;
  const int32_t* offsets;
  const T* q;
  const sum_t<T>* weight;  // [2 D, H]
  const sum_t<T>* bias;    // [B, H]
  const sum_t<T>* score;   // [H]
  int32_t B, V, D, H;
  bool softmax;
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

// Weights that sum to 1, in the place of the scores; for the whole block.
template <typename S>
__device__ void normalise(S* scores, int32_t count) {
  S most = kLeast<S>, sum = 0;
  for (int32_t v = threadIdx.x % kWarp; v < count; v += kWarp) most = max(most, scores[v]);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    most = max(most, __shfl_xor_sync(~0u, most, step));
  }
  for (int32_t v = threadIdx.x % kWarp; v < count; v += kWarp) sum += exp(scores[v] - most);
  sum = add_over_warp(sum);
  __syncthreads();
  for (int32_t v = threadIdx.x; v < count; v += kTeamThreads)
    scores[v] = exp(scores[v] - most) / sum;
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads)
    forward(Attention<T> d, const sum_t<T>* score_bias, sum_t<T>* weights, T* out) {
  using S = sum_t<T>;
  __shared__ __align__(16) S rooms[kTeam][kWarp * kEventPitch<S>];
  __shared__ S parts[kTeam][kWarp];
  const int64_t b = blockIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Span row = events_of(d, b);
  const T* q = d.q + b * d.D;
  for (int32_t first = row.begin + warp * kEvents; first < row.end; first += kTile) {
    const Events<T> events = {d.e + int64_t{first} * d.D, min(kEvents, row.end - first), d.D};
    S scales[kEvents], scores[kEvents] = {};
    find_scales(events, scales);
    for (int32_t start = 0; start < d.H; start += kWarp) {
      const int32_t h = start + lane;
      S z[kEvents];
      multiply(d, q, events, h, rooms[warp], z);
      if (h >= d.H) continue;
#pragma unroll
      for (int v = 0; v < kEvents; ++v) {
        scores[v] += relu(z[v] * scales[v] + d.bias[b * d.H + h]) * d.score[h];
      }
    }
#pragma unroll
    for (int v = 0; v < kEvents; ++v) {
      const S sum = add_over_warp(scores[v]);
      if (lane == v && v < events.count) weights[first + v] = sum + score_bias[0];
    }
  }
  __syncthreads();
  if (d.softmax) normalise(weights + row.begin, row.end - row.begin);
  for (int32_t start = 0; start < d.D; start += kWarp) {
    const int32_t c = start + lane;
    S sum = 0;
    if (c < d.D) {
      for (int32_t v = row.begin + warp; v < row.end; v += kTeam) {
        sum += weights[v] * to_sum(d.e[int64_t{v} * d.D + c]);
      }
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < d.D) {
      for (int i = 1; i < kTeam; ++i) sum += parts[i][lane];
      out[b * d.D + c] = from_sum<T>(sum);
    }
    __syncthreads();
  }
}

// What the backward pass reads beside the forward one, and where it writes.
template <typename T>
struct Gradients {
  using S = sum_t<T>;
  const T* grad;          // [B, D]
  const S* grad_weights;  // [V]
  const S* weights;       // [V]
  const S* turned;        // the layer's weights [H, 2 D]
  T* e;                   // [V, D]
  T* q;                   // [B, D]
  S* bias;                // [B, H]
  S* weight;              // [blocks, 2 D, H]: the block's sums
  S* score;               // [blocks, kTeam, H]: each warp's
  S* score_bias;          // [blocks]
  S* hidden;              // [blocks, H, kTile]: gradients of a tile's products
  S* row_bias;            // [blocks, kTeam, H]: each warp's, of a row
  S* row_q;               // [blocks, D]: of a row
};

// Of a tile's events.
template <typename S>
struct TileRoom {
  S grad[kTile], pull[kTile];
};

// <grad, event> + grad_weights of each of a warp's events, in all lanes; 0 for those not there.
template <typename T>
__device__ void find_grads(const Gradients<T>& to, const T* grad, const Events<T>& events,
                           int32_t first, sum_t<T> (&grads)[kEvents]) {
  using S = sum_t<T>;
#pragma unroll
  for (int v = 0; v < kEvents; ++v) {
    S sum = 0;
    for (int32_t c = threadIdx.x % kWarp; c < events.D; c += kWarp) {
      sum += events.at(v, c) * to_sum(grad[c]);
    }
    sum = add_over_warp(sum);
    grads[v] = v < events.count ? sum + to.grad_weights[first + v] : S(0);
  }
}

// The sum over a row of weight * gradient, which a softmax takes away from each; the same in all
// threads.
template <typename T>
__device__ sum_t<T> mean_grad(const Attention<T>& d, const Gradients<T>& to, const T* grad,
                              Span row) {
  using S = sum_t<T>;
  __shared__ S parts[kTeam];
  const int warp = threadIdx.x / kWarp;
  S sum = 0;
  for (int32_t first = row.begin + warp * kEvents; first < row.end; first += kTile) {
    const Events<T> events = {d.e + int64_t{first} * d.D, min(kEvents, row.end - first), d.D};
    S grads[kEvents];
    find_grads(to, grad, events, first, grads);
#pragma unroll
    for (int v = 0; v < kEvents; ++v) {
      if (v < events.count) sum += to.weights[first + v] * grads[v];
    }
  }
  if (threadIdx.x % kWarp == 0) parts[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < kTeam; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

// A warp's events through the hidden layer: gradients of their products to `hidden`, of bias and
// score to the warp's sums.
template <typename T>
__device__ void differentiate_hidden(const Attention<T>& d, const Gradients<T>& to, int64_t b,
                                     const Events<T>& events, const sum_t<T> (&grads)[kEvents],
                                     sum_t<T>* room, TileRoom<sum_t<T>>& tile) {
  using S = sum_t<T>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  S scales[kEvents], along[kEvents] = {};
  find_scales(events, scales);
  for (int32_t start = 0; start < d.H; start += kWarp) {
    const int32_t h = start + lane;
    S z[kEvents];
    multiply(d, d.q + b * d.D, events, h, room, z);
    if (h >= d.H) continue;
    const int64_t own = (int64_t{blockIdx.x} * kTeam + warp) * d.H + h;
    const S bias = d.bias[b * d.H + h], score = d.score[h];
    S of_score = 0, of_bias = 0, of_products[kEvents];
#pragma unroll
    for (int v = 0; v < kEvents; ++v) {
      const S x = z[v] * scales[v] + bias;
      // An event that is not there has a bias as well
      if (v < events.count) of_score += grads[v] * relu(x);
      const S grad = v < events.count && x > 0 ? grads[v] * score : S(0);
      of_bias += grad;
      along[v] += grad * z[v];
      of_products[v] = grad * scales[v];
    }
    to.score[own] += of_score;
    to.row_bias[own] += of_bias;
    write(to.hidden + (int64_t{blockIdx.x} * d.H + h) * kTile + warp * kEvents, of_products);
  }
#pragma unroll
  for (int v = 0; v < kEvents; ++v) {
    const S sum = add_over_warp(along[v]);
    if (lane == v) {
      tile.pull[warp * kEvents + v] = -sum * scales[v] * scales[v] * scales[v] / max(d.D, 1);
      tile.grad[warp * kEvents + v] = grads[v];
    }
  }
}

// Gradients of a warp's events.
template <typename T>
__device__ void differentiate_events(const Attention<T>& d, const Gradients<T>& to, int64_t b,
                                     const Events<T>& events, int32_t first,
                                     const TileRoom<sum_t<T>>& tile) {
  using S = sum_t<T>;
  const int warp = threadIdx.x / kWarp;
  const S* hidden = to.hidden + int64_t{blockIdx.x} * d.H * kTile + warp * kEvents;
  for (int32_t c = threadIdx.x % kWarp; c < d.D; c += kWarp) {
    const S q = to_sum(d.q[b * d.D + c]), grad = to_sum(to.grad[b * d.D + c]);
    S sums[kEvents] = {};
    for (int64_t h = 0; h < d.H; ++h) {
      const S* row = to.turned + h * 2 * d.D + c;
      const S weight = row[0] + row[d.D] * q;
      S of_products[kEvents];
      read(hidden + h * kTile, of_products);
#pragma unroll
      for (int v = 0; v < kEvents; ++v) sums[v] += weight * of_products[v];
    }
#pragma unroll
    for (int v = 0; v < kEvents; ++v) {
      if (v >= events.count) break;
      const S own = to.weights[first + v] * grad + tile.pull[warp * kEvents + v] * events.at(v, c);
      to.e[int64_t{first + v} * d.D + c] = from_sum<T>(sums[v] + own);
    }
  }
}

// Adds a tile's share to the gradients of the weights, which the block keeps, and of the target.
template <typename T>
__device__ void differentiate_weights(const Attention<T>& d, const Gradients<T>& to, int64_t b,
                                      const Events<T>& events, sum_t<T>* room) {
  using S = sum_t<T>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  S* sums = to.weight + int64_t{blockIdx.x} * 2 * d.D * d.H;
  for (int32_t first = 0; first < d.D; first += kWarp) {
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kEvents; ++v) {
      room[lane * kTilePitch<S> + warp * kEvents + v] = events.at(v, first + lane);
    }
    __syncthreads();
    for (int32_t start = 0; start < d.H; start += kWarp) {
      const int32_t h = start + lane;
      S of_products[kTile] = {};
      if (h < d.H) read(to.hidden + (int64_t{blockIdx.x} * d.H + h) * kTile, of_products);
      for (int32_t i = warp; i < min(kWarp, d.D - first); i += kTeam) {
        const int64_t c = first + i, at = c * d.H + h, below = (d.D + c) * d.H + h;
        S numbers[kTile], sum = 0, of_q = 0;
        read(room + i * kTilePitch<S>, numbers);
#pragma unroll
        for (int v = 0; v < kTile; ++v) sum += of_products[v] * numbers[v];
        if (h < d.H) {
          sums[at] += sum;
          sums[below] += sum * to_sum(d.q[b * d.D + c]);
          of_q = sum * d.weight[below];
        }
        of_q = add_over_warp(of_q);
        if (lane == 0) to.row_q[int64_t{blockIdx.x} * d.D + c] += of_q;
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads) backward(Attention<T> d, Gradients<T> to) {
  using S = sum_t<T>;
  __shared__ __align__(16) S rooms[kWarp * kTilePitch<S>];
  __shared__ TileRoom<S> tile;
  __shared__ __align__(16) S own_rooms[kTeam][kWarp * kEventPitch<S>];
  const int warp = threadIdx.x / kWarp;
  const int64_t block = blockIdx.x, wide = int64_t{kTeam} * d.H;
  S* row_bias = to.row_bias + block * wide;
  S* row_q = to.row_q + block * d.D;
  for (int64_t i = threadIdx.x; i < int64_t{2} * d.D * d.H; i += kTeamThreads) {
    to.weight[block * 2 * d.D * d.H + i] = 0;
  }
  for (int64_t i = threadIdx.x; i < wide; i += kTeamThreads) to.score[block * wide + i] = 0;
  S score_bias = 0;
  for (int64_t b = block; b < d.B; b += gridDim.x) {
    const Span row = events_of(d, b);
    const T* grad = to.grad + b * d.D;
    for (int64_t i = threadIdx.x; i < wide; i += kTeamThreads) row_bias[i] = 0;
    for (int32_t c = threadIdx.x; c < d.D; c += kTeamThreads) row_q[c] = 0;
    __syncthreads();
    const S mean = d.softmax ? mean_grad(d, to, grad, row) : S(0);
    for (int32_t start = row.begin; start < row.end; start += kTile) {
      const int32_t first = start + warp * kEvents;
      const int32_t count = max(0, min(kEvents, row.end - first));
      const Events<T> events = {d.e + int64_t{first} * d.D, count, d.D};
      S grads[kEvents];
      find_grads(to, grad, events, first, grads);
#pragma unroll
      for (int v = 0; v < kEvents; ++v) {
        if (d.softmax && v < count) grads[v] = to.weights[first + v] * (grads[v] - mean);
      }
      differentiate_hidden(d, to, b, events, grads, own_rooms[warp], tile);
      __syncthreads();
      for (int v = 0; v < kTile; ++v) score_bias += tile.grad[v];
      differentiate_events(d, to, b, events, first, tile);
      differentiate_weights(d, to, b, events, rooms);
      __syncthreads();
    }
    __syncthreads();
    for (int32_t c = threadIdx.x; c < d.D; c += kTeamThreads) {
      to.q[b * d.D + c] = from_sum<T>(row_q[c]);
    }
    for (int32_t h = threadIdx.x; h < d.H; h += kTeamThreads) {
      S sum = 0;
      for (int i = 0; i < kTeam; ++i) sum += row_bias[int64_t{i} * d.H + h];
      to.bias[b * d.H + h] = sum;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) to.score_bias[block] = score_bias;
}

template <typename S>
__global__ void add_blocks(const S* from, int32_t rows, int32_t width, S* to) {
  add_rows(from, rows, width, static_cast<int32_t>(blockIdx.x) * kWarp, to);
}

// to = the sum of the rows of `from`, in a fixed order.
template <typename S>
void add_up(const Tensor& from, int64_t rows, const Tensor& to, cudaStream_t stream) {
  const int64_t width = to.numel();
  if (width == 0) return;
  const unsigned blocks = blocks_for((width + kWarp - 1) / kWarp * kThreads);
  add_blocks<<<blocks, kThreads, 0, stream>>>(
      static_cast<const S*>(from.const_data_ptr()), static_cast<int32_t>(rows),
      within_int32(width, "weight_2DH: too many numbers for one CUDA launch"),
      static_cast<S*>(to.mutable_data_ptr()));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// The tensors of a call, dense.
struct Read {
  Tensor e, offsets, q, weight, bias, score;
  int64_t B, V, D, H;
  bool softmax;

  Read(const Tensor& e_VD, const Tensor& offsets_B1, const Tensor& q_BD, const Tensor& weight_2DH,
       const Tensor& bias_BH, const Tensor& score_H, bool softmax)
      : e(dense(e_VD)),
        offsets(dense(offsets_B1)),
        q(dense(q_BD)),
        weight(dense(weight_2DH)),
        bias(dense(bias_BH)),
        score(dense(score_H)),
        B(q.size(0)),
        V(e.size(0)),
        D(q.size(1)),
        H(score.size(0)),
        softmax(softmax) {}

  template <typename T>
  Attention<T> as() const {
    return {static_cast<const T*>(e.const_data_ptr()),
            static_cast<const int32_t*>(offsets.const_data_ptr()),
            static_cast<const T*>(q.const_data_ptr()),
            static_cast<const sum_t<T>*>(weight.const_data_ptr()),
            static_cast<const sum_t<T>*>(bias.const_data_ptr()),
            static_cast<const sum_t<T>*>(score.const_data_ptr()),
            within_int32(B, "q_BD: too many rows for one CUDA launch"),
            within_int32(V, "e_VD: too many events for one CUDA launch"),
            within_int32(2 * D, "e_VD: too wide for one CUDA launch") / 2,
            within_int32(H, "score_H: too wide for one CUDA launch"),
            softmax};
  }
};

std::tuple<Tensor, Tensor> target_attention(const Tensor& e_VD, const Tensor& offsets_B1,
                                            const Tensor& q_BD, const Tensor& weight_2DH,
                                            const Tensor& bias_BH, const Tensor& score_H,
                                            const Tensor& score_bias_1, bool softmax) {
  check_target_attention(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, score_H);
  check_score_bias(score_bias_1, score_H);
  check_device(e_VD, "e_VD",
               {{"offsets_B1", &offsets_B1},
                {"q_BD", &q_BD},
                {"weight_2DH", &weight_2DH},
                {"bias_BH", &bias_BH},
                {"score_H", &score_H},
                {"score_bias_1", &score_bias_1}});
  const Launch launch(e_VD);
  const Read read(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, score_H, softmax);
  const Tensor out = empty_as(read.q);
  const Tensor weights = empty(read.score, {read.V}, read.score.scalar_type());
  if (read.B == 0) return {out, weights};
  for_type(e_VD.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const Attention<T> d = read.as<T>();
    forward<<<static_cast<unsigned>(d.B), kTeamThreads, 0, launch.stream()>>>(
        d, static_cast<const sum_t<T>*>(score_bias_1.const_data_ptr()),
        static_cast<sum_t<T>*>(weights.mutable_data_ptr()),
        static_cast<T*>(out.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {out, weights};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> target_attention_backward(
    const Tensor& grad_BD, const Tensor& grad_weights_V, const Tensor& e_VD,
    const Tensor& offsets_B1, const Tensor& q_BD, const Tensor& weight_2DH, const Tensor& bias_BH,
    const Tensor& score_H, const Tensor& weights_V, bool softmax) {
  check_target_attention(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, score_H);
  check_target_attention_grad(grad_BD, grad_weights_V, e_VD, q_BD, weights_V);
  check_device(e_VD, "e_VD",
               {{"grad_BD", &grad_BD},
                {"grad_weights_V", &grad_weights_V},
                {"offsets_B1", &offsets_B1},
                {"q_BD", &q_BD},
                {"weight_2DH", &weight_2DH},
                {"bias_BH", &bias_BH},
                {"score_H", &score_H},
                {"weights_V", &weights_V}});
  const Launch launch(e_VD);
  const Read read(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, score_H, softmax);
  const Tensor grad = dense(grad_BD), grad_weights = dense(grad_weights_V);
  const Tensor weights = dense(weights_V);
  const Tensor turned = dense(torch::stable::transpose(read.weight, 0, 1));
  const ScalarType type = read.score.scalar_type();
  const auto room = [&](int64_t rows, int64_t width) {
    return empty(read.score, {rows, width}, type);
  };
  const Tensor to_e = empty_as(read.e), to_q = empty_as(read.q), to_weight = empty_as(read.weight);
  const Tensor to_bias = empty_as(read.bias), to_score = empty_as(read.score);
  const Tensor to_score_bias = empty(read.score, {1}, type);
  const int64_t D = read.D, H = read.H;
  const int64_t most =
      std::clamp<int64_t>(kMostPartials / std::max<int64_t>(2 * D * H, 1), 1, kMostBlocks);
  const int64_t blocks = std::min(read.B, most);
  const Tensor of_weight = room(blocks, 2 * D * H), of_score = room(blocks, kTeam * H);
  const Tensor of_score_bias = room(blocks, 1), hidden = room(blocks, H * kTile);
  const Tensor row_bias = room(blocks, kTeam * H), row_q = room(blocks, D);
  for_type(e_VD.scalar_type(), [&](auto number) {
    using T = decltype(number);
    using S = sum_t<T>;
    const auto sums = [](const Tensor& tensor) {
      return static_cast<S*>(tensor.mutable_data_ptr());
    };
    const Gradients<T> to = {static_cast<const T*>(grad.const_data_ptr()),
                             static_cast<const S*>(grad_weights.const_data_ptr()),
                             static_cast<const S*>(weights.const_data_ptr()),
                             static_cast<const S*>(turned.const_data_ptr()),
                             static_cast<T*>(to_e.mutable_data_ptr()),
                             static_cast<T*>(to_q.mutable_data_ptr()),
                             sums(to_bias),
                             sums(of_weight),
                             sums(of_score),
                             sums(of_score_bias),
                             sums(hidden),
                             sums(row_bias),
                             sums(row_q)};
    if (blocks > 0) {
      backward<<<static_cast<unsigned>(blocks), kTeamThreads, 0, launch.stream()>>>(read.as<T>(),
                                                                                    to);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
    add_up<S>(of_weight, blocks, to_weight, launch.stream());
    add_up<S>(of_score, blocks * kTeam, to_score, launch.stream());
    add_up<S>(of_score_bias, blocks, to_score_bias, launch.stream());
  });
  return {to_e, to_q, to_weight, to_bias, to_score, to_score_bias};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("target_attention", MMOE_BOX(target_attention));
  m.impl("target_attention_backward", MMOE_BOX(target_attention_backward));
}

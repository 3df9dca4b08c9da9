// The backward pass of target_attention; see attention.cuh.

#include <torch/csrc/stable/library.h>

#include "../rowwise.cuh"
#include "attention.cuh"

namespace mmoe::attention {
namespace {

// What the backward pass reads beside the forward one, and where it writes.
template <typename T>
struct Gradients {
  using S = sum_t<T>;
  const T* grad;          // [B, D]
  const S* grad_weights;  // [V]
  const S* weights;       // [V]
  const S* turned;        // the first layer's weights [H, 2 D]
  T* e;                   // [V, D]
  T* q;                   // [B, D]
  S* bias;                // [B, H]
  S* of_weight;           // [blocks, 2 D, H]: the block's sums
  S* of_score;            // [blocks, kTeam, N]: each warp's
  S* of_score_bias;       // [blocks]
  S* hidden;    // [blocks, all, kTile]: gradients of what goes into the layers' ReLUs, of the first
                // one those of its products
  S* row_bias;  // [blocks, kTeam, H]: each warp's, of a row
  S* row_q;     // [blocks, D]: of a row

  __device__ S* hidden_of(const Attention<T>& d, int i, int64_t n) const {
    return hidden + (int64_t{blockIdx.x} * d.all + d.first_of(i) + n) * kTile;
  }
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
  parts[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < kTeam; ++i) sum += parts[i];
  return sum;  // the next row comes after other barriers
}

// A warp's events through the layers, the last one first: gradients of what goes into each, and of
// biases and scores to the warp's sums.
template <typename T>
__device__ void differentiate_layers(const Attention<T>& d, const Gradients<T>& to, int64_t b,
                                     const Events<T>& events, const sum_t<T> (&grads)[kEvents],
                                     sum_t<T>* room, TileRoom<sum_t<T>>& tile) {
  using S = sum_t<T>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, column = warp * kEvents;
  const int64_t own = int64_t{blockIdx.x} * kTeam + warp;
  S scales[kEvents], along[kEvents] = {};
  find_scales(events, scales);
  find_values(d, b, events, scales, room);
  for (int i = d.deeper; i >= 0; --i) {
    const int32_t width = d.width_of(i);
    for (int32_t n = lane; n < width; n += kWarp) {
      S values[kEvents], grad[kEvents], of_score = 0, of_bias = 0;
      read(d.values_of(i, n) + column, values);
      if (i == d.deeper) {
#pragma unroll
        for (int v = 0; v < kEvents; ++v) grad[v] = grads[v] * d.score[n];
      } else {
        const Layer<S>& above = d.layers[i];
        multiply_columns(to.hidden_of(d, i + 1, 0) + column, above.turned, above.out, above.in, n,
                         grad);
      }
#pragma unroll
      for (int v = 0; v < kEvents; ++v) {
        // An event that is not there has values as well, of its bias
        const bool exists = v < events.count;
        if (exists) of_score += grads[v] * values[v];
        grad[v] = exists && values[v] > 0 ? grad[v] : S(0);
        of_bias += grad[v];
      }
      if (i == d.deeper) to.of_score[own * d.N + n] += of_score;
      if (i > 0) {
        d.layers[i - 1].of_bias[own * width + n] += of_bias;
      } else {
        to.row_bias[own * d.H + n] += of_bias;
#pragma unroll
        for (int v = 0; v < kEvents; ++v) {
          // Where there is a gradient, the value is what went into the ReLU: product * scale +
          // bias.
          if (grad[v] != 0) along[v] += grad[v] * (values[v] - d.bias[b * d.H + n]);
          grad[v] *= scales[v];
        }
      }
      write(to.hidden_of(d, i, n) + column, grad);
    }
    __syncwarp();
  }
#pragma unroll
  for (int v = 0; v < kEvents; ++v) {
    const S sum = add_over_warp(along[v]);
    tile.pull[column + v] = -sum * scales[v] * scales[v] / max(d.D, 1);
    tile.grad[column + v] = grads[v];
  }
}

// Gradients of a warp's events.
template <typename T>
__device__ void differentiate_events(const Attention<T>& d, const Gradients<T>& to, int64_t b,
                                     const Events<T>& events, int32_t first,
                                     const TileRoom<sum_t<T>>& tile) {
  using S = sum_t<T>;
  const int warp = threadIdx.x / kWarp;
  const S* hidden = to.hidden_of(d, 0, 0) + warp * kEvents;
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
  S* sums = to.of_weight + int64_t{blockIdx.x} * 2 * d.D * d.H;
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
      if (h < d.H) read(to.hidden_of(d, 0, h), of_products);
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

// Likewise of a deeper layer.
template <typename T>
__device__ void differentiate_layer(const Attention<T>& d, const Gradients<T>& to, int i) {
  using S = sum_t<T>;
  const Layer<S>& layer = d.layers[i];
  S* sums = layer.of_weight + int64_t{blockIdx.x} * layer.in * layer.out;
  for (int32_t n = threadIdx.x % kWarp; n < layer.out; n += kWarp) {
    S grads[kTile];
    read(to.hidden_of(d, i + 1, n), grads);
    for (int64_t k = threadIdx.x / kWarp; k < layer.in; k += kTeam) {
      S values[kTile], sum = 0;
      read(d.values_of(i, k), values);
#pragma unroll
      for (int v = 0; v < kTile; ++v) sum += grads[v] * values[v];
      sums[k * layer.out + n] += sum;
    }
  }
}

template <typename S>
__device__ void clear(S* numbers, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += kTeamThreads) numbers[i] = 0;
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads)
    backward(const __grid_constant__ Attention<T> d, const __grid_constant__ Gradients<T> to) {
  using S = sum_t<T>;
  __shared__ __align__(16) S rooms[kWarp * kTilePitch<S>];
  __shared__ TileRoom<S> tile;
  __shared__ __align__(16) S own_rooms[kTeam][kWarp * kEventPitch<S>];
  const int warp = threadIdx.x / kWarp;
  const int64_t block = blockIdx.x, wide = int64_t{kTeam} * d.H;
  S* row_bias = to.row_bias + block * wide;
  S* row_q = to.row_q + block * d.D;
  clear(to.of_weight + block * 2 * d.D * d.H, int64_t{2} * d.D * d.H);
  clear(to.of_score + block * kTeam * d.N, int64_t{kTeam} * d.N);
  for (int i = 0; i < d.deeper; ++i) {
    const Layer<S>& layer = d.layers[i];
    clear(layer.of_weight + block * layer.in * layer.out, int64_t{layer.in} * layer.out);
    clear(layer.of_bias + block * kTeam * layer.out, int64_t{kTeam} * layer.out);
  }
  S score_bias = 0;
  for (int64_t b = block; b < d.B; b += gridDim.x) {
    const Span row = events_of(d, b);
    const T* grad = to.grad + b * d.D;
    clear(row_bias, wide);
    clear(row_q, d.D);
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
      differentiate_layers(d, to, b, events, grads, own_rooms[warp], tile);
      __syncthreads();
      for (int v = 0; v < kTile; ++v) score_bias += tile.grad[v];
      differentiate_events(d, to, b, events, first, tile);
      differentiate_weights(d, to, b, events, rooms);
      for (int i = 0; i < d.deeper; ++i) differentiate_layer(d, to, i);
      __syncthreads();
    }
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
  to.of_score_bias[block] = score_bias;  // all threads the same
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

// What a deeper layer's gradient needs beside it: the weight turned, and the blocks' sums.
struct LayerRoom {
  Tensor turned, of_weight, of_bias, weight, bias;

  LayerRoom(const Read& read, size_t i, int64_t blocks)
      : turned(dense(torch::stable::transpose(read.deep_weights[i], 0, 1))),
        of_weight(read.room(blocks, read.deep_weights[i].numel())),
        of_bias(read.room(blocks, kTeam * read.deep_biases[i].size(0))),
        weight(empty_as(read.deep_weights[i])),
        bias(empty_as(read.deep_biases[i])) {}
};

AttentionGradient target_attention_backward(
    const Tensor& grad_BD, const Tensor& grad_weights_V, const Tensor& e_VD,
    const Tensor& offsets_B1, const Tensor& q_BD, const Tensor& weight_2DH, const Tensor& bias_BH,
    const std::vector<Tensor>& deep_weights, const std::vector<Tensor>& deep_biases,
    const Tensor& score_N, const Tensor& weights_V, bool softmax) {
  check_device(e_VD, "e_VD",
               {{"grad_BD", &grad_BD},
                {"grad_weights_V", &grad_weights_V},
                {"offsets_B1", &offsets_B1},
                {"q_BD", &q_BD},
                {"weight_2DH", &weight_2DH},
                {"bias_BH", &bias_BH},
                {"score_N", &score_N},
                {"weights_V", &weights_V}});
  check_device(e_VD, "e_VD", "deep_weights", deep_weights);
  check_device(e_VD, "e_VD", "deep_biases", deep_biases);
  const Launch launch(e_VD);
  const Read read(
      {e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, deep_weights, deep_biases, score_N, softmax});
  check_target_attention_grad(grad_BD, grad_weights_V, e_VD, q_BD, weights_V);
  const Tensor grad = dense(grad_BD), grad_weights = dense(grad_weights_V);
  const Tensor weights = dense(weights_V);
  const Tensor turned = dense(torch::stable::transpose(read.weight, 0, 1));
  const Tensor to_e = empty_as(read.e), to_q = empty_as(read.q), to_weight = empty_as(read.weight);
  const Tensor to_bias = empty_as(read.bias), to_score = empty_as(read.score);
  const Tensor to_score_bias = empty(read.score, {1}, read.type());
  int64_t numbers = 2 * read.D * read.H + 2 * read.all * kTile;
  for (const Tensor& weight : read.deep_weights) numbers += weight.numel();
  const int64_t blocks = blocks_of(read, kMostBlocks, numbers);
  const Tensor of_weight = read.room(blocks, 2 * read.D * read.H);
  const Tensor of_score = read.room(blocks, kTeam * read.N), of_score_bias = read.room(blocks, 1);
  const Tensor values = read.room(blocks, read.all * kTile);
  const Tensor hidden = read.room(blocks, read.all * kTile);
  const Tensor row_bias = read.room(blocks, kTeam * read.H), row_q = read.room(blocks, read.D);
  std::vector<LayerRoom> layers;
  for (size_t i = 0; i < deep_weights.size(); ++i) layers.emplace_back(read, i, blocks);
  for_type(e_VD.scalar_type(), [&](auto number) {
    using T = decltype(number);
    using S = sum_t<T>;
    const auto sums = [](const Tensor& tensor) {
      return static_cast<S*>(tensor.mutable_data_ptr());
    };
    const Gradients<T> to = {static_cast<const T*>(grad.const_data_ptr()),
                             sums(grad_weights),
                             sums(weights),
                             sums(turned),
                             static_cast<T*>(to_e.mutable_data_ptr()),
                             static_cast<T*>(to_q.mutable_data_ptr()),
                             sums(to_bias),
                             sums(of_weight),
                             sums(of_score),
                             sums(of_score_bias),
                             sums(hidden),
                             sums(row_bias),
                             sums(row_q)};
    Attention<T> d = read.as<T>(values);
    for (size_t i = 0; i < layers.size(); ++i) {
      d.layers[i].turned = sums(layers[i].turned);
      d.layers[i].of_weight = sums(layers[i].of_weight);
      d.layers[i].of_bias = sums(layers[i].of_bias);
    }
    const cudaStream_t stream = launch.stream();
    if (blocks > 0) {
      backward<<<static_cast<unsigned>(blocks), kTeamThreads, 0, stream>>>(d, to);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
    add_up<S>(of_weight, blocks, to_weight, stream);
    add_up<S>(of_score, blocks * kTeam, to_score, stream);
    add_up<S>(of_score_bias, blocks, to_score_bias, stream);
    for (const LayerRoom& layer : layers) {
      add_up<S>(layer.of_weight, blocks, layer.weight, stream);
      add_up<S>(layer.of_bias, blocks * kTeam, layer.bias, stream);
    }
  });
  std::vector<Tensor> to_deep_weights, to_deep_biases;
  for (const LayerRoom& layer : layers) {
    to_deep_weights.push_back(layer.weight);
    to_deep_biases.push_back(layer.bias);
  }
  return {to_e, to_q, to_weight, to_bias, to_deep_weights, to_deep_biases, to_score, to_score_bias};
}

}  // namespace
}  // namespace mmoe::attention

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("target_attention_backward", MMOE_BOX(attention::target_attention_backward));
}

// The forward pass of target_attention; see attention.cuh.

#include <torch/csrc/stable/library.h>

#include "attention.cuh"

namespace mmoe::attention {
namespace {

template <typename S>
constexpr S kLeast = -std::numeric_limits<S>::infinity();

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
__device__ void attend(const Attention<T>& d, int64_t b, const sum_t<T>* score_bias,
                       sum_t<T>* weights, T* out) {
  using S = sum_t<T>;
  __shared__ __align__(16) S rooms[kTeam][kWarp * kEventPitch<S>];
  __shared__ S parts[kTeam][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Span row = events_of(d, b);
  for (int32_t first = row.begin + warp * kEvents; first < row.end; first += kTile) {
    const Events<T> events = {d.e + int64_t{first} * d.D, min(kEvents, row.end - first), d.D};
    S scales[kEvents], scores[kEvents] = {};
    find_scales(events, scales);
    find_values(d, b, events, scales, rooms[warp]);
    for (int32_t n = lane; n < d.N; n += kWarp) {
      S values[kEvents];
      read(d.values_of(d.deeper, n) + warp * kEvents, values);
#pragma unroll
      for (int v = 0; v < kEvents; ++v) scores[v] += values[v] * d.score[n];
    }
#pragma unroll
    for (int v = 0; v < kEvents; ++v) {
      const S sum = add_over_warp(scores[v]);
      if (v < events.count) weights[first + v] = sum + score_bias[0];  // all lanes the same
    }
    __syncwarp();
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

template <typename T>
__global__ void __launch_bounds__(kTeamThreads)
    forward(const __grid_constant__ Attention<T> d, const sum_t<T>* score_bias, sum_t<T>* weights,
            T* out) {
  for (int64_t b = blockIdx.x; b < d.B; b += gridDim.x) attend(d, b, score_bias, weights, out);
}

std::tuple<Tensor, Tensor> target_attention(const Tensor& e_VD, const Tensor& offsets_B1,
                                            const Tensor& q_BD, const Tensor& weight_2DH,
                                            const Tensor& bias_BH,
                                            const std::vector<Tensor>& deep_weights,
                                            const std::vector<Tensor>& deep_biases,
                                            const Tensor& score_N, const Tensor& score_bias_1,
                                            bool softmax) {
  check_device(e_VD, "e_VD",
               {{"offsets_B1", &offsets_B1},
                {"q_BD", &q_BD},
                {"weight_2DH", &weight_2DH},
                {"bias_BH", &bias_BH},
                {"score_N", &score_N},
                {"score_bias_1", &score_bias_1}});
  check_device(e_VD, "e_VD", "deep_weights", deep_weights);
  check_device(e_VD, "e_VD", "deep_biases", deep_biases);
  const Launch launch(e_VD);
  const Read read(
      {e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, deep_weights, deep_biases, score_N, softmax});
  check_score_bias(score_bias_1, score_N);
  const Tensor out = empty_as(read.q), weights = empty(read.score, {read.V}, read.type());
  const int64_t blocks = blocks_of(read, 4 * kMostBlocks, read.all * kTile);
  if (blocks == 0) return {out, weights};
  const Tensor values = read.room(blocks, read.all * kTile);
  for_type(e_VD.scalar_type(), [&](auto type) {
    using T = decltype(type);
    forward<<<static_cast<unsigned>(blocks), kTeamThreads, 0, launch.stream()>>>(
        read.as<T>(values), static_cast<const sum_t<T>*>(score_bias_1.const_data_ptr()),
        static_cast<sum_t<T>*>(weights.mutable_data_ptr()),
        static_cast<T*>(out.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {out, weights};
}

}  // namespace
}  // namespace mmoe::attention

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("target_attention", MMOE_BOX(attention::target_attention));
}

// topk_gate on CUDA: a group of 8 or 32 lanes per (sample, gate). Every pick is the best expert
// that comes after the pick before it (by logit, then by number), so nothing is marked or sorted.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "common.cuh"

namespace mmoe {
namespace {

constexpr int kFewExperts = 16;  // up to here eight lanes are enough

template <typename S>
constexpr S kInfinity = std::numeric_limits<S>::infinity();
template <typename S>
constexpr S kLargest = std::numeric_limits<S>::max();

template <typename T>
struct Gate {
  const T* logits;
  const bool* visible;
  int64_t rows;  // B * G
  int32_t G, E, K;
  bool after;

  // The logit to pick by: -inf for what the gate does not see. NaN stays.
  __device__ sum_t<T> value(int64_t row, int32_t e) const {
    using S = sum_t<T>;
    if (!visible[row % G * E + e]) return -kInfinity<S>;
    const S logit = to_sum(logits[row * E + e]);
    return logit > kLargest<S> ? kLargest<S> : logit;  // with +inf, softmax would take inf from inf
  }
};

// The total order of the picks: NaN, then larger logits, and of equals the lower number.
template <typename S>
__device__ bool precedes(S a, int32_t i, S b, int32_t j) {
  const bool a_is_nan = a != a, b_is_nan = b != b;
  if (a_is_nan != b_is_nan) return a_is_nan;
  return a_is_nan || a == b ? i < j : a > b;
}

template <int W, typename S>
__device__ S add_over_lanes(S value) {
#pragma unroll
  for (int step = W / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

template <int W, typename S>
__device__ S max_over_lanes(S value) {
#pragma unroll
  for (int step = W / 2; step > 0; step /= 2) {
    const S other = __shfl_xor_sync(~0u, value, step);
    value = other > value ? other : value;
  }
  return value;
}

template <typename S>
struct Pick {
  S logit;
  int32_t expert;  // E: none
};

// The best expert after `last`, the same in all lanes of the group.
template <int W, typename T>
__device__ Pick<sum_t<T>> next_pick(const Gate<T>& d, int64_t row, int lane, bool is_first,
                                    Pick<sum_t<T>> last) {
  using S = sum_t<T>;
  constexpr S none = -kInfinity<S>;
  Pick<S> best = {none, d.E};
  for (int32_t e = lane; e < d.E; e += W) {
    const S logit = d.value(row, e);
    if (logit == none) continue;
    if (!is_first && !precedes(last.logit, last.expert, logit, e)) continue;
    if (precedes(logit, e, best.logit, best.expert)) best = {logit, e};
  }
#pragma unroll
  for (int step = W / 2; step > 0; step /= 2) {
    const S logit = __shfl_xor_sync(~0u, best.logit, step);
    const int32_t e = __shfl_xor_sync(~0u, best.expert, step);
    if (precedes(logit, e, best.logit, best.expert)) best = {logit, e};
  }
  return best;
}

template <int W, typename T>
__global__ void forward(Gate<T> d, sum_t<T>* weights, int32_t* experts) {
  using S = sum_t<T>;
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / W;
  const int lane = threadIdx.x % W;
  // All lanes of the last warp go along, for the exchanges; those without a row write nothing.
  const bool exists = i < d.rows;
  const int64_t row = exists ? i : d.rows - 1;
  weights += row * d.K;
  experts += row * d.K;
  Pick<S> last = {};
  S largest = 0, sum = 0;
  for (int32_t k = 0; k < d.K; ++k) {
    last = next_pick<W>(d, row, lane, k == 0, last);  // after none comes none
    if (k == 0) largest = last.logit;
    const bool found = last.expert < d.E;
    const S share = found ? exp(last.logit - largest) : S(0);
    sum += share;
    if (exists && lane == k % W) {
      experts[k] = found ? last.expert : -1;
      weights[k] = share;
    }
  }
  if (!d.after) {
    sum = 0;
    for (int32_t e = lane; e < d.E; e += W) sum += exp(d.value(row, e) - largest);
    sum = add_over_lanes<W>(sum);
  }
  if (!exists) return;
  // Each lane finishes what it wrote itself. Without any pick the sum means nothing.
  for (int32_t k = lane; k < d.K; k += W) {
    if (experts[k] >= 0) weights[k] /= sum;
  }
}

template <int W, typename T>
__global__ void backward(Gate<T> d, const sum_t<T>* grad, const int32_t* experts, T* grad_logits) {
  using S = sum_t<T>;
  constexpr S none = -kInfinity<S>;
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / W;
  const int lane = threadIdx.x % W;
  const bool exists = i < d.rows;
  const int64_t row = exists ? i : d.rows - 1;
  grad += row * d.K;
  experts += row * d.K;

  S largest = none, sum = 0, dot = 0;
  for (int32_t k = lane; k < d.K; k += W) {
    const int32_t e = experts[k];
    MMOE_DEVICE_CHECK(e >= -1 && e < d.E, "experts_BGK: expected an expert in [0, E) or -1", e);
    if (e >= 0) largest = max(largest, d.value(row, e));
  }
  if (!d.after) {
    for (int32_t e = lane; e < d.E; e += W) largest = max(largest, d.value(row, e));
  }
  largest = max_over_lanes<W>(largest);
  for (int32_t k = lane; k < d.K; k += W) {
    if (experts[k] < 0) continue;
    const S share = exp(d.value(row, experts[k]) - largest);
    // An expert that is picked again adds to the gradient, not to the softmax over the picks.
    bool is_first = true;
    for (int32_t j = 0; j < k; ++j) is_first &= experts[j] != experts[k];
    if (d.after && is_first) sum += share;
    dot += share * grad[k];
  }
  if (!d.after) {
    for (int32_t e = lane; e < d.E; e += W) sum += exp(d.value(row, e) - largest);
  }
  sum = add_over_lanes<W>(sum);
  dot = add_over_lanes<W>(dot) / sum;
  if (!exists) return;

  for (int32_t e = lane; e < d.E; e += W) {
    bool picked = false;
    S from = 0;
    for (int32_t k = 0; k < d.K; ++k) {
      if (experts[k] != e) continue;
      picked = true;
      from += grad[k];
    }
    const S logit = d.value(row, e);
    const bool counts = logit != none && (picked || !d.after);
    const S result = counts ? exp(logit - largest) / sum * (from - dot) : S(0);
    grad_logits[row * d.E + e] = from_sum<T>(result);
  }
}

template <typename T>
Gate<T> describe(const Tensor& logits, const Tensor& visibility, int64_t K, bool after) {
  return {static_cast<const T*>(logits.const_data_ptr()),
          static_cast<const bool*>(visibility.const_data_ptr()),
          logits.size(0) * logits.size(1),
          static_cast<int32_t>(logits.size(1)),
          static_cast<int32_t>(logits.size(2)),
          static_cast<int32_t>(K),
          after};
}

template <typename T>
void run_forward(const Gate<T>& d, const Tensor& weights, const Tensor& experts,
                 cudaStream_t stream) {
  if (d.rows == 0) return;
  auto* to = static_cast<sum_t<T>*>(weights.mutable_data_ptr());
  auto* picks = static_cast<int32_t*>(experts.mutable_data_ptr());
  if (d.E <= kFewExperts) {
    forward<8><<<blocks_for(d.rows * 8), kThreads, 0, stream>>>(d, to, picks);
  } else {
    forward<kWarp><<<blocks_for(d.rows * kWarp), kThreads, 0, stream>>>(d, to, picks);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void run_backward(const Gate<T>& d, const Tensor& grad, const Tensor& experts,
                  const Tensor& grad_logits, cudaStream_t stream) {
  if (d.rows == 0) return;
  const auto* from = static_cast<const sum_t<T>*>(grad.const_data_ptr());
  const auto* picks = static_cast<const int32_t*>(experts.const_data_ptr());
  T* to = static_cast<T*>(grad_logits.mutable_data_ptr());
  if (d.E <= kFewExperts) {
    backward<8><<<blocks_for(d.rows * 8), kThreads, 0, stream>>>(d, from, picks, to);
  } else {
    backward<kWarp><<<blocks_for(d.rows * kWarp), kThreads, 0, stream>>>(d, from, picks, to);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

std::tuple<Tensor, Tensor> topk_gate(const Tensor& logits_BGE, const Tensor& visibility_GE,
                                     int64_t k, bool softmax_after) {
  check_topk_gate(logits_BGE, visibility_GE);
  if (k < 1) fail("k: expected at least 1 pick per gate, got ", k);
  check_device(logits_BGE, "logits_BGE", {{"visibility_GE", &visibility_GE}});
  const Launch launch(logits_BGE);
  const Tensor logits = dense(logits_BGE), visibility = dense(visibility_GE);
  const int64_t B = logits.size(0), G = logits.size(1), K = std::min(k, logits.size(2));
  const Tensor weights = empty(logits, {B, G, K}, accumulate_type(logits.scalar_type()));
  const Tensor experts = empty(logits, {B, G, K}, ScalarType::Int);
  for_type(logits.scalar_type(), [&](auto type) {
    run_forward(describe<decltype(type)>(logits, visibility, K, softmax_after), weights, experts,
                launch.stream());
  });
  return {weights, experts};
}

Tensor topk_gate_backward(const Tensor& grad_BGK, const Tensor& logits_BGE,
                          const Tensor& visibility_GE, const Tensor& experts_BGK,
                          bool softmax_after) {
  check_topk_gate(logits_BGE, visibility_GE);
  check_topk_gate_grad(grad_BGK, logits_BGE, experts_BGK);
  check_device(
      logits_BGE, "logits_BGE",
      {{"grad_BGK", &grad_BGK}, {"visibility_GE", &visibility_GE}, {"experts_BGK", &experts_BGK}});
  const Launch launch(logits_BGE);
  const Tensor logits = dense(logits_BGE), visibility = dense(visibility_GE);
  const Tensor grad = dense(grad_BGK), experts = dense(experts_BGK);
  const Tensor grad_logits = empty_as(logits);
  for_type(logits.scalar_type(), [&](auto type) {
    run_backward(describe<decltype(type)>(logits, visibility, experts.size(2), softmax_after), grad,
                 experts, grad_logits, launch.stream());
  });
  return grad_logits;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("topk_gate", MMOE_BOX(topk_gate));
  m.impl("topk_gate_backward", MMOE_BOX(topk_gate_backward));
}

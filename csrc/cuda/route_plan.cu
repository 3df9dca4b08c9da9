// route_plan on CUDA: one bit per (expert, sample), a prefix sum over the words' bit counts, and
// each pick's number is the sum before its word plus the bits before it. The order in which threads
// set bits does not matter, so the plan is the CPU's, and no value goes to the host.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "scan.cuh"

namespace mmoe {
namespace {

struct Picks {
  const int32_t* experts;
  int64_t B, per_sample, E, words;  // words of 32 samples per expert
  int64_t count() const { return B * per_sample; }
};

__global__ void mark(Picks p, uint32_t* bits) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.B * p.per_sample) return;
  const int32_t e = p.experts[i];
  MMOE_DEVICE_CHECK(e >= -1 && e < p.E, "experts_BGK: expected an expert in [0, E) or -1", e);
  if (e < 0) return;
  const int64_t b = i / p.per_sample;
  atomicOr(bits + e * p.words + b / 32, 1u << (b % 32));
}

__global__ void count_bits(const uint32_t* bits, int32_t* counts, int64_t words) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // One more than there are words, so that the prefix sum ends with the number of pairs.
  if (i <= words) counts[i] = i < words ? __popc(bits[i]) : 0;
}

__global__ void number_pairs(Picks p, const uint32_t* bits, const int32_t* before, int32_t* rows,
                             int32_t* offsets, int32_t* slots) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i <= p.E) offsets[i] = before[i * p.words];
  if (i >= p.B * p.per_sample) return;
  const int32_t e = p.experts[i];
  if (e < 0) {
    slots[i] = -1;
    return;
  }
  const int64_t b = i / p.per_sample, word = e * p.words + b / 32;
  const int32_t slot = before[word] + __popc(bits[word] & ((1u << (b % 32)) - 1u));
  slots[i] = slot;
  rows[slot] = static_cast<int32_t>(b);  // picks that share the pair write the same
}

template <typename T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

std::tuple<Tensor, Tensor, Tensor> route_plan(const Tensor& experts_BGK, int64_t num_experts) {
  const int64_t P = check_route_plan(experts_BGK, num_experts);
  const Launch launch(experts_BGK);
  const cudaStream_t stream = launch.stream();
  const Tensor input = dense(experts_BGK);
  const int64_t B = input.size(0), G = input.size(1), K = input.size(2);
  const Picks picks = {static_cast<const int32_t*>(input.const_data_ptr()), B, G * K, num_experts,
                       (B + 31) / 32};
  const int64_t words = num_experts * picks.words;

  const Tensor rows_P = empty(input, {P}, ScalarType::Int);
  const Tensor offsets_E1 = empty(input, {num_experts + 1}, ScalarType::Int);
  const Tensor slots_BGK = empty(input, {B, G, K}, ScalarType::Int);
  const Tensor bits = empty(input, {words}, ScalarType::Int);
  const Tensor counts = empty(input, {words + 1}, ScalarType::Int);
  // All bits set is -1: what the tail keeps.
  fill_bytes(rows_P, 0xff, stream);
  fill_bytes(bits, 0, stream);

  if (picks.count() > 0) {
    mark<<<blocks_for(picks.count()), kThreads, 0, stream>>>(picks, data<uint32_t>(bits));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  count_bits<<<blocks_for(words + 1), kThreads, 0, stream>>>(data<uint32_t>(bits),
                                                             data<int32_t>(counts), words);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  scan(counts, words + 1, stream);

  const int64_t threads = std::max(picks.count(), num_experts + 1);
  number_pairs<<<blocks_for(threads), kThreads, 0, stream>>>(
      picks, data<uint32_t>(bits), data<int32_t>(counts), data<int32_t>(rows_P),
      data<int32_t>(offsets_E1), data<int32_t>(slots_BGK));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return {rows_P, offsets_E1, slots_BGK};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) { m.impl("route_plan", MMOE_BOX(route_plan)); }

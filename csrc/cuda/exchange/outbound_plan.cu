// outbound_plan on CUDA: a thread counts the picks of one (lane, sample), and one bit stands for
// each (expert, sample); one prefix sum over all of these counts numbers rows, picks, sums and
// pairs. Threads write what they numbered, so the plan is the CPU's, and no value goes to the host.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../scan.cuh"
#include "exchange.cuh"

namespace mmoe {
namespace {

struct Home {
  int32_t lane, order, place, held;
};

struct Outbound {
  const int32_t* experts;
  const Home* homes;
  int64_t B, K, picks, E, S, lanes, words;  // picks of a sample; words of 32 samples per expert

  // Where each kind of count starts in the one that is summed.
  __host__ __device__ int64_t of_picks() const { return lanes * B; }
  __host__ __device__ int64_t of_sums() const { return 2 * lanes * B; }
  __host__ __device__ int64_t of_pairs() const { return 3 * lanes * B; }
  __host__ __device__ int64_t counts() const { return of_pairs() + E * words; }
};

template <typename T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// One thread for each expert: how many experts lie before its rank, and on it.
__global__ void read_homes(const int32_t* homes_E3, int64_t E, int64_t W, int64_t S, int64_t picks,
                           Home* homes) {
  const int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e >= E) return;
  const int32_t rank = homes_E3[3 * e], place = homes_E3[3 * e + 1], source = homes_E3[3 * e + 2];
  MMOE_DEVICE_CHECK(rank >= 0 && rank < W, "homes_E3: expected a rank in [0, W)", rank);
  MMOE_DEVICE_CHECK(source >= 0 && source < S, "homes_E3: expected a source in [0, S)", source);
  int32_t before = 0, held = 0, here = 0;
  for (int64_t other = 0; other < E; ++other) {
    before += homes_E3[3 * other] < rank;
    held += homes_E3[3 * other] == rank;
    here += homes_E3[3 * other] == rank && homes_E3[3 * other + 1] == place;
  }
  MMOE_DEVICE_CHECK(place >= 0 && place < held && here == 1,
                    "homes_E3: expected the places of a rank, each once", place);
  MMOE_DEVICE_CHECK(held <= exchange::kMost / picks,
                    "experts_BGK: expected codes of a rank's experts that fit in int32", held);
  homes[e] = {static_cast<int32_t>(rank * S + source), before + place, place, held};
}

__global__ void mark_pairs(Outbound d, uint32_t* bits) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= d.B * d.picks) return;
  const int32_t e = d.experts[i];
  MMOE_DEVICE_CHECK(e >= -1 && e < d.E, "experts_BGK: expected an expert in [0, E) or -1", e);
  if (e < 0) return;
  const int64_t b = i / d.picks;
  atomicOr(bits + d.homes[e].order * d.words + b / 32, 1u << (b % 32));
}

__global__ void count(Outbound d, const uint32_t* bits, int32_t* counts) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // One more than there are, so that the prefix sum ends with the total.
  if (i <= d.E * d.words) {
    counts[d.of_pairs() + i] = i < d.E * d.words ? __popc(bits[i]) : 0;
  }
  if (i >= d.lanes * d.B) return;
  const int64_t c = i / d.B, b = i % d.B;
  int32_t picks = 0, sums = 0;
  int64_t last_gate = -1;
  for (int64_t k = 0; k < d.picks; ++k) {
    const int32_t e = d.experts[b * d.picks + k];
    if (e < 0 || d.homes[e].lane != c) continue;
    ++picks;
    sums += k / d.K != last_gate;
    last_gate = k / d.K;
  }
  counts[i] = picks > 0;
  counts[d.of_picks() + i] = picks;
  counts[d.of_sums() + i] = sums;
}

struct Written {
  int32_t *rows, *entries, *codes, *row_of, *pair_of, *sum_of;
};

// `before` is the prefix sum of all counts.
__global__ void write(Outbound d, const uint32_t* bits, const int32_t* before, Written out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= d.lanes * d.B) return;
  const int64_t c = i / d.B, b = i % d.B;
  const int32_t row = before[i];
  int32_t entry = before[d.of_picks() + i] - before[d.of_picks()];
  int32_t sum = before[d.of_sums() + i] - before[d.of_sums()] - 1;
  int64_t last_gate = -1;
  for (int64_t k = 0; k < d.picks; ++k) {
    const int64_t pick = b * d.picks + k;
    const int32_t e = d.experts[pick];
    if (e < 0) {
      if (c == 0) out.row_of[pick] = out.pair_of[pick] = out.sum_of[pick] = -1;
      continue;
    }
    const Home home = d.homes[e];
    if (home.lane != c) continue;
    if (last_gate < 0) out.rows[row] = static_cast<int32_t>(b * d.S + c % d.S);
    const int32_t code = static_cast<int32_t>(k) * home.held + home.place;
    out.codes[entry] = last_gate < 0 ? -1 - code : code;
    out.entries[entry++] = static_cast<int32_t>(pick);
    sum += k / d.K != last_gate;
    last_gate = k / d.K;
    const int64_t word = home.order * d.words + b / 32;
    out.row_of[pick] = row;
    out.sum_of[pick] = sum;
    out.pair_of[pick] = before[d.of_pairs() + word] - before[d.of_pairs()] +
                        __popc(bits[word] & ((1u << (b % 32)) - 1u));
  }
}

// A thread for each rank.
__global__ void measure(Outbound d, int64_t W, const int32_t* before, int64_t* sizes) {
  const int64_t w = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (w >= W) return;
  const int64_t first = w * d.S * d.B, last = (w + 1) * d.S * d.B;
  int32_t begin = 0, end = 0;  // experts in the order of the ranks
  for (int64_t e = 0; e < d.E; ++e) {
    begin += d.homes[e].lane / d.S < w;
    end += d.homes[e].lane / d.S <= w;
  }
  sizes[4 * w] = before[last] - before[first];
  sizes[4 * w + 1] = before[d.of_picks() + last] - before[d.of_picks() + first];
  sizes[4 * w + 2] = before[d.of_pairs() + end * d.words] - before[d.of_pairs() + begin * d.words];
  sizes[4 * w + 3] = before[d.of_sums() + last] - before[d.of_sums() + first];
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> outbound_plan(
    const Tensor& experts_BGK, const Tensor& homes_E3, int64_t num_ranks, int64_t num_sources) {
  const int64_t M = exchange::check_outbound_plan(experts_BGK, homes_E3, num_ranks, num_sources);
  check_device(experts_BGK, "experts_BGK", {{"homes_E3", &homes_E3}});
  const Launch launch(experts_BGK);
  const cudaStream_t stream = launch.stream();
  const Tensor input = dense(experts_BGK), homes = dense(homes_E3);
  const int64_t B = input.size(0), G = input.size(1), K = input.size(2), E = homes.size(0);
  const Tensor table = empty(input, {E, sizeof(Home) / sizeof(int32_t)}, ScalarType::Int);
  const Outbound d = {static_cast<const int32_t*>(input.const_data_ptr()),
                      data<const Home>(table),
                      B,
                      K,
                      G * K,
                      E,
                      num_sources,
                      num_ranks * num_sources,
                      (B + 31) / 32};
  const int64_t Q = B * G * K, words = E * d.words;
  // Rows, picks, sums and pairs are numbered in one sum.
  within_int32(std::max(d.counts() + 1, 4 * Q), "experts_BGK: ", B, " samples times ", d.lanes,
               " ranks and sources do not fit in int32; split the batch");
  const Tensor rows_M = empty(input, {M}, ScalarType::Int);
  const Tensor entries = empty(input, {Q}, ScalarType::Int),
               codes = empty(input, {Q}, ScalarType::Int);
  const Tensor row_of = empty(input, {B, G, K}, ScalarType::Int);
  const Tensor pair_of = empty(input, {B, G, K}, ScalarType::Int);
  const Tensor sum_of = empty(input, {B, G, K}, ScalarType::Int);
  const Tensor sizes = empty(input, {num_ranks, 4}, ScalarType::Long);
  const Tensor bits = empty(input, {words}, ScalarType::Int);
  const Tensor counts = empty(input, {d.counts() + 1}, ScalarType::Int);
  // All bits set is -1: what the tails keep.
  fill_bytes(rows_M, 0xff, stream);
  fill_bytes(entries, 0xff, stream);
  fill_bytes(codes, 0, stream);
  fill_bytes(bits, 0, stream);

  read_homes<<<blocks_for(E), kThreads, 0, stream>>>(
      static_cast<const int32_t*>(homes.const_data_ptr()), E, num_ranks, num_sources, d.picks,
      data<Home>(table));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  if (Q > 0) {
    mark_pairs<<<blocks_for(Q), kThreads, 0, stream>>>(d, data<uint32_t>(bits));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  count<<<blocks_for(std::max(d.lanes * B, words + 1)), kThreads, 0, stream>>>(
      d, data<uint32_t>(bits), data<int32_t>(counts));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  scan(counts, d.counts() + 1, stream);
  if (B > 0) {
    const Written out = {data<int32_t>(rows_M), data<int32_t>(entries), data<int32_t>(codes),
                         data<int32_t>(row_of), data<int32_t>(pair_of), data<int32_t>(sum_of)};
    write<<<blocks_for(d.lanes * B), kThreads, 0, stream>>>(d, data<uint32_t>(bits),
                                                            data<int32_t>(counts), out);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  measure<<<blocks_for(num_ranks), kThreads, 0, stream>>>(d, num_ranks, data<int32_t>(counts),
                                                          data<int64_t>(sizes));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return {rows_M, entries, codes, row_of, pair_of, sum_of, sizes};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) { m.impl("outbound_plan", MMOE_BOX(outbound_plan)); }

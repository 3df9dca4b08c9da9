// decode_picks and return_plan on CUDA. Codes below 0 tell rows apart: a prefix sum over them
// numbers the rows. An expert's pairs from one rank lie side by side, so a prefix sum over their
// counts, rank by rank, numbers the pairs that go back; one over the sums asked for numbers those.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../scan.cuh"
#include "exchange.cuh"

namespace mmoe {
namespace {

using exchange::Layout;
using exchange::Links;
using exchange::Message;
using exchange::numbers;
using exchange::writable;

__device__ int32_t code_of(const Layout& layout, const Message<const char>& message, int64_t q,
                           int64_t w) {
  const int64_t i = q - layout.links.first(w, exchange::kPicks);
  const int64_t at = layout.codes(w) + i * exchange::kCodeBytes;
  return exchange::read_number<int32_t>(message.at(at, exchange::kCodeBytes));
}

// begins[q + 1] = 1 where pick q is the first of its row: the sum before q + 1 counts q's row too.
__global__ void mark_rows(Layout layout, Message<const char> message, int64_t rows, int64_t picks,
                          int32_t* begins) {
  if (blockIdx.x == 0) {
    exchange::check_layout(layout, message.bytes, rows, picks);
    const int64_t found = layout.links.first(layout.links.W, exchange::kRows);
    MMOE_DEVICE_CHECK(found == rows, "links_WL: expected num_rows rows in all", found);
    const int64_t counted = layout.links.first(layout.links.W, exchange::kPicks);
    MMOE_DEVICE_CHECK(counted == picks, "links_WL: expected num_picks picks in all", counted);
  }
  const int64_t q = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (q > picks) return;
  begins[q] =
      q < picks && code_of(layout, message, q, layout.links.rank_of(q, exchange::kPicks)) < 0;
}

template <typename S>
__global__ void place_picks(Layout layout, Message<const char> message, const int32_t* rows_before,
                            int64_t num_picks, int64_t rows, int64_t picks, int64_t experts,
                            int32_t* pick, S* weight, int32_t* places) {
  const int64_t q = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (q >= num_picks) return;
  const int64_t w = layout.links.rank_of(q, exchange::kPicks);
  int32_t code = code_of(layout, message, q, w);
  const int64_t n = rows_before[q + 1] - 1;
  if (code < 0) code = -1 - code;
  MMOE_DEVICE_CHECK(n >= 0 && n < rows && code / experts < picks,
                    "message: expected codes that outbound_plan wrote", code);
  const int64_t place = n * picks + code / experts;
  places[q] = static_cast<int32_t>(place);
  pick[place] = static_cast<int32_t>(code % experts);
  if (!layout.links.sums(w)) return;
  const int64_t i = q - layout.links.first(w, exchange::kPicks);
  constexpr int64_t size = sizeof(S);
  weight[place] = exchange::read_number<S>(message.at(layout.weights(w) + i * size, size));
}

std::tuple<Tensor, Tensor, Tensor> decode_picks(const Tensor& message, const Tensor& links_WL,
                                                int64_t rows, int64_t picks, int64_t G, int64_t K,
                                                int64_t num_experts, int64_t width,
                                                ScalarType dtype, ScalarType wire) {
  exchange::check_decode_picks(message, links_WL, rows, picks, G, K, num_experts, width, dtype,
                               wire);
  check_device(message, "message", {{"links_WL", &links_WL}});
  const Launch launch(message);
  const cudaStream_t stream = launch.stream();
  const Tensor from = exchange::even(message), table = dense(links_WL);
  const ScalarType sums = accumulate_type(dtype);
  const Layout layout = {exchange::read_links(table), width * exchange::bytes_of(wire),
                         exchange::kCodeBytes, exchange::bytes_of(sums)};
  const Tensor picks_NGK = empty(from, {rows, G, K}, ScalarType::Int);
  const Tensor weights_NGK = empty(from, {rows, G, K}, sums);
  const Tensor places_Q = empty(from, {picks}, ScalarType::Int);
  fill_bytes(picks_NGK, 0xff, stream);
  fill_bytes(weights_NGK, 0, stream);
  const Message<const char> sent = exchange::read_message(from);
  const Tensor before = empty(from, {picks + 1}, ScalarType::Int);
  mark_rows<<<blocks_for(picks + 1), kThreads, 0, stream>>>(layout, sent, rows, picks,
                                                            writable<int32_t>(before));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  if (picks == 0) return {picks_NGK, weights_NGK, places_Q};
  scan(before, picks + 1, stream);
  for_type(sums, [&](auto type) {
    using S = sum_t<decltype(type)>;
    place_picks<S><<<blocks_for(picks), kThreads, 0, stream>>>(
        layout, sent, numbers(before), picks, rows, G * K, std::max<int64_t>(1, num_experts),
        writable<int32_t>(picks_NGK), static_cast<S*>(weights_NGK.mutable_data_ptr()),
        writable<int32_t>(places_Q));
  });
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return {picks_NGK, weights_NGK, places_Q};
}

// Pairs of the experts, each sorted by row.
struct Pairs {
  Links links;
  const int32_t *rows, *offsets;
  int64_t E, R;

  // The first pair of an expert whose row is that of rank w or of a later one.
  __device__ int32_t first(int64_t w, int64_t e) const {
    const int64_t row = links.first(w, exchange::kRows);
    int32_t low = offsets[e], high = offsets[e + 1];
    MMOE_DEVICE_CHECK(0 <= low && low <= high && high <= R,
                      "offsets_E1: expected offsets that rise from 0 to at most R", high);
    while (low < high) {
      const int32_t middle = low + (high - low) / 2;
      if (rows[middle] < row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

__global__ void count_pairs(Pairs d, int32_t* counts) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i > d.links.W * d.E) return;
  const int64_t w = i / d.E, e = i % d.E;
  counts[i] = w < d.links.W ? d.first(w + 1, e) - d.first(w, e) : 0;
}

// What goes back to a rank is what its links count.
__device__ void check_back(const Links& links, int64_t w, int64_t found) {
  MMOE_DEVICE_CHECK(found == links.count(w, exchange::kBack),
                    "links_WL: expected the rows back that the plan finds", found);
}

// A warp for the pairs of a (rank, expert).
__global__ void number_pairs(Pairs d, const int32_t* before, int32_t* back) {
  const int64_t i = exchange::warp_number();
  if (i >= d.links.W * d.E) return;
  const int64_t w = i / d.E, e = i % d.E;
  if (d.links.sums(w)) return;
  if (e == 0) check_back(d.links, w, before[(w + 1) * d.E] - before[w * d.E]);
  const int32_t first = d.first(w, e), last = d.first(w + 1, e);
  const int64_t start = d.links.first(w, exchange::kBack) + before[i] - before[w * d.E];
  for (int32_t p = first + threadIdx.x % kWarp; p < last; p += kWarp) {
    const int32_t row = d.rows[p];
    MMOE_DEVICE_CHECK(
        row >= d.links.first(w, exchange::kRows) && row < d.links.first(w + 1, exchange::kRows),
        "rows_R: expected rows that rise within each expert", row);
    back[p] = static_cast<int32_t>(start + p - first);
  }
}

__device__ bool is_asked(const int32_t* slots, int64_t i, int64_t K) {
  for (int64_t k = 0; k < K; ++k) {
    if (slots[i * K + k] >= 0) return true;
  }
  return false;
}

__global__ void count_sums(Links links, const int32_t* slots, int64_t N, int64_t G, int64_t K,
                           int32_t* counts) {
  if (blockIdx.x == 0) {
    exchange::check_table(links);
    const int64_t rows = links.first(links.W, exchange::kRows);
    MMOE_DEVICE_CHECK(rows == N, "links_WL: expected the rows that slots_NGK has", rows);
  }
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i > N * G) return;
  counts[i] =
      i < N * G && links.sums(links.rank_of(i / G, exchange::kRows)) && is_asked(slots, i, K);
}

__global__ void number_sums(Links links, const int32_t* before, int64_t N, int64_t G,
                            int32_t* back) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= N * G) return;
  const int64_t w = links.rank_of(i / G, exchange::kRows);
  const int64_t first = links.first(w, exchange::kRows), end = links.first(w + 1, exchange::kRows);
  MMOE_DEVICE_CHECK(0 <= first && first <= end && end <= N,
                    "links_WL: expected the rows that slots_NGK has", end);
  if (i == first * G && links.sums(w)) check_back(links, w, before[end * G] - before[i]);
  const int64_t number = before[i] - before[first * G];
  back[i] = before[i + 1] == before[i]
                ? -1
                : static_cast<int32_t>(links.first(w, exchange::kBack) + number);
}

std::tuple<Tensor, Tensor> return_plan(const Tensor& rows_R, const Tensor& offsets_E1,
                                       const Tensor& slots_NGK, const Tensor& links_WL) {
  exchange::check_return_plan(rows_R, offsets_E1, slots_NGK, links_WL);
  check_device(rows_R, "rows_R",
               {{"offsets_E1", &offsets_E1}, {"slots_NGK", &slots_NGK}, {"links_WL", &links_WL}});
  const Launch launch(rows_R);
  const cudaStream_t stream = launch.stream();
  const Tensor rows = dense(rows_R), offsets = dense(offsets_E1), slots = dense(slots_NGK);
  const Tensor table = dense(links_WL);
  const int64_t N = slots.size(0), G = slots.size(1), K = slots.size(2), R = rows.numel();
  const Pairs d = {exchange::read_links(table), numbers(rows), numbers(offsets),
                   std::max<int64_t>(0, offsets.numel() - 1), R};
  const Tensor back_R = empty(rows, {R}, ScalarType::Int);
  const Tensor back_NG = empty(rows, {N, G}, ScalarType::Int);
  fill_bytes(back_R, 0xff, stream);
  if (R > 0 && d.E > 0) {
    const int64_t count = d.links.W * d.E;
    const Tensor before = empty(rows, {count + 1}, ScalarType::Int);
    count_pairs<<<blocks_for(count + 1), kThreads, 0, stream>>>(d, writable<int32_t>(before));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    scan(before, count + 1, stream);
    number_pairs<<<blocks_for(count * kWarp), kThreads, 0, stream>>>(d, numbers(before),
                                                                     writable<int32_t>(back_R));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  const Tensor before = empty(rows, {N * G + 1}, ScalarType::Int);
  count_sums<<<blocks_for(N * G + 1), kThreads, 0, stream>>>(d.links, numbers(slots), N, G, K,
                                                             writable<int32_t>(before));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  if (N * G > 0) {
    scan(before, N * G + 1, stream);
    number_sums<<<blocks_for(N * G), kThreads, 0, stream>>>(d.links, numbers(before), N, G,
                                                            writable<int32_t>(back_NG));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return {back_R, back_NG};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("decode_picks", MMOE_BOX(decode_picks));
  m.impl("return_plan", MMOE_BOX(return_plan));
}

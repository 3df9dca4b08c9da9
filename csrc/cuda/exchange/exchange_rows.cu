// pack_rows and unpack_rows on CUDA, and their gradients. A warp for each row; the rows of a sample
// are added up in their order, so that nothing is added atomically.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "exchange.cuh"

namespace mmoe {
namespace {

using exchange::Layout;
using exchange::Links;
using exchange::Message;
using exchange::numbers;

constexpr int kMostSources = 64;

struct Sources {
  const void* data[kMostSources];
  int64_t count, B;
};

// At least one, which checks.
unsigned warps(int64_t rows) { return blocks_for(std::max<int64_t>(1, rows) * kWarp); }

template <typename T, typename N>
__global__ void gather_out(Layout layout, Sources sources, const int32_t* rows, int64_t most,
                           int64_t picks, int64_t D, Message<char> message) {
  if (blockIdx.x == 0) exchange::check_layout(layout, message.bytes, most, picks);
  const int64_t n = exchange::warp_number();
  if (n >= min(most, layout.links.first(layout.links.W, exchange::kRows))) return;
  const int32_t row = rows[n];
  MMOE_DEVICE_CHECK(row >= 0 && row < sources.B * sources.count,
                    "rows_M: expected a row of the samples and sources", row);
  const T* x = static_cast<const T*>(sources.data[row % sources.count]) + row / sources.count * D;
  char* to = message.at(layout.row(n, layout.links.rank_of(n, exchange::kRows)), layout.row_bytes);
  exchange::for_columns(D, [&](int64_t o) {
    using S = sum_t<T>;
    exchange::write_number(to + o * sizeof(N), exchange::narrowed<N>(exchange::widened<S>(x[o])));
  });
}

// A thread for each pick: its code, and its weight where that travels. `codes` may be null.
template <typename S>
__global__ void write_picks(Layout layout, const int32_t* codes, const int32_t* entries,
                            const S* weights, int64_t most, int64_t num_weights,
                            Message<char> message) {
  const int64_t q = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (q >= min(most, layout.links.first(layout.links.W, exchange::kPicks))) return;
  const int64_t w = layout.links.rank_of(q, exchange::kPicks);
  const int64_t i = q - layout.links.first(w, exchange::kPicks);
  if (codes != nullptr) {
    const int64_t at = layout.codes(w) + i * exchange::kCodeBytes;
    exchange::write_number(message.at(at, exchange::kCodeBytes), codes[q]);
  }
  if (!layout.links.sums(w)) return;
  const int32_t entry = entries[q];
  MMOE_DEVICE_CHECK(entry >= -1 && entry < num_weights, "entries_Q: expected a pick or -1", entry);
  constexpr int64_t size = sizeof(S);
  exchange::write_number(message.at(layout.weights(w) + i * size, size),
                         entry < 0 ? S{0} : weights[entry]);
}

template <typename S>
void run_write_picks(const Layout& layout, const int32_t* codes, const Tensor& entries,
                     const Tensor& weights, const Tensor& message, cudaStream_t stream) {
  if (entries.numel() == 0) return;
  write_picks<S><<<blocks_for(entries.numel()), kThreads, 0, stream>>>(
      layout, codes, numbers(entries), static_cast<const S*>(weights.const_data_ptr()),
      entries.numel(), weights.numel(), exchange::write_message(message));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor pack_rows(const std::vector<Tensor>& sources, const Tensor& weights_BGK,
                 const Tensor& rows_M, const Tensor& entries_Q, const Tensor& codes_Q,
                 const Tensor& links_WL, ScalarType wire, int64_t num_bytes) {
  exchange::check_pack_rows(sources, weights_BGK, rows_M, entries_Q, codes_Q, links_WL, wire);
  check_device(weights_BGK, "weights_BGK",
               {{"rows_M", &rows_M},
                {"entries_Q", &entries_Q},
                {"codes_Q", &codes_Q},
                {"links_WL", &links_WL}});
  check_device(weights_BGK, "weights_BGK", "sources", sources);
  if (sources.size() > kMostSources) {
    fail("sources: expected at most ", kMostSources, " tensors on a GPU, got ", sources.size());
  }
  const Launch launch(weights_BGK);
  const Tensor rows = dense(rows_M), entries = dense(entries_Q), codes = dense(codes_Q);
  const Tensor weights = dense(weights_BGK), table = dense(links_WL);
  const int64_t D = sources[0].size(1);
  const Layout layout = {exchange::read_links(table), D * exchange::bytes_of(wire),
                         exchange::kCodeBytes, static_cast<int64_t>(weights.element_size())};
  std::vector<Tensor> kept;
  Sources from = {{}, static_cast<int64_t>(sources.size()), sources[0].size(0)};
  for (const Tensor& source : sources) {
    kept.push_back(dense(source));
    from.data[kept.size() - 1] = kept.back().const_data_ptr();
  }
  exchange::check_num_bytes(num_bytes);
  const Tensor message = empty(weights, {num_bytes}, ScalarType::Byte);
  exchange::for_types(sources[0].scalar_type(), wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    gather_out<T, N><<<warps(rows.numel()), kThreads, 0, launch.stream()>>>(
        layout, from, numbers(rows), rows.numel(), entries.numel(), D,
        exchange::write_message(message));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    run_write_picks<sum_t<T>>(layout, numbers(codes), entries, weights, message, launch.stream());
  });
  return message;
}

// A warp for each (sample, source): the rows that it was sent as, in increasing order.
template <typename T, typename N>
__global__ void add_up_samples(Layout layout, Message<const char> message, const int32_t* rows,
                               int64_t num_rows, const int32_t* slots, int64_t num_picks, int64_t B,
                               int64_t S, int64_t picks, int64_t D, T* grad) {
  if (blockIdx.x == 0) exchange::check_layout(layout, message.bytes, num_rows, num_picks);
  const int64_t i = exchange::warp_number();
  if (i >= B * S) return;
  const int32_t* own = slots + i / S * picks;
  const int64_t total = min(num_rows, layout.links.first(layout.links.W, exchange::kRows));
  for (int64_t first = 0; first < D; first += kWarp) {
    const int64_t o = first + threadIdx.x % kWarp;
    sum_t<T> sum = 0;
    int32_t last = -1;
    for (;;) {
      const uint32_t next = exchange::next_number(own, picks, last);
      if (next == exchange::kNone) break;
      last = static_cast<int32_t>(next);
      MMOE_DEVICE_CHECK(last < total, "rows_BGK: expected a row in [0, N) or -1", last);
      if (rows[last] % S != i % S || o >= D) continue;
      const int64_t at = layout.row(last, layout.links.rank_of(last, exchange::kRows));
      const char* row = message.at(at, layout.row_bytes);
      sum += exchange::widened<sum_t<T>>(exchange::read_number<N>(row + o * sizeof(N)));
    }
    if (o < D) grad[i * D + o] = from_sum<T>(sum);
  }
}

template <typename S>
__global__ void read_weights(Layout layout, Message<const char> message, const int32_t* entries,
                             int64_t most, int64_t num_weights, S* grad) {
  const int64_t q = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (q >= min(most, layout.links.first(layout.links.W, exchange::kPicks))) return;
  const int64_t w = layout.links.rank_of(q, exchange::kPicks);
  const int32_t entry = entries[q];
  MMOE_DEVICE_CHECK(entry >= -1 && entry < num_weights, "entries_Q: expected a pick or -1", entry);
  if (entry < 0 || !layout.links.sums(w)) return;
  const int64_t i = q - layout.links.first(w, exchange::kPicks);
  constexpr int64_t size = sizeof(S);
  grad[entry] = exchange::read_number<S>(message.at(layout.weights(w) + i * size, size));
}

std::tuple<Tensor, Tensor> pack_rows_backward(const Tensor& message, const Tensor& rows_M,
                                              const Tensor& rows_BGK, const Tensor& entries_Q,
                                              const Tensor& links_WL, int64_t num_sources,
                                              int64_t width, ScalarType dtype, ScalarType wire) {
  exchange::check_message(message);
  exchange::check_wire(dtype, wire);
  exchange::check_index("rows_M", rows_M);
  exchange::check_picks("rows_BGK", rows_BGK, rows_BGK);
  exchange::check_index("entries_Q", entries_Q);
  exchange::check_links(links_WL);
  exchange::check_sizes(num_sources, width);
  check_device(message, "message",
               {{"rows_M", &rows_M},
                {"rows_BGK", &rows_BGK},
                {"entries_Q", &entries_Q},
                {"links_WL", &links_WL}});
  const Launch launch(message);
  const Tensor from = exchange::even(message), rows = dense(rows_M), slots = dense(rows_BGK);
  const Tensor entries = dense(entries_Q), table = dense(links_WL);
  const int64_t B = slots.size(0), picks = slots.size(1) * slots.size(2);
  const ScalarType sums = accumulate_type(dtype);
  const Layout layout = {exchange::read_links(table), width * exchange::bytes_of(wire), 0,
                         exchange::bytes_of(sums)};
  const Tensor grad = empty(from, {B, num_sources, width}, dtype);
  const Tensor grad_weights = empty(from, {B, slots.size(1), slots.size(2)}, sums);
  fill_bytes(grad_weights, 0, launch.stream());
  exchange::for_types(dtype, wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    add_up_samples<T, N><<<warps(B * num_sources), kThreads, 0, launch.stream()>>>(
        layout, exchange::read_message(from), numbers(rows), rows.numel(), numbers(slots),
        entries.numel(), B, num_sources, picks, width, static_cast<T*>(grad.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    if (entries.numel() == 0) return;
    read_weights<sum_t<T>><<<blocks_for(entries.numel()), kThreads, 0, launch.stream()>>>(
        layout, exchange::read_message(from), numbers(entries), entries.numel(),
        grad_weights.numel(), static_cast<sum_t<T>*>(grad_weights.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {grad, grad_weights};
}

template <typename T, typename N>
__global__ void gather_in(Layout layout, Message<const char> message, const int32_t* rows,
                          int64_t R, int64_t D, T* x) {
  if (blockIdx.x == 0) {
    exchange::check_layout(layout, message.bytes, exchange::kMost, exchange::kMost);
  }
  const int64_t i = exchange::warp_number();
  if (i >= R) return;
  const int32_t n = rows[i];
  MMOE_DEVICE_CHECK(n >= -1 && n < layout.links.first(layout.links.W, exchange::kRows),
                    "rows_R: expected a row in [0, N) or -1", n);
  const char* row = nullptr;
  if (n >= 0) {
    row = message.at(layout.row(n, layout.links.rank_of(n, exchange::kRows)), layout.row_bytes);
  }
  exchange::for_columns(D, [&](int64_t o) {
    using S = sum_t<T>;
    x[i * D + o] = n < 0 ? from_sum<T>(0)
                         : exchange::narrowed<T>(
                               exchange::widened<S>(exchange::read_number<N>(row + o * sizeof(N))));
  });
}

Tensor unpack_rows(const Tensor& message, const Tensor& rows_R, const Tensor& links_WL,
                   int64_t width, ScalarType dtype, ScalarType wire) {
  exchange::check_message(message);
  exchange::check_wire(dtype, wire);
  exchange::check_index("rows_R", rows_R);
  exchange::check_links(links_WL);
  exchange::check_sizes(1, width);
  check_device(message, "message", {{"rows_R", &rows_R}, {"links_WL", &links_WL}});
  const Launch launch(message);
  const Tensor from = exchange::even(message), rows = dense(rows_R), table = dense(links_WL);
  const Layout layout = {exchange::read_links(table), width * exchange::bytes_of(wire),
                         exchange::kCodeBytes, exchange::bytes_of(accumulate_type(dtype))};
  const Tensor x = empty(from, {rows.numel(), width}, dtype);
  exchange::for_types(dtype, wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    gather_in<T, N><<<warps(rows.numel()), kThreads, 0, launch.stream()>>>(
        layout, exchange::read_message(from), numbers(rows), rows.numel(), width,
        static_cast<T*>(x.mutable_data_ptr()));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return x;
}

template <typename T, typename N>
__global__ void add_up_pairs(Layout layout, const T* grad, int64_t R, const int32_t* slots,
                             int64_t rows, int64_t picks, int64_t D, int64_t num_picks,
                             Message<char> message) {
  if (blockIdx.x == 0) exchange::check_layout(layout, message.bytes, rows, num_picks);
  const int64_t n = exchange::warp_number();
  if (n >= min(rows, layout.links.first(layout.links.W, exchange::kRows))) return;
  char* to = message.at(layout.row(n, layout.links.rank_of(n, exchange::kRows)), layout.row_bytes);
  for (int64_t first = 0; first < D; first += kWarp) {
    const int64_t o = first + threadIdx.x % kWarp;
    sum_t<T> sum = 0;
    int32_t last = -1;
    for (;;) {
      const uint32_t next = exchange::next_number(slots + n * picks, picks, last);
      if (next == exchange::kNone) break;
      last = static_cast<int32_t>(next);
      MMOE_DEVICE_CHECK(last < R, "slots_NGK: expected a slot in [0, R) or -1", last);
      if (o < D) sum += to_sum(grad[last * D + o]);
    }
    if (o < D) exchange::write_number(to + o * sizeof(N), exchange::narrowed<N>(sum));
  }
}

Tensor unpack_rows_backward(const Tensor& grad_RD, const Tensor& grad_weights_NGK,
                            const Tensor& slots_NGK, const Tensor& places_Q, const Tensor& links_WL,
                            ScalarType wire, int64_t num_bytes) {
  exchange::check_unpack_rows_backward(grad_RD, grad_weights_NGK, slots_NGK, places_Q, links_WL,
                                       wire);
  check_device(grad_RD, "grad_RD",
               {{"grad_weights_NGK", &grad_weights_NGK},
                {"slots_NGK", &slots_NGK},
                {"places_Q", &places_Q},
                {"links_WL", &links_WL}});
  const Launch launch(grad_RD);
  const Tensor grad = dense(grad_RD), grad_weights = dense(grad_weights_NGK);
  const Tensor slots = dense(slots_NGK), places = dense(places_Q), table = dense(links_WL);
  const int64_t D = grad.size(1), rows = slots.size(0), picks = slots.size(1) * slots.size(2);
  const Layout layout = {exchange::read_links(table), D * exchange::bytes_of(wire), 0,
                         static_cast<int64_t>(grad_weights.element_size())};
  exchange::check_num_bytes(num_bytes);
  const Tensor message = empty(grad, {num_bytes}, ScalarType::Byte);
  exchange::for_types(grad.scalar_type(), wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    add_up_pairs<T, N><<<warps(rows), kThreads, 0, launch.stream()>>>(
        layout, static_cast<const T*>(grad.const_data_ptr()), grad.size(0), numbers(slots), rows,
        picks, D, places.numel(), exchange::write_message(message));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    run_write_picks<sum_t<T>>(layout, nullptr, places, grad_weights, message, launch.stream());
  });
  return message;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("pack_rows", MMOE_BOX(pack_rows));
  m.impl("pack_rows_backward", MMOE_BOX(pack_rows_backward));
  m.impl("unpack_rows", MMOE_BOX(unpack_rows));
  m.impl("unpack_rows_backward", MMOE_BOX(unpack_rows_backward));
}

// decode_picks and return_plan on the CPU. What a code or a pair means depends on all before it, so
// both go once through their numbers, in order; they are few beside those of the rows.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../indices.h"
#include "exchange_rows.h"

namespace mmoe {
namespace {

using exchange::Layout;
using exchange::Links;

struct Decoded {
  int64_t picks, experts;  // of a row, G * K; on this rank
  int32_t *pick, *place;
  char* weight;
};

void decode_rank(const Layout& layout, int64_t w, const char* message, const Decoded& out) {
  const int64_t begin = layout.links.first(w, exchange::kRows);
  const int64_t end = layout.links.first(w + 1, exchange::kRows);
  const int64_t first = layout.links.first(w, exchange::kPicks);
  const bool weighted = layout.links.sums(w);
  int64_t n = begin - 1;
  for (int64_t i = 0; i < layout.links.count(w, exchange::kPicks); ++i) {
    int32_t code;
    std::memcpy(&code, message + layout.codes(w) + i * exchange::kCodeBytes, sizeof code);
    if (code < 0) {
      ++n;
      code = -1 - code;
    }
    if (n < begin || n >= end || code / out.experts >= out.picks) {
      fail("message: expected codes of ", end - begin, " rows and ", out.picks, " picks of ",
           out.experts, " experts from rank ", w, ", got another; did all ranks build the same ",
           "gates and experts?");
    }
    const int64_t place = n * out.picks + code / out.experts;
    out.place[first + i] = static_cast<int32_t>(place);
    out.pick[place] = static_cast<int32_t>(code % out.experts);
    if (!weighted) continue;
    const auto size = static_cast<size_t>(layout.weight_bytes);
    std::memcpy(out.weight + place * layout.weight_bytes,
                message + layout.weights(w) + i * layout.weight_bytes, size);
  }
}

std::tuple<Tensor, Tensor, Tensor> decode_picks(const Tensor& message, const Tensor& links_WL,
                                                int64_t rows, int64_t picks, int64_t G, int64_t K,
                                                int64_t num_experts, int64_t width,
                                                ScalarType dtype, ScalarType wire) {
  exchange::check_decode_picks(message, links_WL, rows, picks, G, K, num_experts, width, dtype,
                               wire);
  const Tensor from = dense(message), table = dense(links_WL);
  const ScalarType sums = accumulate_type(dtype);
  const Layout layout = {exchange::read_links(table), width * exchange::bytes_of(wire),
                         exchange::kCodeBytes, exchange::bytes_of(sums)};
  exchange::check_rising(layout.links);
  exchange::check_bytes(layout, from.numel());
  if (layout.links.first(layout.links.W, exchange::kRows) != rows ||
      layout.links.first(layout.links.W, exchange::kPicks) != picks) {
    fail("links_WL: expected ", rows, " rows and ", picks, " picks in all, got ",
         layout.links.first(layout.links.W, exchange::kRows), " and ",
         layout.links.first(layout.links.W, exchange::kPicks));
  }
  const Tensor picks_NGK = empty(from, {rows, G, K}, ScalarType::Int);
  const Tensor weights_NGK = empty(from, {rows, G, K}, sums);
  const Tensor places_Q = empty(from, {picks}, ScalarType::Int);
  const Decoded out = {G * K, std::max<int64_t>(1, num_experts),
                       static_cast<int32_t*>(picks_NGK.mutable_data_ptr()),
                       static_cast<int32_t*>(places_Q.mutable_data_ptr()),
                       static_cast<char*>(weights_NGK.mutable_data_ptr())};
  std::fill(out.pick, out.pick + picks_NGK.numel(), -1);
  fill_zero(out.weight, picks_NGK.numel() * layout.weight_bytes);
  for (int64_t w = 0; w < layout.links.W; ++w) {
    decode_rank(layout, w, static_cast<const char*>(from.const_data_ptr()), out);
  }
  return {picks_NGK, weights_NGK, places_Q};
}

// The rank that each row came from.
std::vector<int64_t> ranks_of_rows(const Links& links) {
  std::vector<int64_t> ranks;
  for (int64_t w = 0; w < links.W; ++w) ranks.resize(links.first(w + 1, exchange::kRows), w);
  return ranks;
}

std::tuple<Tensor, Tensor> return_plan(const Tensor& rows_R, const Tensor& offsets_E1,
                                       const Tensor& slots_NGK, const Tensor& links_WL) {
  exchange::check_return_plan(rows_R, offsets_E1, slots_NGK, links_WL);
  const Tensor rows = dense(rows_R), slots = dense(slots_NGK), table = dense(links_WL);
  const Links links = exchange::read_links(table);
  const int64_t N = slots.size(0), G = slots.size(1), K = slots.size(2), R = rows.numel();
  exchange::check_rising(links);
  if (links.first(links.W, exchange::kRows) != N) {
    fail("links_WL: expected ", N, " rows as slots_NGK has, got ",
         links.first(links.W, exchange::kRows));
  }
  check_indices("rows_R", "rows", rows, N);
  const Tensor back_R = empty(rows, {R}, ScalarType::Int);
  const Tensor back_NG = empty(rows, {N, G}, ScalarType::Int);
  const std::vector<int64_t> ranks = ranks_of_rows(links);
  std::vector<int64_t> next(links.W);
  for (int64_t w = 0; w < links.W; ++w) next[w] = links.first(w, exchange::kBack);

  const auto* row = static_cast<const int32_t*>(rows.const_data_ptr());
  auto* of_pair = static_cast<int32_t*>(back_R.mutable_data_ptr());
  for (int64_t p = 0; p < R; ++p) {
    const bool pair = row[p] >= 0 && !links.sums(ranks[row[p]]);
    of_pair[p] = pair ? static_cast<int32_t>(next[ranks[row[p]]]++) : -1;
  }
  const auto* slot = static_cast<const int32_t*>(slots.const_data_ptr());
  auto* of_sum = static_cast<int32_t*>(back_NG.mutable_data_ptr());
  for (int64_t i = 0; i < N * G; ++i) {
    const int64_t w = ranks[i / G];
    bool asked = false;
    for (int64_t k = 0; k < K; ++k) asked |= slot[i * K + k] >= 0;
    of_sum[i] = asked && links.sums(w) ? static_cast<int32_t>(next[w]++) : -1;
  }
  for (int64_t w = 0; w < links.W; ++w) {
    if (next[w] == links.first(w + 1, exchange::kBack)) continue;
    fail("links_WL: expected ", next[w] - links.first(w, exchange::kBack), " rows back to rank ", w,
         ", got ", links.count(w, exchange::kBack));
  }
  return {back_R, back_NG};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("decode_picks", MMOE_BOX(decode_picks));
  m.impl("return_plan", MMOE_BOX(return_plan));
}

// What the operators of an exchange between ranks share: the table of its links, and where rows,
// codes of picks and weights lie in a message. Letters: W ranks, N rows that travel, Q picks in
// use, Z rows that come back.

#pragma once

#include "checks.h"

#if defined(__CUDACC__)
#define MMOE_BOTH __host__ __device__ inline
#else
#define MMOE_BOTH inline
#endif

namespace mmoe::exchange {

// Columns of links_WL [W + 1, 6], int64: the first of each that belongs to a rank; the last row
// holds the totals.
enum Column : int64_t { kRows, kPicks, kWeights, kPairs, kSums, kBack, kColumns };

constexpr int64_t kCodeBytes = 4;

template <typename T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <typename T>
T* writable(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}
inline const int32_t* numbers(const Tensor& t) { return data<int32_t>(t); }

struct Links {
  const int64_t* table;
  int64_t W;

  MMOE_BOTH int64_t first(int64_t rank, Column column) const {
    return table[rank * kColumns + column];
  }
  MMOE_BOTH int64_t count(int64_t rank, Column column) const {
    return first(rank + 1, column) - first(rank, column);
  }
  // Weights travel where partial sums come back.
  MMOE_BOTH bool sums(int64_t rank) const { return count(rank, kWeights) > 0; }

  // The rank that owns number `index` of a column.
  MMOE_BOTH int64_t rank_of(int64_t index, Column column) const {
    int64_t low = 0, high = W - 1;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (index < first(middle + 1, column)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

// For each rank [rows][codes][weights], ranks one after the other, without a gap.
struct Layout {
  Links links;
  int64_t row_bytes, code_bytes, weight_bytes;

  MMOE_BOTH int64_t begin(int64_t rank) const {
    return links.first(rank, kRows) * row_bytes + links.first(rank, kPicks) * code_bytes +
           links.first(rank, kWeights) * weight_bytes;
  }
  MMOE_BOTH int64_t row(int64_t n, int64_t rank) const {
    return begin(rank) + (n - links.first(rank, kRows)) * row_bytes;
  }
  MMOE_BOTH int64_t codes(int64_t rank) const {
    return begin(rank) + links.count(rank, kRows) * row_bytes;
  }
  MMOE_BOTH int64_t weights(int64_t rank) const {
    return codes(rank) + links.count(rank, kPicks) * code_bytes;
  }
};

inline void check_links(const Tensor& links) {
  check_dim("links_WL", links, 2);
  check_type("links_WL", links, ScalarType::Long);
  check_size("links_WL", links, 1, kColumns);
  if (links.size(0) < 2) fail("links_WL: expected at least one rank and the totals, got none");
}

inline int64_t bytes_of(ScalarType type) {
  if (type == ScalarType::Double) return 8;
  return type == ScalarType::BFloat16 ? 2 : 4;
}

// Rows travel in their own dtype or in a narrower one. The names are those of the arguments that
// have the two.
inline void check_wire(ScalarType dtype, ScalarType wire, const char* rows = "dtype",
                       const char* sent = "wire") {
  if (!is_float(dtype)) {
    fail(rows, ": expected one of torch.float32, torch.bfloat16, torch.float64, got ",
         type_name(dtype));
  }
  if (is_float(wire) && bytes_of(wire) <= bytes_of(dtype)) return;
  fail(sent, ": expected ", type_name(dtype), " as the rows have, or a narrower one of ",
       "torch.float32 and torch.bfloat16, got ", type_name(wire));
}

inline void check_message(const Tensor& message) {
  check_dim("message", message, 1);
  check_type("message", message, ScalarType::Byte);
}

inline void check_num_bytes(int64_t num_bytes) {
  if (num_bytes < 0) fail("num_bytes: expected 0 or more, got ", num_bytes);
}

inline void check_picks(const char* name, const Tensor& picks, const Tensor& like) {
  check_dim(name, picks, 3);
  check_type(name, picks, ScalarType::Int);
  for (int64_t dim = 0; dim < 3; ++dim) check_size(name, picks, dim, like.size(dim));
}

inline void check_sizes(int64_t sources, int64_t width) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (sources < 1 || sources > most) {
    fail("num_sources: expected 1 to ", most, ", got ", sources);
  }
  if (width < 0 || width > most) fail("width: expected 0 to ", most, ", got ", width);
}

inline void check_index(const char* name, const Tensor& index) {
  check_dim(name, index, 1);
  check_type(name, index, ScalarType::Int);
}

inline void check_pack_rows(const std::vector<Tensor>& sources, const Tensor& weights,
                            const Tensor& rows, const Tensor& entries, const Tensor& codes,
                            const Tensor& links, ScalarType wire) {
  if (sources.empty()) fail("sources: expected at least one tensor, got none");
  for (size_t i = 0; i < sources.size(); ++i) {
    const Name name("sources", i);
    check_dim(name, sources[i], 2);
    check_float(name, sources[i]);
    check_type(name, sources[i], sources[0].scalar_type());
    check_size(name, sources[i], 0, sources[0].size(0));
    check_size(name, sources[i], 1, sources[0].size(1));
  }
  check_wire(sources[0].scalar_type(), wire);
  check_dim("weights_BGK", weights, 3);
  check_type("weights_BGK", weights, accumulate_type(sources[0].scalar_type()));
  check_index("rows_M", rows);
  check_index("entries_Q", entries);
  check_index("codes_Q", codes);
  check_size("codes_Q", codes, 0, entries.size(0));
  check_links(links);
}

inline void check_unpack_rows_backward(const Tensor& grad, const Tensor& grad_weights,
                                       const Tensor& slots, const Tensor& places,
                                       const Tensor& links, ScalarType wire) {
  check_dim("grad_RD", grad, 2);
  check_wire(grad.scalar_type(), wire, "grad_RD");
  check_picks("slots_NGK", slots, slots);
  check_dim("grad_weights_NGK", grad_weights, 3);
  check_type("grad_weights_NGK", grad_weights, accumulate_type(grad.scalar_type()));
  for (int64_t dim = 0; dim < 3; ++dim) {
    check_size("grad_weights_NGK", grad_weights, dim, slots.size(dim));
  }
  check_index("places_Q", places);
  check_links(links);
}

inline void check_decode_picks(const Tensor& message, const Tensor& links, int64_t rows,
                               int64_t picks, int64_t G, int64_t K, int64_t num_experts,
                               int64_t width, ScalarType dtype, ScalarType wire) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  check_message(message);
  check_sizes(1, width);
  check_wire(dtype, wire);
  check_links(links);
  if (rows < 0 || picks < 0 || picks > most) {
    fail("num_rows, num_picks: expected 0 to ", most, ", got ", rows, " and ", picks);
  }
  if (num_experts < 0) fail("num_experts: expected 0 or more, got ", num_experts);
  if (G < 1 || K < 1 || K > most / G || rows > most / (G * K)) {
    fail("num_gates, k: expected ", rows, " rows of 1 or more gates and picks that fit in int32, ",
         "got ", G, " and ", K);
  }
}

inline void check_return_plan(const Tensor& rows, const Tensor& offsets, const Tensor& slots,
                              const Tensor& links) {
  check_index("rows_R", rows);
  check_index("offsets_E1", offsets);
  check_picks("slots_NGK", slots, slots);
  check_links(links);
}

inline void check_pack_returns(const Tensor& y, const Tensor& weights, const Tensor& back_R,
                               const Tensor& back_NG, const Tensor& slots, int64_t rows) {
  check_dim("y_RO", y, 2);
  check_float("y_RO", y);
  check_picks("slots_NGK", slots, slots);
  check_dim("weights_NGK", weights, 3);
  check_type("weights_NGK", weights, accumulate_type(y.scalar_type()));
  for (int64_t dim = 0; dim < 3; ++dim) check_size("weights_NGK", weights, dim, slots.size(dim));
  check_index("back_R", back_R);
  check_size("back_R", back_R, 0, y.size(0));
  check_dim("back_NG", back_NG, 2);
  check_type("back_NG", back_NG, ScalarType::Int);
  for (int64_t dim = 0; dim < 2; ++dim) check_size("back_NG", back_NG, dim, slots.size(dim));
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (rows < 0 || rows > most) fail("num_rows: expected 0 to ", most, ", got ", rows);
}

// Rows that travel, beside rows that they become or came from.
inline void check_rows(const char* name, const Tensor& rows, const Tensor& like) {
  check_dim(name, rows, 2);
  check_wire(like.scalar_type(), rows.scalar_type(), "dtype", name);
  check_size(name, rows, 1, like.size(1));
}

inline void check_mix_returns(const Tensor& back, const Tensor& weights, const Tensor& rows,
                              const Tensor& pairs, const Tensor& sums, const Tensor& links,
                              ScalarType dtype, const char* rows_dtype = "dtype") {
  check_dim("back_ZO", back, 2);
  check_wire(dtype, back.scalar_type(), rows_dtype, "back_ZO");
  check_picks("rows_BGK", rows, rows);
  check_picks("pairs_BGK", pairs, rows);
  check_picks("sums_BGK", sums, rows);
  check_dim("weights_BGK", weights, 3);
  check_type("weights_BGK", weights, accumulate_type(dtype));
  for (int64_t dim = 0; dim < 3; ++dim) check_size("weights_BGK", weights, dim, rows.size(dim));
  check_links(links);
}

// M, the most rows that can travel.
inline int64_t check_outbound_plan(const Tensor& experts, const Tensor& homes, int64_t ranks,
                                   int64_t sources) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  check_dim("homes_E3", homes, 2);
  check_type("homes_E3", homes, ScalarType::Int);
  check_size("homes_E3", homes, 1, 3);
  if (homes.size(0) < 1) fail("homes_E3: expected at least one expert, got none");
  check_route_plan(experts, homes.size(0));
  const int64_t B = experts.size(0), picks = experts.size(1) * experts.size(2);
  // Something is counted for each (rank, source): no more than memory surely holds
  constexpr int64_t lanes = 1 << 20;
  if (ranks < 1 || ranks > lanes) fail("num_ranks: expected 1 to ", lanes, ", got ", ranks);
  if (sources < 1 || sources > lanes / ranks) {
    fail("num_sources: expected 1 to ", lanes / ranks, ", got ", sources);
  }
  if (picks < 1) fail("experts_BGK: expected at least one gate and one pick, got none");
  if (B > 0 && std::max(picks, sources) > most / B) {
    fail("experts_BGK: ", B, " samples of ", picks, " picks and ", sources,
         " sources do not fit in int32; split the batch");
  }
  return B * std::min({picks, ranks * sources, homes.size(0)});
}

}  // namespace mmoe::exchange

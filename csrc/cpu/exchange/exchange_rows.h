// Rows that travel between ranks, on the CPU: what the loops over them take, and the best loops
// that the processor can run.

#pragma once

#include <vector>

#include "../../exchange.h"
#include "../rows.h"

namespace mmoe::exchange {

// One row of a mix: what it is multiplied with, and whether a new part begins with it.
template <typename F, typename S>
struct Step {
  const F* row;
  S weight;
  bool begins;
};

// A row y of type F, and the gradients of type G of all that used it.
template <typename F, typename G, typename S>
struct Uses {
  const F* y;
  F* dy;
  const G* const* grad;
  const S* weight;
  S* dot;
  S* scratch;  // room for `count` vectors of 64 bytes
  int64_t count;
};

// Calls run with a value of the type that rows have, and one of the type that they travel in.
template <typename Run>
void for_types(ScalarType dtype, ScalarType wire, const Run& run) {
  const bool same = dtype == wire;
  switch (dtype) {
    case ScalarType::Double:
      if (same) return run(double{}, double{});
      if (wire == ScalarType::Float) return run(double{}, float{});
      return run(double{}, bf16{});
    case ScalarType::BFloat16:
      return run(bf16{}, bf16{});
    default:
      if (same) return run(float{}, float{});
      return run(float{}, bf16{});
  }
}

inline Links read_links(const Tensor& links) {
  return {static_cast<const int64_t*>(links.const_data_ptr()), links.size(0) - 1};
}

// Refuses a table that does not rise from 0, whose numbers would lead out of the tensors. All that
// they count has int32 numbers.
inline void check_rising(const Links& links) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  for (int64_t column = 0; column < kColumns; ++column) {
    int64_t before = 0;
    for (int64_t w = 0; w <= links.W; ++w) {
      const int64_t at = links.first(w, static_cast<Column>(column));
      if (at < before || at > most || (w == 0 && at != 0)) {
        fail("links_WL: expected numbers that rise from 0 to at most ", most, ", got ", at,
             " after ", before, " in column ", column);
      }
      before = at;
    }
  }
  for (int64_t w = 0; w < links.W; ++w) {
    const int64_t picks = links.count(w, kPicks), weights = links.count(w, kWeights);
    if (weights == 0 || weights == picks) continue;
    fail("links_WL: expected a weight for all of the ", picks, " picks of rank ", w,
         ", or for none, got ", weights);
  }
}

inline void check_total(const Links& links, Column column, const char* name, int64_t most) {
  const int64_t total = links.first(links.W, column);
  if (total > most) fail("links_WL: expected at most ", most, " as ", name, " has, got ", total);
}

inline void check_bytes(const Layout& layout, int64_t bytes) {
  const int64_t rows = layout.links.first(layout.links.W, kRows);
  // What the rows alone need might not fit in int64
  if (rows > 0 && layout.row_bytes > std::max<int64_t>(0, bytes) / rows) {
    fail("message: expected ", rows, " rows of ", layout.row_bytes, " bytes by links_WL, got ",
         bytes, " bytes in all");
  }
  const int64_t needed = layout.begin(layout.links.W);
  if (bytes != needed) fail("message: expected ", needed, " bytes by links_WL, got ", bytes);
}

// Where each of the N rows of a message starts.
template <typename Byte>
std::vector<Byte*> rows_of(const Layout& layout, Byte* message) {
  std::vector<Byte*> rows(layout.links.first(layout.links.W, kRows));
  for (int64_t w = 0; w < layout.links.W; ++w) {
    Byte* at = message + layout.begin(w);
    for (int64_t n = layout.links.first(w, kRows); n < layout.links.first(w + 1, kRows); ++n) {
      rows[n] = at;
      at += layout.row_bytes;
    }
  }
  return rows;
}

}  // namespace mmoe::exchange

// Beside each_isa.h, which includes it
#define MMOE_KERNELS "exchange/exchange_kernels.h"
#include "../each_isa.h"

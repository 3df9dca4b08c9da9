// outbound_plan on the CPU: counts for each block of samples, prefix sums, write. Two passes over
// the picks, both in parallel; the numbering depends on the input alone, not on the blocks.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../../exchange.h"

namespace mmoe {
namespace {

struct Outbound {
  const int32_t* experts;
  int64_t B, G, K, E, W, S;
  std::vector<int32_t> lane, order, place, held;  // of each expert; `held` is its rank's number

  int64_t lanes() const { return W * S; }
  int64_t picks() const { return G * K; }
};

// Numbers that are counted for each block: of lanes, and of experts in the order of the ranks.
struct Counts {
  int32_t *rows, *picks, *sums, *pairs;
  Counts(int32_t* at, int64_t lanes)
      : rows(at), picks(at + lanes), sums(at + 2 * lanes), pairs(at + 3 * lanes) {}
};

// Calls visit(sample, pick, expert, new row?, new sum?, new pair?) for every used pick.
template <typename Visit>
void visit_picks(const Outbound& d, int64_t begin, int64_t end, const Visit& visit) {
  std::vector<int64_t> last_row(d.lanes(), -1), last_sum(d.lanes(), -1), last_pair(d.E, -1);
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t i = b * d.picks(); i < (b + 1) * d.picks(); ++i) {
      const int32_t e = d.experts[i];
      if (e < 0) continue;
      const int64_t gate = i / d.K;
      const int32_t c = d.lane[e];
      visit(b, i, e, last_row[c] != b, last_sum[c] != gate, last_pair[e] != b);
      last_row[c] = b;
      last_sum[c] = gate;
      last_pair[e] = b;
    }
  }
}

void count_block(const Outbound& d, int64_t begin, int64_t end, Counts counts) {
  visit_picks(d, begin, end,
              [&](int64_t, int64_t, int32_t e, bool new_row, bool new_sum, bool new_pair) {
                const int32_t c = d.lane[e];
                counts.rows[c] += new_row;
                counts.picks[c] += 1;
                counts.sums[c] += new_sum;
                counts.pairs[d.order[e]] += new_pair;
              });
}

struct Written {
  int32_t *rows, *entries, *codes, *row_of, *pair_of, *sum_of;
};

void write_block(const Outbound& d, int64_t begin, int64_t end, Counts next, const Written& out) {
  for (int32_t* slots : {out.row_of, out.pair_of, out.sum_of}) {
    std::fill(slots + begin * d.picks(), slots + end * d.picks(), -1);
  }
  visit_picks(d, begin, end,
              [&](int64_t b, int64_t i, int32_t e, bool new_row, bool new_sum, bool new_pair) {
                const int32_t c = d.lane[e];
                if (new_row) out.rows[next.rows[c]++] = static_cast<int32_t>(b * d.S + c % d.S);
                next.sums[c] += new_sum;
                next.pairs[d.order[e]] += new_pair;
                const auto pick = static_cast<int32_t>(i % d.picks());
                const int32_t code = pick * d.held[e] + d.place[e], at = next.picks[c]++;
                out.entries[at] = static_cast<int32_t>(i);
                out.codes[at] = new_row ? -1 - code : code;
                out.row_of[i] = next.rows[c] - 1;
                out.pair_of[i] = next.pairs[d.order[e]] - 1;
                out.sum_of[i] = next.sums[c] - 1;
              });
}

// Checks the table of experts, and numbers them rank by rank.
void read_homes(const Tensor& homes_E3, Outbound& d) {
  const auto* homes = static_cast<const int32_t*>(homes_E3.const_data_ptr());
  std::vector<int32_t> on_rank(d.W + 1, 0);
  for (int64_t e = 0; e < d.E; ++e) {
    const int32_t rank = homes[3 * e], source = homes[3 * e + 2];
    if (rank < 0 || rank >= d.W || source < 0 || source >= d.S) {
      fail("homes_E3: expected ranks in [0, ", d.W, ") and sources in [0, ", d.S, "), got rank ",
           rank, " and source ", source, " for expert ", e);
    }
    ++on_rank[rank + 1];
  }
  for (int64_t w = 0; w < d.W; ++w) on_rank[w + 1] += on_rank[w];
  std::vector<bool> taken(d.E, false);
  for (int64_t e = 0; e < d.E; ++e) {
    const int32_t rank = homes[3 * e], place = homes[3 * e + 1];
    const int32_t held = on_rank[rank + 1] - on_rank[rank];
    if (place < 0 || place >= held || taken[on_rank[rank] + place]) {
      fail("homes_E3: expected the places 0 to ", held - 1, " on rank ", rank, ", each once, got ",
           place, " for expert ", e);
    }
    taken[on_rank[rank] + place] = true;
    d.lane.push_back(static_cast<int32_t>(rank * d.S + homes[3 * e + 2]));
    d.order.push_back(on_rank[rank] + place);
    d.place.push_back(place);
    d.held.push_back(held);
    if (held > std::numeric_limits<int32_t>::max() / d.picks()) {
      fail("experts_BGK: the codes of ", d.picks(), " picks times the ", held, " experts of rank ",
           rank, " do not fit in int32");
    }
  }
}

// Blocks of samples, and what is counted for each of them.
class Blocks {
 public:
  explicit Blocks(const Outbound& d) : d_(d), kinds_(3 * d.lanes() + d.E) {
    // A block pays for its bookkeeping, so it gets at least that many picks.
    rows_ = std::max<int64_t>(1, std::max<int64_t>(4096, 4 * kinds_) / d.picks());
    blocks_ = (d.B + rows_ - 1) / rows_;
    counts_.resize(blocks_ * kinds_, 0);
  }

  // Calls run(first sample, last sample, counts) for every block, in parallel.
  template <typename Run>
  void each(const Run& run) {
    torch::stable::parallel_for(0, blocks_, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = block * rows_;
        Counts own(counts_.data() + block * kinds_, d_.lanes());
        run(begin, std::min(d_.B, begin + rows_), own);
      }
    });
  }

  // Turns the counts of one kind into each block's first number; returns how many there are.
  int32_t assign_starts(int64_t kind, int32_t& next) {
    const int32_t first = next;
    for (int64_t block = 0; block < blocks_; ++block) {
      const int32_t count = counts_[block * kinds_ + kind];
      counts_[block * kinds_ + kind] = next;
      next += count;
    }
    return next - first;
  }

 private:
  const Outbound& d_;
  int64_t kinds_, rows_, blocks_;
  std::vector<int32_t> counts_;
};

// Numbers all that was counted; writes how much of it belongs to each rank. Returns how many rows
// and picks there are.
std::pair<int32_t, int32_t> number_all(const Outbound& d, Blocks& blocks, int64_t* sizes) {
  constexpr int64_t column[] = {0, 1, 3};  // rows, picks, sums
  std::fill(sizes, sizes + 4 * d.W, 0);
  int32_t totals[4] = {};
  for (int64_t kind = 0; kind < 3; ++kind) {
    for (int64_t c = 0; c < d.lanes(); ++c) {
      const int32_t count = blocks.assign_starts(kind * d.lanes() + c, totals[kind]);
      sizes[c / d.S * 4 + column[kind]] += count;
    }
  }
  std::vector<int64_t> rank_of(d.E);  // of the experts in the order of the ranks
  for (int64_t e = 0; e < d.E; ++e) rank_of[d.order[e]] = d.lane[e] / d.S;
  for (int64_t o = 0; o < d.E; ++o) {
    sizes[rank_of[o] * 4 + 2] += blocks.assign_starts(3 * d.lanes() + o, totals[3]);
  }
  return {totals[0], totals[1]};
}

Outbound describe(const Tensor& experts, const Tensor& homes, int64_t W, int64_t S) {
  Outbound d = {};
  d.experts = static_cast<const int32_t*>(experts.const_data_ptr());
  d.B = experts.size(0);
  d.G = experts.size(1);
  d.K = experts.size(2);
  d.E = homes.size(0);
  d.W = W;
  d.S = S;
  read_homes(homes, d);
  for (int64_t i = 0; i < d.B * d.picks(); ++i) {
    if (d.experts[i] < -1 || d.experts[i] >= d.E) {
      fail("experts_BGK: expected experts in [0, ", d.E, ") or -1, got ", d.experts[i]);
    }
  }
  return d;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> outbound_plan(
    const Tensor& experts_BGK, const Tensor& homes_E3, int64_t num_ranks, int64_t num_sources) {
  const int64_t M = exchange::check_outbound_plan(experts_BGK, homes_E3, num_ranks, num_sources);
  const Tensor input = dense(experts_BGK), homes = dense(homes_E3);
  const Outbound d = describe(input, homes, num_ranks, num_sources);
  const int64_t Q = d.B * d.picks();
  const auto indices = [&](std::initializer_list<int64_t> sizes) {
    return empty(input, sizes, ScalarType::Int);
  };
  const auto data = [](const Tensor& t) { return static_cast<int32_t*>(t.mutable_data_ptr()); };
  const Tensor rows_M = indices({M}), entries_Q = indices({Q}), codes_Q = indices({Q});
  const Tensor rows_BGK = indices({d.B, d.G, d.K}), pairs_BGK = indices({d.B, d.G, d.K});
  const Tensor sums_BGK = indices({d.B, d.G, d.K});
  const Tensor sizes_W4 = empty(input, {num_ranks, 4}, ScalarType::Long);
  const Written out = {data(rows_M),   data(entries_Q), data(codes_Q),
                       data(rows_BGK), data(pairs_BGK), data(sums_BGK)};

  Blocks blocks(d);
  blocks.each([&](int64_t begin, int64_t end, Counts own) { count_block(d, begin, end, own); });
  const auto [rows, picks] =
      number_all(d, blocks, static_cast<int64_t*>(sizes_W4.mutable_data_ptr()));
  blocks.each(
      [&](int64_t begin, int64_t end, Counts own) { write_block(d, begin, end, own, out); });
  std::fill(out.rows + rows, out.rows + M, -1);
  std::fill(out.entries + picks, out.entries + Q, -1);
  std::fill(out.codes + picks, out.codes + Q, 0);
  return {rows_M, entries_Q, codes_Q, rows_BGK, pairs_BGK, sums_BGK, sizes_W4};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) { m.impl("outbound_plan", MMOE_BOX(outbound_plan)); }

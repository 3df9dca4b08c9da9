// route_plan on the CPU: count per block of samples, prefix sums, write. Two passes over the picks,
// both in parallel; the numbering depends on the input alone, not on the blocks.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../checks.h"

namespace mmoe {
namespace {

// Calls visit(sample, pick, expert, is_new) for every used pick of a block of samples. An expert
// is new where the sample has not named it yet, remembered by the last sample that did.
template <typename Visit>
void visit_picks(const int32_t* experts, int64_t begin, int64_t end, int64_t picks,
                 int64_t num_experts, const Visit& visit) {
  std::vector<int64_t> last_sample(num_experts, -1);
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t i = b * picks; i < (b + 1) * picks; ++i) {
      const int32_t e = experts[i];
      if (e < 0) continue;
      const bool is_new = last_sample[e] != b;
      last_sample[e] = b;
      visit(b, i, e, is_new);
    }
  }
}

void check_experts(const int32_t* experts, int64_t count, int64_t num_experts) {
  for (int64_t i = 0; i < count; ++i) {
    if (experts[i] < -1 || experts[i] >= num_experts) {
      fail("experts_BGK: expected experts in [0, ", num_experts, ") or -1, got ", experts[i]);
    }
  }
}

// Turns counts [blocks, E] into each block's first pair of every expert; returns offsets too.
void assign_starts(std::vector<int32_t>& counts, int64_t blocks, int64_t num_experts,
                   int32_t* offsets) {
  int32_t next = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    offsets[e] = next;
    for (int64_t block = 0; block < blocks; ++block) {
      const int32_t count = counts[block * num_experts + e];
      counts[block * num_experts + e] = next;
      next += count;
    }
  }
  offsets[num_experts] = next;
}

std::tuple<Tensor, Tensor, Tensor> route_plan(const Tensor& experts_BGK, int64_t num_experts) {
  const int64_t P = check_route_plan(experts_BGK, num_experts);
  const Tensor input = dense(experts_BGK);
  const int64_t B = input.size(0), G = input.size(1), K = input.size(2), picks = G * K;
  Tensor rows_P = empty(input, {P}, ScalarType::Int);
  Tensor offsets_E1 = empty(input, {num_experts + 1}, ScalarType::Int);
  Tensor slots_BGK = empty(input, {B, G, K}, ScalarType::Int);
  const auto* experts = static_cast<const int32_t*>(input.const_data_ptr());
  auto* rows = static_cast<int32_t*>(rows_P.mutable_data_ptr());
  auto* offsets = static_cast<int32_t*>(offsets_E1.mutable_data_ptr());
  auto* slots = static_cast<int32_t*>(slots_BGK.mutable_data_ptr());
  check_experts(experts, B * picks, num_experts);

  // A block pays for 2 * E numbers of bookkeeping, so it gets at least that many picks.
  const int64_t block_picks = std::max<int64_t>(4096, 4 * num_experts);
  const int64_t block_rows = std::max<int64_t>(1, block_picks / std::max<int64_t>(1, picks));
  const int64_t blocks = (B + block_rows - 1) / block_rows;
  std::vector<int32_t> starts(blocks * num_experts, 0);

  torch::stable::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      int32_t* counts = starts.data() + block * num_experts;
      visit_picks(experts, block * block_rows, std::min(B, (block + 1) * block_rows), picks,
                  num_experts,
                  [&](int64_t, int64_t, int32_t e, bool is_new) { counts[e] += is_new; });
    }
  });
  assign_starts(starts, blocks, num_experts, offsets);

  torch::stable::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      int32_t* next = starts.data() + block * num_experts;
      const int64_t begin = block * block_rows, end = std::min(B, begin + block_rows);
      std::fill(slots + begin * picks, slots + end * picks, -1);
      visit_picks(experts, begin, end, picks, num_experts,
                  [&](int64_t b, int64_t i, int32_t e, bool is_new) {
                    if (is_new) rows[next[e]++] = static_cast<int32_t>(b);
                    slots[i] = next[e] - 1;
                  });
    }
  });
  std::fill(rows + offsets[num_experts], rows + P, -1);
  return {rows_P, offsets_E1, slots_BGK};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) { m.impl("route_plan", MMOE_BOX(route_plan)); }

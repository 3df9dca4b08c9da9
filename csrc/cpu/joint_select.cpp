// joint_select on the CPU: checks, and the choice of kernels for this processor.

#include "../joint_select.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "expert_lanes.h"
#include "rows.h"

namespace mmoe::joint {

template <typename T>
struct Rows {
  const T* scores;
  const T* end;               // of all scores
  const mask_of<T>* visible;  // [G, padded]: all bits set, or none; none past the last expert
  const bool* votes;          // [G]
  const bool* asked;          // [B, G], or null: all
  bool* picked;
  int64_t G, E, padded;
  int64_t shared_k, private_k, budget;  // budget 0: any number
  bool floor, largest;
};

// What one thread works with, one row after another.
template <typename T>
struct Scratch {
  std::vector<T> wanted;  // [G, padded]: scores of what may be picked and is not yet in a set
  std::vector<T> total;   // [padded]: of what all voters see
  std::vector<T> values;  // [budget, G]: scores of the set's members
  std::vector<T> best;    // [G, private_k]: the largest of them without shared ones, falling
  std::vector<int32_t> members;               // [budget], in the order in which they came
  std::vector<int32_t> firsts;                // [G]: first choices, -1: none
  std::vector<int32_t> voters;                // gates
  std::vector<uint8_t> is_member, is_shared;  // [E]
  std::vector<uint8_t> has_vote;              // [G]

  explicit Scratch(const Rows<T>& d)
      : wanted(d.G * d.padded),
        total(d.padded),
        values(d.budget * d.G),
        best(d.G * d.private_k),
        members(d.budget),
        firsts(d.G),
        is_member(d.E),
        is_shared(d.E),
        has_vote(d.G) {}
};

}  // namespace mmoe::joint

#define MMOE_KERNELS "joint_select_kernels.h"
#include "each_isa.h"

namespace mmoe {
namespace {

template <typename T>
void select(const Tensor& scores, const Tensor& visibility, const JointSelect& s,
            const Tensor& picked) {
  const int64_t lanes = MMOE_BEST(vector_bytes)() / static_cast<int64_t>(sizeof(T));
  const int64_t B = scores.size(0), G = scores.size(1), E = scores.size(2);
  const int64_t padded = (E + lanes - 1) / lanes * lanes;
  const auto masks = visible_masks<T>(visibility, padded);
  const auto* data = static_cast<const T*>(scores.const_data_ptr());
  // A set has no more members than there are experts.
  const joint::Rows<T> d = {data,
                            data + scores.numel(),
                            masks.data(),
                            static_cast<const bool*>(s.votes.const_data_ptr()),
                            s.asked ? static_cast<const bool*>(s.asked->const_data_ptr()) : nullptr,
                            static_cast<bool*>(picked.mutable_data_ptr()),
                            G,
                            E,
                            padded,
                            s.shared_k,
                            s.private_k,
                            std::min(s.budget, E),
                            s.floor,
                            s.largest};
  const auto run = MMOE_BEST(select_rows<T>);
  const int64_t passes = s.shared_k + (s.budget > 0 ? d.budget : s.private_k) + 1;
  torch::stable::parallel_for(0, B, grain(passes * G * padded), [&](int64_t begin, int64_t end) {
    joint::Scratch<T> scratch(d);
    run(d, begin, end, scratch);
  });
}

Tensor joint_select(const Tensor& scores_BGE, const Tensor& visibility_GE, const Tensor& votes_G,
                    const std::optional<Tensor>& asked_BG, int64_t shared_k, int64_t private_k,
                    int64_t budget, int64_t floor, bool largest) {
  const JointSelect s(scores_BGE, visibility_GE, votes_G, asked_BG, shared_k, private_k, budget,
                      floor, largest);
  const Tensor scores = dense(scores_BGE), visibility = dense(visibility_GE);
  const Tensor picked =
      empty(scores, {scores.size(0), scores.size(1), scores.size(2)}, ScalarType::Bool);
  if (scores.scalar_type() == ScalarType::Double) {
    select<double>(scores, visibility, s, picked);
  } else {
    select<float>(scores, visibility, s, picked);
  }
  return picked;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) { m.impl("joint_select", MMOE_BOX(joint_select)); }

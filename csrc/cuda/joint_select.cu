// joint_select on CUDA: a warp for each row. Every choice is a pass over the experts, a lane for
// every 32nd, for the largest number above 0; equal ones go to the lower number. What belongs to
// the row's set is marked in memory of the call.

#include <torch/csrc/stable/library.h>

#include "../joint_select.h"
#include "common.cuh"

namespace mmoe {
namespace {

constexpr uint8_t kMember = 1, kShared = 2;

template <typename S>
struct Rows {
  const S* scores;
  const bool* visible;  // [G, E]
  const bool* votes;    // [G]
  const bool* asked;    // [B, G], or null: all
  bool* picked;
  uint8_t* marks;  // [B, E]: members of the row's set, shared ones
  S* best;         // [B, G, private_k]: the largest scores in the set without shared ones, falling
  int64_t B;
  int32_t G, E, shared_k, private_k, budget;  // budget 0: any number
  bool floor, largest;
};

template <typename S>
struct Choice {
  S value;
  int32_t expert;  // E: none
};

// The first of the largest numbers above 0 that `at(e)` gives, the same in all lanes.
template <typename S, typename At>
__device__ Choice<S> first_of_largest(int32_t E, int lane, const At& at) {
  Choice<S> best = {0, E};
  for (int32_t e = lane; e < E; e += kWarp) {
    const S value = at(e);
    if (value > best.value) best = {value, e};
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const S value = __shfl_xor_sync(~0u, best.value, step);
    const int32_t e = __shfl_xor_sync(~0u, best.expert, step);
    if (value > best.value || (value == best.value && e < best.expert)) best = {value, e};
  }
  return best;
}

// A row, as one lane of its warp sees it.
template <typename S>
struct Row {
  const Rows<S>& d;
  int64_t b;
  int lane;
  bool any_vote = false;
  uint8_t* marks;
  int32_t size = 0;  // of the set

  __device__ Row(const Rows<S>& d, int64_t b, int lane)
      : d(d), b(b), lane(lane), marks(d.marks + b * d.E) {
    for (int32_t g = 0; g < d.G; ++g) any_vote |= asked(g) && d.votes[g];
  }

  __device__ bool asked(int32_t g) const { return d.asked == nullptr || d.asked[b * d.G + g]; }
  __device__ bool has_vote(int32_t g) const { return asked(g) && (d.votes[g] || !any_vote); }

  // What a gate wants of an expert, 0 where it may not be picked.
  __device__ S wanted(int32_t g, int32_t e) const {
    if (!asked(g) || !d.visible[int64_t{g} * d.E + e]) return 0;
    const S score = d.scores[(b * d.G + g) * d.E + e];
    return score > 0 ? score : S(0);
  }

  // What the voters want together, 0 where one of them does not see it.
  __device__ S total(int32_t e) const {
    S sum = 0;
    for (int32_t g = 0; g < d.G; ++g) {
      if (!has_vote(g)) continue;
      if (!d.visible[int64_t{g} * d.E + e]) return 0;
      const S score = wanted(g, e);
      sum = d.largest ? (score > sum ? score : sum) : sum + score;
    }
    return sum;
  }

  __device__ void mark(int32_t e, uint8_t bits) {
    if (lane == 0) {
      marks[e] |= bits;
    }
    __syncwarp();
  }

  __device__ bool* picked(int32_t g) const { return d.picked + (b * d.G + g) * d.E; }
  __device__ S* best(int32_t g) const { return d.best + (b * d.G + g) * d.private_k; }

  __device__ Choice<S> first_choice(int32_t g) const {
    return first_of_largest<S>(d.E, lane, [&](int32_t e) { return wanted(g, e); });
  }

  __device__ void keep_first_choices() {
    for (int32_t g = 0; g < d.G && size < d.budget; ++g) {
      if (!has_vote(g)) continue;
      const int32_t e = first_choice(g).expert;
      if (e == d.E || marks[e] & kMember) continue;
      __syncwarp();
      mark(e, kMember);
      ++size;
    }
  }

  __device__ void choose_shared() {
    for (int32_t k = 0; k < d.shared_k; ++k) {
      const bool full = d.budget > 0 && size >= d.budget;
      const int32_t e = first_of_largest<S>(d.E, lane, [&](int32_t e) {
                          const bool closed = marks[e] & kShared || (full && !(marks[e] & kMember));
                          return closed ? S(0) : total(e);
                        }).expert;
      if (e == d.E) return;
      size += !(marks[e] & kMember);
      __syncwarp();
      mark(e, kMember | kShared);
    }
  }

  // Puts a member's scores among the largest of each voter; a lane for every 32nd gate.
  __device__ void rank(int32_t e) {
    for (int32_t g = lane; g < d.G; g += kWarp) {
      if (!has_vote(g)) continue;
      S* const largest = best(g);
      const S value = wanted(g, e);
      int32_t at = d.private_k - 1;
      if (!(value > largest[at])) continue;
      for (; at > 0 && value > largest[at - 1]; --at) largest[at] = largest[at - 1];
      largest[at] = value;
    }
    __syncwarp();
  }

  // The rest of the budget goes to the expert that adds most to what the voters keep.
  __device__ void fill_set() {
    if (d.private_k == 0) return;
    for (int32_t e = 0; e < d.E; ++e) {
      if (marks[e] == kMember) rank(e);
    }
    for (; size < d.budget; ++size) {
      const int32_t e = first_of_largest<S>(d.E, lane, [&](int32_t e) {
                          if (marks[e] & kMember) return S(0);
                          S gain = 0;
                          for (int32_t g = 0; g < d.G; ++g) {
                            if (!has_vote(g)) continue;
                            const S more = wanted(g, e) - best(g)[d.private_k - 1];
                            gain += more > 0 ? more : S(0);
                          }
                          return gain;
                        }).expert;
      if (e == d.E) return;
      mark(e, kMember);
      rank(e);
    }
  }

  // The shared ones, and the best of the set, or of all experts.
  __device__ void give(int32_t g) {
    if (!asked(g)) return;
    const bool beyond = d.budget > 0 && d.floor && !has_vote(g);
    const int32_t first = beyond ? first_choice(g).expert : d.E;
    bool* const to = picked(g);
    for (int32_t e = lane; e < d.E; e += kWarp) to[e] = marks[e] & kShared && wanted(g, e) > 0;
    __syncwarp();
    for (int32_t k = 0; k < d.private_k; ++k) {
      const int32_t e = first_of_largest<S>(d.E, lane, [&](int32_t e) {
                          if (to[e] || marks[e] & kShared) return S(0);
                          const bool open = d.budget == 0 || marks[e] & kMember || e == first;
                          return open ? wanted(g, e) : S(0);
                        }).expert;
      if (e == d.E) return;
      if (lane == 0) {
        to[e] = true;
      }
      __syncwarp();
    }
  }
};

template <typename S>
__global__ void select(Rows<S> d) {
  const int64_t b = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  if (b >= d.B) return;  // a whole warp
  Row<S> row(d, b, threadIdx.x % kWarp);
  if (d.budget > 0 && d.floor) row.keep_first_choices();
  row.choose_shared();
  if (d.budget > 0) row.fill_set();
  for (int32_t g = 0; g < d.G; ++g) row.give(g);
}

template <typename S>
void run(const Tensor& scores, const Tensor& visibility, const JointSelect& s, const Tensor& picked,
         cudaStream_t stream) {
  const int64_t B = scores.size(0), G = scores.size(1), E = scores.size(2);
  const int64_t most = std::numeric_limits<int32_t>::max();
  const Tensor marks = empty(scores, {B, E}, ScalarType::Byte);
  const bool ranks = s.budget > 0 && s.private_k > 0;
  const Tensor best = empty(scores, {ranks ? B * G * s.private_k : 0}, scores.scalar_type());
  fill_bytes(picked, 0, stream);
  fill_bytes(marks, 0, stream);
  fill_bytes(best, 0, stream);
  if (B == 0 || G == 0) return;
  const Rows<S> d = {static_cast<const S*>(scores.const_data_ptr()),
                     static_cast<const bool*>(visibility.const_data_ptr()),
                     static_cast<const bool*>(s.votes.const_data_ptr()),
                     s.asked ? static_cast<const bool*>(s.asked->const_data_ptr()) : nullptr,
                     static_cast<bool*>(picked.mutable_data_ptr()),
                     static_cast<uint8_t*>(marks.mutable_data_ptr()),
                     static_cast<S*>(best.mutable_data_ptr()),
                     B,
                     within_int32(G, "scores_BGE: too many gates"),
                     within_int32(E, "scores_BGE: too many experts"),
                     static_cast<int32_t>(s.shared_k),
                     static_cast<int32_t>(s.private_k),
                     static_cast<int32_t>(std::min(s.budget, most)),
                     s.floor,
                     s.largest};
  select<<<blocks_for(B * kWarp), kThreads, 0, stream>>>(d);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor joint_select(const Tensor& scores_BGE, const Tensor& visibility_GE, const Tensor& votes_G,
                    const std::optional<Tensor>& asked_BG, int64_t shared_k, int64_t private_k,
                    int64_t budget, int64_t floor, bool largest) {
  check_device(scores_BGE, "scores_BGE",
               {{"visibility_GE", &visibility_GE}, {"votes_G", &votes_G}});
  if (asked_BG) check_device(scores_BGE, "scores_BGE", {{"asked_BG", &*asked_BG}});
  const Launch launch(scores_BGE);
  const JointSelect s(scores_BGE, visibility_GE, votes_G, asked_BG, shared_k, private_k, budget,
                      floor, largest);
  const Tensor scores = dense(scores_BGE), visibility = dense(visibility_GE);
  const Tensor picked =
      empty(scores, {scores.size(0), scores.size(1), scores.size(2)}, ScalarType::Bool);
  if (scores.scalar_type() == ScalarType::Double) {
    run<double>(scores, visibility, s, picked, launch.stream());
  } else {
    run<float>(scores, visibility, s, picked, launch.stream());
  }
  return picked;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) { m.impl("joint_select", MMOE_BOX(joint_select)); }

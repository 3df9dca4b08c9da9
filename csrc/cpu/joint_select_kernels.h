// The loops of joint_select; see each_isa.h.
//
// A row's scores are copied to a buffer where what may not be picked is 0; whoever is chosen
// becomes 0 there too, so every choice is one pass over the buffer for the largest number above 0.

#include "vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

using joint::Rows;
using joint::Scratch;

// The first of the largest numbers above 0 in a buffer, -1: there is none. `at(e)` gives the vector
// from place e on.
template <typename T, typename At>
MMOE_INLINE int32_t first_of_largest(int64_t padded, const At& at) {
  using L = Lanes<T>;
  typename L::vec best = {};
  const auto nobody = typename L::ints{} + std::numeric_limits<typename L::int_t>::max();
  typename L::ints experts = nobody, number;
  std::memcpy(&number, kCounting<typename L::int_t>, sizeof number);
  for (int64_t e = 0; e < padded; e += L::count) {
    const typename L::vec x = at(e);
    const auto better = x > best;
    best = better ? x : best;
    experts = better ? number : experts;
    number += static_cast<typename L::int_t>(L::count);
  }
  const T most = join_lanes<T>(best, Larger());
  if (!(most > 0)) return -1;
  experts = best == most ? experts : nobody;
  return static_cast<int32_t>(join_lanes<typename L::int_t>(experts, Smaller()));
}

template <typename T>
MMOE_INLINE int32_t first_of_largest(const T* buffer, int64_t padded) {
  return first_of_largest<T>(padded, [&](int64_t e) { return load(buffer + e); });
}

// Copies a row, and finds who votes: the gates it asks for that have a vote; else all it asks for.
template <typename T>
MMOE_INLINE void load_row(const Rows<T>& d, int64_t row, Scratch<T>& s) {
  using L = Lanes<T>;
  const bool* asked = d.asked ? d.asked + row * d.G : nullptr;
  s.voters.clear();
  for (int64_t g = 0; g < d.G; ++g) {
    s.has_vote[g] = d.votes[g] && (!asked || asked[g]);
    if (s.has_vote[g]) s.voters.push_back(static_cast<int32_t>(g));
  }
  if (s.voters.empty()) {
    for (int64_t g = 0; g < d.G; ++g) {
      s.has_vote[g] = !asked || asked[g];
      if (s.has_vote[g]) s.voters.push_back(static_cast<int32_t>(g));
    }
  }
  for (int64_t g = 0; g < d.G; ++g) {
    const T* from = d.scores + (row * d.G + g) * d.E;
    const auto* visible = d.visible + g * d.padded;
    T* to = s.wanted.data() + g * d.padded;
    if (asked && !asked[g]) {
      fill_zero(to, d.padded);
      continue;
    }
    for (int64_t e = 0; e < d.padded; e += L::count) {
      // Past the row's end lies the next row, which is hidden here; past the last row nothing.
      const bool whole = d.end - (from + e) >= L::count;
      const typename L::vec x = whole ? load(from + e) : load_some(from + e, d.end - (from + e));
      typename L::ints seen;
      std::memcpy(&seen, visible + e, sizeof seen);
      store(to + e, ((x > 0) & seen) ? x : typename L::vec{});
    }
  }
}

// What the voters want together, of the experts that all of them see.
template <typename T>
MMOE_INLINE void add_votes(const Rows<T>& d, Scratch<T>& s) {
  using L = Lanes<T>;
  for (int64_t e = 0; e < d.padded; e += L::count) {
    typename L::vec sum = {};
    typename L::ints seen = typename L::ints{} - 1;
    for (const int32_t g : s.voters) {
      const auto x = load(s.wanted.data() + g * d.padded + e);
      typename L::ints visible;
      std::memcpy(&visible, d.visible + g * d.padded + e, sizeof visible);
      sum = d.largest ? Larger()(x, sum) : sum + x;
      seen &= visible;
    }
    store(s.total.data() + e, seen ? sum : typename L::vec{});
  }
}

// Marks a picked expert of gate g where the gate wants it.
template <typename T>
MMOE_INLINE void give(const Rows<T>& d, int64_t row, int64_t g, int32_t e, T value) {
  if (value > 0) d.picked[(row * d.G + g) * d.E + e] = true;
}

// Without a budget: shared ones, then each gate's best of the others.
template <typename T>
MMOE_INLINE void select_freely(const Rows<T>& d, int64_t row, Scratch<T>& s) {
  if (d.shared_k > 0) add_votes(d, s);
  for (int64_t k = 0; k < d.shared_k; ++k) {
    const int32_t e = first_of_largest(s.total.data(), d.padded);
    if (e < 0) break;
    s.total[e] = 0;
    for (int64_t g = 0; g < d.G; ++g) {
      T& value = s.wanted[g * d.padded + e];
      give(d, row, g, e, value);
      value = 0;
    }
  }
  for (int64_t g = 0; g < d.G; ++g) {
    T* const wanted = s.wanted.data() + g * d.padded;
    for (int64_t k = 0; k < d.private_k; ++k) {
      const int32_t e = first_of_largest(wanted, d.padded);
      if (e < 0) break;
      give(d, row, g, e, wanted[e]);
      wanted[e] = 0;
    }
  }
}

// Puts an expert into the set; nobody chooses it again.
template <typename T>
MMOE_INLINE void add_member(const Rows<T>& d, int32_t e, int64_t number, Scratch<T>& s) {
  s.members[number] = e;
  s.is_member[e] = true;
  for (int64_t g = 0; g < d.G; ++g) {
    s.values[number * d.G + g] = s.wanted[g * d.padded + e];
    s.wanted[g * d.padded + e] = 0;
  }
}

// Puts a member's scores among the largest of each voter.
template <typename T>
MMOE_INLINE void rank_member(const Rows<T>& d, int64_t number, Scratch<T>& s) {
  for (const int32_t g : s.voters) {
    T* const best = s.best.data() + g * d.private_k;
    const T value = s.values[number * d.G + g];
    int64_t at = d.private_k - 1;
    if (!(value > best[at])) continue;
    for (; at > 0 && value > best[at - 1]; --at) best[at] = best[at - 1];
    best[at] = value;
  }
}

// The expert that adds most to what the voters keep.
template <typename T>
MMOE_INLINE int32_t best_addition(const Rows<T>& d, const Scratch<T>& s) {
  using L = Lanes<T>;
  return first_of_largest<T>(d.padded, [&](int64_t e) {
    typename L::vec gain = {};
    for (const int32_t g : s.voters) {
      const auto more =
          load(s.wanted.data() + g * d.padded + e) - s.best[(g + 1) * d.private_k - 1];
      gain += more > 0 ? more : typename L::vec{};
    }
    return gain;
  });
}

// The set of a row, within the budget; returns how many it has.
template <typename T>
MMOE_INLINE int64_t find_set(const Rows<T>& d, Scratch<T>& s) {
  int64_t size = 0;
  for (int64_t g = 0; g < d.G; ++g) {
    s.firsts[g] =
        d.floor ? first_of_largest(s.wanted.data() + g * d.padded, d.padded) : int32_t{-1};
  }
  if (d.shared_k > 0) add_votes(d, s);
  for (const int32_t g : s.voters) {
    const int32_t e = s.firsts[g];
    if (e >= 0 && !s.is_member[e] && size < d.budget) add_member(d, e, size++, s);
  }
  for (int64_t shared = 0; shared < d.shared_k;) {
    const int32_t e = first_of_largest(s.total.data(), d.padded);
    if (e < 0) break;
    s.total[e] = 0;
    if (!s.is_member[e]) {
      if (size == d.budget) continue;
      add_member(d, e, size++, s);
    }
    s.is_shared[e] = true;
    ++shared;
  }
  if (d.private_k == 0) return size;
  std::fill(s.best.begin(), s.best.end(), T(0));
  for (int64_t i = 0; i < size; ++i) {
    if (!s.is_shared[s.members[i]]) rank_member(d, i, s);
  }
  while (size < d.budget) {
    const int32_t e = best_addition(d, s);
    if (e < 0) break;
    add_member(d, e, size, s);
    rank_member(d, size++, s);
  }
  return size;
}

// Gives gate g its best of a set beside the shared ones.
template <typename T>
MMOE_INLINE void share_out(const Rows<T>& d, int64_t row, int64_t g, int64_t size, Scratch<T>& s) {
  int64_t left = d.private_k;
  for (int64_t i = 0; i < size; ++i) {
    T& value = s.values[i * d.G + g];
    if (!s.is_shared[s.members[i]]) continue;
    give(d, row, g, s.members[i], value);
    value = 0;
  }
  const int32_t own = s.firsts[g];
  if (!s.has_vote[g] && left > 0 && own >= 0 && !s.is_member[own]) {
    give(d, row, g, own, s.wanted[g * d.padded + own]);
    --left;
  }
  for (; left > 0; --left) {
    int64_t best = -1;
    for (int64_t i = 0; i < size; ++i) {
      const T value = s.values[i * d.G + g];
      if (!(value > 0)) continue;
      const T most = best < 0 ? T(0) : s.values[best * d.G + g];
      if (value > most || (value == most && s.members[i] < s.members[best])) best = i;
    }
    if (best < 0) break;
    give(d, row, g, s.members[best], s.values[best * d.G + g]);
    s.values[best * d.G + g] = 0;
  }
}

template <typename T>
void select_rows(const Rows<T>& d, int64_t begin, int64_t end, Scratch<T>& s) {
  fill_zero(d.picked + begin * d.G * d.E, (end - begin) * d.G * d.E);
  for (int64_t row = begin; row < end; ++row) {
    load_row(d, row, s);
    if (s.voters.empty()) continue;
    if (d.budget == 0) {
      select_freely(d, row, s);
      continue;
    }
    const int64_t size = find_set(d, s);
    for (int64_t g = 0; g < d.G; ++g) share_out(d, row, g, size, s);
    for (int64_t i = 0; i < size; ++i) {
      s.is_member[s.members[i]] = s.is_shared[s.members[i]] = false;
    }
  }
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

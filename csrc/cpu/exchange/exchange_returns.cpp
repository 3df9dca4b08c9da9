// pack_returns and mix_returns on the CPU, and their gradients. Row by row, or sample by sample:
// what belongs to one is read for all its gates while it is in the cache, and written once.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../distinct.h"
#include "../indices.h"
#include "../memory.h"
#include "exchange_rows.h"

namespace mmoe {
namespace {

using exchange::data;
using exchange::Links;
using exchange::numbers;
using exchange::Step;
using exchange::Uses;
using exchange::writable;
using torch::stable::parallel_for;

constexpr int64_t kVector = 64;  // bytes, the widest

// Room for the uses of one row.
template <typename G, typename S>
struct Room {
  std::vector<const G*> grads;
  std::vector<S> weights, dots, scratch;
  std::vector<int64_t> entries;
  std::vector<int32_t> found;
  explicit Room(int64_t n)
      : grads(n), weights(n), dots(n), scratch(n * kVector / sizeof(S)), entries(n), found(n) {}
};

struct Returns {
  const int32_t *back_of_pair, *back_of_sum, *slots;
  int64_t N, G, K, R, Z, O;
  int64_t picks() const { return G * K; }
};

Returns describe(const Tensor& y, const Tensor& back_R, const Tensor& back_NG, const Tensor& slots,
                 int64_t Z) {
  check_indices("slots_NGK", "slots", slots, y.size(0));
  check_indices("back_R", "rows", back_R, Z);
  check_indices("back_NG", "rows", back_NG, Z);
  return {numbers(back_R), numbers(back_NG), numbers(slots), slots.size(0),
          slots.size(1),   slots.size(2),    y.size(0),      Z,
          y.size(1)};
}

Tensor pack_returns(const Tensor& y_RO, const Tensor& weights_NGK, const Tensor& back_R,
                    const Tensor& back_NG, const Tensor& slots_NGK, int64_t num_rows,
                    ScalarType wire) {
  exchange::check_pack_returns(y_RO, weights_NGK, back_R, back_NG, slots_NGK, num_rows);
  exchange::check_wire(y_RO.scalar_type(), wire);
  const Tensor y = dense(y_RO), weights = dense(weights_NGK), slots = dense(slots_NGK);
  const Tensor pairs = dense(back_R), sums = dense(back_NG);
  const Returns d = describe(y, pairs, sums, slots, num_rows);
  const Tensor back = fresh(y, {d.Z, d.O}, wire);
  exchange::for_types(y.scalar_type(), wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    using S = typename Row<T>::sum_t;
    const auto copy = MMOE_BEST(copy_row<S, T, N>);
    const auto mix = MMOE_BEST(mix_rows<S, T, T, N>);
    const T* from = data<T>(y);
    N* to = writable<N>(back);
    parallel_for(0, d.R, grain(d.O), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        if (d.back_of_pair[p] >= 0) copy(from + p * d.O, to + d.back_of_pair[p] * d.O, d.O);
      }
    });
    parallel_for(0, d.N * d.G, grain((d.K + 1) * d.O), [&](int64_t begin, int64_t end) {
      std::vector<Step<T, S>> steps(d.K);
      for (int64_t i = begin; i < end; ++i) {
        if (d.back_of_sum[i] < 0) continue;
        int64_t used = 0;
        for (int64_t k = i * d.K; k < (i + 1) * d.K; ++k) {
          if (d.slots[k] < 0) continue;
          steps[used++] = {from + d.slots[k] * d.O, data<S>(weights)[k], false};
        }
        mix(steps.data(), used, to + d.back_of_sum[i] * d.O, d.O);
      }
    });
  });
  return back;
}

// Collects the picks of a row, or of a sample, whose number in `of_pick` is `number`, and runs the
// gradient of the row `y` that they used.
template <typename F, typename G, typename S, typename Grad, typename Run>
void differentiate_uses(const int32_t* of_pick, int64_t count, int32_t number, Uses<F, G, S> uses,
                        int64_t width, Room<G, S>& room, const Grad& grad_of, const Run& run) {
  uses.count = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (of_pick[i] != number) continue;
    const auto [grad, weight] = grad_of(i);
    room.grads[uses.count] = grad;
    room.weights[uses.count] = weight;
    room.entries[uses.count++] = i;
  }
  uses.grad = room.grads.data();
  uses.weight = room.weights.data();
  uses.dot = room.dots.data();
  uses.scratch = room.scratch.data();
  run(uses, width);
}

// Refuses a pick whose output went back neither as a pair nor in a sum: it has no gradient.
void check_went_back(const Returns& d) {
  for (int64_t i = 0; i < d.N * d.picks(); ++i) {
    if (d.slots[i] < 0 || d.back_of_pair[d.slots[i]] >= 0 || d.back_of_sum[i / d.K] >= 0) continue;
    fail("back_NG: expected a row for a sum, got -1 for sum ", i / d.K, ", whose pair ", d.slots[i],
         " does not go back by itself");
  }
}

std::tuple<Tensor, Tensor> pack_returns_backward(const Tensor& grad_ZO, const Tensor& y_RO,
                                                 const Tensor& weights_NGK, const Tensor& back_R,
                                                 const Tensor& back_NG, const Tensor& slots_NGK) {
  check_dim("grad_ZO", grad_ZO, 2);
  exchange::check_pack_returns(y_RO, weights_NGK, back_R, back_NG, slots_NGK, grad_ZO.size(0));
  exchange::check_rows("grad_ZO", grad_ZO, y_RO);
  const Tensor y = dense(y_RO), weights = dense(weights_NGK), slots = dense(slots_NGK);
  const Tensor pairs = dense(back_R), sums = dense(back_NG), grad = dense(grad_ZO);
  const Returns d = describe(y, pairs, sums, slots, grad.size(0));
  check_went_back(d);
  const Tensor grad_y = fresh(y, {d.R, d.O}, y.scalar_type());
  const Tensor grad_weights = empty(weights, {d.N, d.G, d.K}, weights.scalar_type());
  exchange::for_types(y.scalar_type(), grad.scalar_type(), [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    using S = typename Row<T>::sum_t;
    const auto copy = MMOE_BEST(copy_row<S, N, T>);
    const auto run = MMOE_BEST(differentiate_row<S, T, N>);
    const N* from = data<N>(grad);
    T* to = writable<T>(grad_y);
    parallel_for(0, d.R, grain(d.O), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        if (d.back_of_pair[p] >= 0) {
          copy(from + d.back_of_pair[p] * d.O, to + p * d.O, d.O);
        } else {
          fill_zero(to + p * d.O, d.O);  // summed below, unless nobody asked for it
        }
      }
    });
    S* to_weights = writable<S>(grad_weights);
    parallel_for(0, d.N, grain((d.picks() + 1) * d.O), [&](int64_t begin, int64_t end) {
      Room<N, S> room(d.picks());
      for (int64_t n = begin; n < end; ++n) {
        const int64_t first = n * d.picks();
        fill_zero(to_weights + first, d.picks());
        const int64_t count = distinct(d.slots + first, d.picks(), room.found.data());
        for (int64_t c = 0; c < count; ++c) {
          const int32_t p = room.found[c];
          if (d.back_of_pair[p] >= 0) continue;
          const auto grad_of = [&](int64_t i) {
            const int64_t z = d.back_of_sum[n * d.G + i / d.K];
            return std::pair(from + z * d.O, data<S>(weights)[first + i]);
          };
          differentiate_uses<T, N, S>(d.slots + first, d.picks(), p,
                                      {data<T>(y) + p * d.O, to + p * d.O}, d.O, room, grad_of,
                                      run);
          int64_t m = 0;
          for (int64_t i = 0; i < d.picks(); ++i) {
            if (d.slots[first + i] == p) to_weights[first + i] = room.dots[m++];
          }
        }
      }
    });
  });
  return {grad_y, grad_weights};
}

// Where the picks of a sample find what came back for them.
struct Mix {
  const int32_t* rows;
  int64_t B, G, K, Z, O;
  std::vector<int32_t> places;  // of each pick; -1 = unused
  std::vector<bool> sum;        // of each pick: a partial sum is there, else a pair

  int64_t picks() const { return G * K; }
};

Mix describe(const Tensor& back, const Tensor& rows, const Tensor& pairs, const Tensor& sums,
             const Tensor& table) {
  const Links links = exchange::read_links(table);
  exchange::check_rising(links);
  check_indices("rows_BGK", "rows", rows, links.first(links.W, exchange::kRows));
  const int64_t count = rows.numel();
  Mix d = {numbers(rows), rows.size(0), rows.size(1), rows.size(2),
           back.size(0),  back.size(1), {},           std::vector<bool>(count)};
  d.places.resize(count, -1);
  for (int64_t i = 0; i < count; ++i) {
    if (d.rows[i] < 0) continue;
    const int64_t rank = links.rank_of(d.rows[i], exchange::kRows);
    d.sum[i] = links.sums(rank);
    const int64_t number = (d.sum[i] ? numbers(sums) : numbers(pairs))[i];
    const int64_t at = number - links.first(rank, d.sum[i] ? exchange::kSums : exchange::kPairs) +
                       links.first(rank, exchange::kBack);
    if (number < 0 || at < 0 || at >= d.Z) {
      fail(d.sum[i] ? "sums_BGK" : "pairs_BGK", ": expected numbers of outbound_plan that fit ",
           "links_WL, got ", number, " of rank ", rank, ", which is row ", at, " of the ", d.Z,
           " that came back");
    }
    d.places[i] = static_cast<int32_t>(at);
  }
  return d;
}

// The picks of one gate in use, by row and then in their order.
int64_t by_row(const Mix& d, int64_t gate, int64_t* order) {
  int64_t used = 0;
  for (int64_t i = gate * d.K; i < (gate + 1) * d.K; ++i) {
    if (d.rows[i] < 0) continue;
    int64_t at = used++;
    for (; at > 0 && d.rows[order[at - 1]] > d.rows[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  return used;
}

// Calls visit(pick, begins a part?) in the order of a gate's sum. A partial sum serves all of its
// picks at once: the first of them takes it.
template <typename Visit>
void visit_gate(const Mix& d, int64_t gate, int64_t* order, const Visit& visit) {
  const int64_t used = by_row(d, gate, order);
  for (int64_t i = 0; i < used; ++i) {
    const bool begins = i == 0 || d.rows[order[i]] != d.rows[order[i - 1]];
    if (begins || !d.sum[order[i]]) visit(order[i], begins);
  }
}

Tensor mix_returns(const Tensor& back_ZO, const Tensor& weights_BGK, const Tensor& rows_BGK,
                   const Tensor& pairs_BGK, const Tensor& sums_BGK, const Tensor& links_WL,
                   ScalarType dtype) {
  exchange::check_mix_returns(back_ZO, weights_BGK, rows_BGK, pairs_BGK, sums_BGK, links_WL, dtype);
  const Tensor back = dense(back_ZO), weights = dense(weights_BGK), rows = dense(rows_BGK);
  const Tensor pairs = dense(pairs_BGK), sums = dense(sums_BGK), table = dense(links_WL);
  const Mix d = describe(back, rows, pairs, sums, table);
  const Tensor out = fresh(back, {d.B, d.G, d.O}, dtype);
  exchange::for_types(dtype, back.scalar_type(), [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    using S = typename Row<T>::sum_t;
    const auto mix = MMOE_BEST(mix_rows<S, T, N, T>);
    parallel_for(0, d.B * d.G, grain((d.K + 1) * d.O), [&](int64_t begin, int64_t end) {
      std::vector<Step<N, S>> steps(d.K);
      std::vector<int64_t> order(d.K);
      for (int64_t gate = begin; gate < end; ++gate) {
        int64_t used = 0;
        visit_gate(d, gate, order.data(), [&](int64_t i, bool begins) {
          const S weight = d.sum[i] ? S{1} : data<S>(weights)[i];
          steps[used++] = {data<N>(back) + d.places[i] * d.O, weight, begins};
        });
        mix(steps.data(), used, writable<T>(out) + gate * d.O, d.O);
      }
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> mix_returns_backward(const Tensor& grad_BGO, const Tensor& back_ZO,
                                                const Tensor& weights_BGK, const Tensor& rows_BGK,
                                                const Tensor& pairs_BGK, const Tensor& sums_BGK,
                                                const Tensor& links_WL) {
  const ScalarType dtype = grad_BGO.scalar_type();
  exchange::check_mix_returns(back_ZO, weights_BGK, rows_BGK, pairs_BGK, sums_BGK, links_WL, dtype,
                              "grad_BGO");
  check_grad(grad_BGO, rows_BGK.size(0), rows_BGK.size(1), back_ZO.size(1), dtype);
  const Tensor back = dense(back_ZO), weights = dense(weights_BGK), rows = dense(rows_BGK);
  const Tensor pairs = dense(pairs_BGK), sums = dense(sums_BGK), table = dense(links_WL);
  const Tensor grad = dense(grad_BGO);
  const Mix d = describe(back, rows, pairs, sums, table);
  const Tensor grad_back = fresh(back, {d.Z, d.O}, back.scalar_type());
  const Tensor grad_weights = empty(weights, {d.B, d.G, d.K}, weights.scalar_type());
  std::vector<char> written(d.Z, 0);
  exchange::for_types(dtype, back.scalar_type(), [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    using S = typename Row<T>::sum_t;
    const auto run = MMOE_BEST(differentiate_row<S, N, T>);
    const N* from = data<N>(back);
    N* to = writable<N>(grad_back);
    S* to_weights = writable<S>(grad_weights);
    parallel_for(0, d.B, grain((d.picks() + 1) * d.O), [&](int64_t begin, int64_t end) {
      Room<T, S> room(d.picks());
      std::vector<int64_t> order(d.K);
      std::vector<int32_t> places(d.picks());
      for (int64_t b = begin; b < end; ++b) {
        const int64_t first = b * d.picks();
        std::fill(places.begin(), places.end(), -1);
        fill_zero(to_weights + first, d.picks());
        for (int64_t g = 0; g < d.G; ++g) {
          visit_gate(d, b * d.G + g, order.data(),
                     [&](int64_t i, bool) { places[i - first] = d.places[i]; });
        }
        const int64_t count = distinct(places.data(), d.picks(), room.found.data());
        for (int64_t c = 0; c < count; ++c) {
          const int32_t z = room.found[c];
          const auto grad_of = [&](int64_t i) {
            return std::pair(data<T>(grad) + (b * d.G + i / d.K) * d.O,
                             d.sum[first + i] ? S{1} : data<S>(weights)[first + i]);
          };
          differentiate_uses<N, T, S>(places.data(), d.picks(), z, {from + z * d.O, to + z * d.O},
                                      d.O, room, grad_of, run);
          written[z] = 1;
          int64_t m = 0;
          for (int64_t i = 0; i < d.picks(); ++i) {
            // The weights of a partial sum get their gradient where it was summed.
            if (places[i] == z && !d.sum[first + i]) to_weights[first + i] = room.dots[m++];
          }
        }
      }
    });
    for (int64_t z = 0; z < d.Z; ++z) {
      if (!written[z]) fill_zero(to + z * d.O, d.O);
    }
  });
  return {grad_back, grad_weights};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("pack_returns", MMOE_BOX(pack_returns));
  m.impl("pack_returns_backward", MMOE_BOX(pack_returns_backward));
  m.impl("mix_returns", MMOE_BOX(mix_returns));
  m.impl("mix_returns_backward", MMOE_BOX(mix_returns_backward));
}

// pack_returns and mix_returns on CUDA, and their gradients. A warp for each row that is written,
// and for each row or sample whose gradient is taken: nothing is added atomically.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "exchange.cuh"

namespace mmoe {
namespace {

using exchange::data;
using exchange::Links;
using exchange::numbers;
using exchange::writable;

unsigned warps(int64_t rows) { return blocks_for(rows * kWarp); }

template <typename From, typename To>
__device__ void copy_row(const From* from, To* to, int64_t width) {
  using S = sum_t<std::conditional_t<std::is_same_v<From, double>, double, To>>;
  exchange::for_columns(
      width, [&](int64_t o) { to[o] = exchange::narrowed<To>(exchange::widened<S>(from[o])); });
}

// What goes back of the rows that came.
struct Returns {
  const int32_t *back_of_pair, *back_of_sum, *slots;
  int64_t N, G, K, R, Z, O;
  __device__ int64_t picks() const { return G * K; }
};

template <typename T, typename N>
__global__ void pack_pairs(Returns d, const T* y, N* back) {
  const int64_t p = exchange::warp_number();
  if (p >= d.R) return;
  const int32_t z = d.back_of_pair[p];
  MMOE_DEVICE_CHECK(z >= -1 && z < d.Z, "back_R: expected a row in [0, Z) or -1", z);
  if (z >= 0) copy_row(y + p * d.O, back + z * d.O, d.O);
}

template <typename T, typename N>
__global__ void pack_sums(Returns d, const T* y, const sum_t<T>* weights, N* back) {
  const int64_t i = exchange::warp_number();
  if (i >= d.N * d.G) return;
  const int32_t z = d.back_of_sum[i];
  MMOE_DEVICE_CHECK(z >= -1 && z < d.Z, "back_NG: expected a row in [0, Z) or -1", z);
  if (z < 0) return;
  exchange::for_columns(d.O, [&](int64_t o) {
    sum_t<T> sum = 0;
    for (int64_t k = i * d.K; k < (i + 1) * d.K; ++k) {
      const int32_t p = d.slots[k];
      MMOE_DEVICE_CHECK(p >= -1 && p < d.R, "slots_NGK: expected a slot in [0, R) or -1", p);
      if (p >= 0) sum += weights[k] * to_sum(y[p * d.O + o]);
    }
    back[z * d.O + o] = exchange::narrowed<N>(exchange::rounded_to<T>(sum));
  });
}

Returns describe(const Tensor& y, const Tensor& back_R, const Tensor& back_NG, const Tensor& slots,
                 int64_t Z) {
  return {numbers(back_R), numbers(back_NG), numbers(slots), slots.size(0),
          slots.size(1),   slots.size(2),    y.size(0),      Z,
          y.size(1)};
}

Tensor pack_returns(const Tensor& y_RO, const Tensor& weights_NGK, const Tensor& back_R,
                    const Tensor& back_NG, const Tensor& slots_NGK, int64_t num_rows,
                    ScalarType wire) {
  exchange::check_pack_returns(y_RO, weights_NGK, back_R, back_NG, slots_NGK, num_rows);
  exchange::check_wire(y_RO.scalar_type(), wire);
  check_device(y_RO, "y_RO",
               {{"weights_NGK", &weights_NGK},
                {"back_R", &back_R},
                {"back_NG", &back_NG},
                {"slots_NGK", &slots_NGK}});
  const Launch launch(y_RO);
  const Tensor y = dense(y_RO), weights = dense(weights_NGK), slots = dense(slots_NGK);
  const Tensor pairs = dense(back_R), sums = dense(back_NG);
  const Returns d = describe(y, pairs, sums, slots, num_rows);
  const Tensor back = empty(y, {d.Z, d.O}, wire);
  if (back.numel() == 0) return back;
  exchange::for_types(y.scalar_type(), wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    if (d.R > 0) {
      pack_pairs<T, N>
          <<<warps(d.R), kThreads, 0, launch.stream()>>>(d, data<T>(y), writable<N>(back));
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
    if (d.N * d.G > 0) {
      pack_sums<T, N><<<warps(d.N * d.G), kThreads, 0, launch.stream()>>>(
          d, data<T>(y), data<sum_t<T>>(weights), writable<N>(back));
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
  });
  return back;
}

// A pair that went back itself; 0 for the others, whose gradient comes from the sums.
template <typename T, typename N>
__global__ void pairs_backward(Returns d, const N* grad, T* grad_y) {
  const int64_t p = exchange::warp_number();
  if (p >= d.R) return;
  const int32_t z = d.back_of_pair[p];
  MMOE_DEVICE_CHECK(z >= -1 && z < d.Z, "back_R: expected a row in [0, Z) or -1", z);
  if (z >= 0) {
    copy_row(grad + z * d.O, grad_y + p * d.O, d.O);
  } else {
    exchange::for_columns(d.O, [&](int64_t o) { grad_y[p * d.O + o] = from_sum<T>(0); });
  }
}

template <typename S, typename A, typename B>
__device__ S dot(const A* a, const B* b, int64_t width) {
  S sum = 0;
  exchange::for_columns(
      width, [&](int64_t o) { sum += exchange::widened<S>(a[o]) * exchange::widened<S>(b[o]); });
  return add_over_warp(sum);
}

// A warp for each row that came.
template <typename T, typename N>
__global__ void sums_backward(Returns d, const N* grad, const T* y, const sum_t<T>* weights,
                              T* grad_y, sum_t<T>* grad_weights) {
  using S = sum_t<T>;
  const int64_t n = exchange::warp_number(), picks = d.picks();
  if (n >= d.N) return;
  const int32_t* slots = d.slots + n * picks;
  const auto grad_of = [&](int64_t i) {
    const int32_t z = d.back_of_sum[n * d.G + i / d.K];
    MMOE_DEVICE_CHECK(z >= 0 && z < d.Z, "back_NG: expected a row for a sum", z);
    return grad + z * d.O;
  };
  for (int64_t i = 0; i < picks; ++i) {
    const int32_t p = slots[i];
    MMOE_DEVICE_CHECK(p >= -1 && p < d.R, "slots_NGK: expected a slot in [0, R) or -1", p);
    S grad_weight = 0;
    if (p >= 0 && d.back_of_pair[p] < 0) {
      if (exchange::is_first(slots, i)) {
        exchange::for_columns(d.O, [&](int64_t o) {
          S sum = 0;
          for (int64_t j = i; j < picks; ++j) {
            if (slots[j] != p) continue;
            sum += weights[n * picks + j] * exchange::widened<S>(grad_of(j)[o]);
          }
          grad_y[p * d.O + o] = from_sum<T>(sum);
        });
      }
      grad_weight = dot<S>(y + p * d.O, grad_of(i), d.O);
    }
    if (threadIdx.x % kWarp == 0) grad_weights[n * picks + i] = grad_weight;
  }
}

std::tuple<Tensor, Tensor> pack_returns_backward(const Tensor& grad_ZO, const Tensor& y_RO,
                                                 const Tensor& weights_NGK, const Tensor& back_R,
                                                 const Tensor& back_NG, const Tensor& slots_NGK) {
  check_dim("grad_ZO", grad_ZO, 2);
  exchange::check_pack_returns(y_RO, weights_NGK, back_R, back_NG, slots_NGK, grad_ZO.size(0));
  exchange::check_rows("grad_ZO", grad_ZO, y_RO);
  check_device(y_RO, "y_RO",
               {{"grad_ZO", &grad_ZO},
                {"weights_NGK", &weights_NGK},
                {"back_R", &back_R},
                {"back_NG", &back_NG},
                {"slots_NGK", &slots_NGK}});
  const Launch launch(y_RO);
  const Tensor y = dense(y_RO), weights = dense(weights_NGK), slots = dense(slots_NGK);
  const Tensor pairs = dense(back_R), sums = dense(back_NG), grad = dense(grad_ZO);
  const Returns d = describe(y, pairs, sums, slots, grad.size(0));
  const Tensor grad_y = empty(y, {d.R, d.O}, y.scalar_type());
  const Tensor grad_weights = empty(weights, {d.N, d.G, d.K}, weights.scalar_type());
  exchange::for_types(y.scalar_type(), grad.scalar_type(), [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    if (d.R > 0) {
      pairs_backward<T, N>
          <<<warps(d.R), kThreads, 0, launch.stream()>>>(d, data<N>(grad), writable<T>(grad_y));
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
    if (d.N > 0) {
      sums_backward<T, N><<<warps(d.N), kThreads, 0, launch.stream()>>>(
          d, data<N>(grad), data<T>(y), data<sum_t<T>>(weights), writable<T>(grad_y),
          writable<sum_t<T>>(grad_weights));
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
  });
  return {grad_y, grad_weights};
}

// What a batch's picks find among what came back.
struct Mix {
  Links links;
  const int32_t *rows, *pairs, *sums;
  int64_t B, G, K, Z, O;
};

// The row that came back for a pick, and whether it is a sum. A sum serves all picks of a gate that
// it holds at once: the first takes it, the others get -1.
__global__ void find_places(Mix d, int32_t* places, bool* is_sum) {
  if (blockIdx.x == 0) exchange::check_table(d.links);
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= d.B * d.G * d.K) return;
  places[i] = -1;
  is_sum[i] = false;
  if (d.rows[i] < 0) return;
  MMOE_DEVICE_CHECK(d.rows[i] < d.links.first(d.links.W, exchange::kRows),
                    "rows_BGK: expected a row in [0, N) or -1", d.rows[i]);
  const int64_t w = d.links.rank_of(d.rows[i], exchange::kRows);
  const bool sum = d.links.sums(w);
  for (int64_t k = i / d.K * d.K; sum && k < i; ++k) {
    if (d.rows[k] == d.rows[i]) return;
  }
  const int64_t number = sum ? d.sums[i] : d.pairs[i];
  const int64_t at = number - d.links.first(w, sum ? exchange::kSums : exchange::kPairs) +
                     d.links.first(w, exchange::kBack);
  MMOE_DEVICE_CHECK(number >= 0 && at >= 0 && at < d.Z,
                    "pairs_BGK, sums_BGK: expected numbers of outbound_plan that fit links_WL", at);
  places[i] = static_cast<int32_t>(at);
  is_sum[i] = sum;
}

// A warp for each (sample, gate): its rows in increasing order, and the picks of each.
template <typename T, typename N>
__global__ void mix(Mix d, const int32_t* places, const bool* is_sum, const N* back,
                    const sum_t<T>* weights, T* out) {
  using S = sum_t<T>;
  const int64_t gate = exchange::warp_number();
  if (gate >= d.B * d.G) return;
  const int32_t* rows = d.rows + gate * d.K;
  for (int64_t first = 0; first < d.O; first += kWarp) {
    const int64_t o = first + threadIdx.x % kWarp;
    S total = 0;
    int32_t last = -1;
    for (;;) {
      const uint32_t next = exchange::next_number(rows, d.K, last);
      if (next == exchange::kNone) break;
      last = static_cast<int32_t>(next);
      if (o >= d.O) continue;
      S part = 0;
      for (int64_t k = 0; k < d.K; ++k) {
        const int64_t i = gate * d.K + k;
        if (rows[k] != last || places[i] < 0) continue;
        const S weight = is_sum[i] ? S{1} : weights[i];
        part += weight * exchange::widened<S>(back[places[i] * d.O + o]);
      }
      total += exchange::rounded_to<T>(part);
    }
    if (o < d.O) out[gate * d.O + o] = from_sum<T>(total);
  }
}

// A warp for each sample.
template <typename T, typename N>
__global__ void mix_backward(Mix d, const int32_t* all_places, const bool* is_sum, const T* grad,
                             const N* back, const sum_t<T>* weights, N* grad_back,
                             sum_t<T>* grad_weights) {
  using S = sum_t<T>;
  const int64_t b = exchange::warp_number(), picks = d.G * d.K;
  if (b >= d.B) return;
  const int64_t first = b * picks;
  const int32_t* places = all_places + first;
  for (int64_t i = 0; i < picks; ++i) {
    S grad_weight = 0;
    if (places[i] >= 0) {
      const int64_t z = places[i];
      if (exchange::is_first(places, i)) {
        exchange::for_columns(d.O, [&](int64_t o) {
          S sum = 0;
          for (int64_t j = i; j < picks; ++j) {
            if (places[j] != z) continue;
            const S weight = is_sum[first + j] ? S{1} : weights[first + j];
            sum += weight * to_sum(grad[(b * d.G + j / d.K) * d.O + o]);
          }
          grad_back[z * d.O + o] = exchange::narrowed<N>(sum);
        });
      }
      // The weights of a partial sum get their gradient where it was summed.
      if (!is_sum[first + i]) {
        grad_weight = dot<S>(back + z * d.O, grad + (b * d.G + i / d.K) * d.O, d.O);
      }
    }
    if (threadIdx.x % kWarp == 0) grad_weights[first + i] = grad_weight;
  }
}

struct Places {
  Tensor places, is_sum;

  Places(const Mix& d, const Tensor& like, cudaStream_t stream)
      : places(empty(like, {d.B, d.G, d.K}, ScalarType::Int)),
        is_sum(empty(like, {d.B, d.G, d.K}, ScalarType::Bool)) {
    if (places.numel() == 0) return;
    find_places<<<blocks_for(places.numel()), kThreads, 0, stream>>>(d, writable<int32_t>(places),
                                                                     writable<bool>(is_sum));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

Mix describe(const Tensor& back, const Tensor& rows, const Tensor& pairs, const Tensor& sums,
             const Tensor& table) {
  return {exchange::read_links(table),
          numbers(rows),
          numbers(pairs),
          numbers(sums),
          rows.size(0),
          rows.size(1),
          rows.size(2),
          back.size(0),
          back.size(1)};
}

void check_mix_devices(const Tensor& back, const Tensor& weights, const Tensor& rows,
                       const Tensor& pairs, const Tensor& sums, const Tensor& links) {
  check_device(back, "back_ZO",
               {{"weights_BGK", &weights},
                {"rows_BGK", &rows},
                {"pairs_BGK", &pairs},
                {"sums_BGK", &sums},
                {"links_WL", &links}});
}

Tensor mix_returns(const Tensor& back_ZO, const Tensor& weights_BGK, const Tensor& rows_BGK,
                   const Tensor& pairs_BGK, const Tensor& sums_BGK, const Tensor& links_WL,
                   ScalarType dtype) {
  exchange::check_mix_returns(back_ZO, weights_BGK, rows_BGK, pairs_BGK, sums_BGK, links_WL, dtype);
  check_mix_devices(back_ZO, weights_BGK, rows_BGK, pairs_BGK, sums_BGK, links_WL);
  const Launch launch(back_ZO);
  const Tensor back = dense(back_ZO), weights = dense(weights_BGK), rows = dense(rows_BGK);
  const Tensor pairs = dense(pairs_BGK), sums = dense(sums_BGK), table = dense(links_WL);
  const Mix d = describe(back, rows, pairs, sums, table);
  const Tensor out = empty(back, {d.B, d.G, d.O}, dtype);
  if (out.numel() == 0) return out;
  const Places found(d, rows, launch.stream());
  exchange::for_types(dtype, back.scalar_type(), [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    mix<T, N><<<warps(d.B * d.G), kThreads, 0, launch.stream()>>>(
        d, numbers(found.places), data<bool>(found.is_sum), data<N>(back), data<sum_t<T>>(weights),
        writable<T>(out));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
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
  check_mix_devices(back_ZO, weights_BGK, rows_BGK, pairs_BGK, sums_BGK, links_WL);
  check_device(back_ZO, "back_ZO", {{"grad_BGO", &grad_BGO}});
  const Launch launch(back_ZO);
  const Tensor back = dense(back_ZO), weights = dense(weights_BGK), rows = dense(rows_BGK);
  const Tensor pairs = dense(pairs_BGK), sums = dense(sums_BGK), table = dense(links_WL);
  const Tensor grad = dense(grad_BGO);
  const Mix d = describe(back, rows, pairs, sums, table);
  const Tensor grad_back = empty(back, {d.Z, d.O}, back.scalar_type());
  const Tensor grad_weights = empty(weights, {d.B, d.G, d.K}, weights.scalar_type());
  // A row that no pick names has gradient 0, and nobody writes it.
  fill_bytes(grad_back, 0, launch.stream());
  if (d.B == 0) return {grad_back, grad_weights};
  const Places found(d, rows, launch.stream());
  exchange::for_types(dtype, back.scalar_type(), [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    mix_backward<T, N><<<warps(d.B), kThreads, 0, launch.stream()>>>(
        d, numbers(found.places), data<bool>(found.is_sum), data<T>(grad), data<N>(back),
        data<sum_t<T>>(weights), writable<N>(grad_back), writable<sum_t<T>>(grad_weights));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {grad_back, grad_weights};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("pack_returns", MMOE_BOX(pack_returns));
  m.impl("pack_returns_backward", MMOE_BOX(pack_returns_backward));
  m.impl("mix_returns", MMOE_BOX(mix_returns));
  m.impl("mix_returns_backward", MMOE_BOX(mix_returns_backward));
}

// pack_rows and unpack_rows on the CPU, and their gradients: rows are gathered straight into the
// message, or out of it, and rounded on the way. Gradients are added up sample by sample, in the
// order of the rows, so that the sum is the same whatever the number of threads.

#include "exchange_rows.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../distinct.h"
#include "../indices.h"
#include "../memory.h"

namespace mmoe {
namespace {

using exchange::Layout;
using exchange::Links;
using exchange::numbers;
using torch::stable::parallel_for;

char* bytes(const Tensor& t) { return static_cast<char*>(t.mutable_data_ptr()); }

Tensor packed_rows(const Tensor& rows) {
  const bool packed = rows.stride(1) == 1 || rows.size(1) <= 1;
  return packed ? rows : dense_copy(rows);
}

// Calls visit(first number, byte in the message, count) for the weights of each rank that gets any.
template <typename Visit>
void for_weights(const Layout& layout, const Visit& visit) {
  for (int64_t w = 0; w < layout.links.W; ++w) {
    if (!layout.links.sums(w)) continue;
    visit(layout.links.first(w, exchange::kPicks), layout.weights(w),
          layout.links.count(w, exchange::kWeights));
  }
}

// Copies the weights behind `entries` into the message.
void write_weights(const Layout& layout, const Tensor& weights, const int32_t* entries,
                   char* message) {
  const char* from = bytes(weights);
  const auto size = static_cast<size_t>(layout.weight_bytes);
  for_weights(layout, [&](int64_t first, int64_t byte, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      char* to = message + byte + i * layout.weight_bytes;
      const int32_t entry = entries[first + i];
      if (entry < 0) {
        std::memset(to, 0, size);
      } else {
        std::memcpy(to, from + entry * layout.weight_bytes, size);
      }
    }
  });
}

void write_codes(const Layout& layout, const int32_t* codes, char* message) {
  for (int64_t w = 0; w < layout.links.W; ++w) {
    const int64_t count = layout.links.count(w, exchange::kPicks);
    if (count == 0) continue;
    std::memcpy(message + layout.codes(w), codes + layout.links.first(w, exchange::kPicks),
                static_cast<size_t>(count * exchange::kCodeBytes));
  }
}

// Refuses a row that travels and is none.
void check_named(const Tensor& rows, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    if (numbers(rows)[n] >= 0) continue;
    fail("rows_M: expected a row for each of the ", count, " that travel by links_WL, got -1 for ",
         "number ", n);
  }
}

Tensor pack_rows(const std::vector<Tensor>& sources, const Tensor& weights_BGK,
                 const Tensor& rows_M, const Tensor& entries_Q, const Tensor& codes_Q,
                 const Tensor& links_WL, ScalarType wire, int64_t num_bytes) {
  exchange::check_pack_rows(sources, weights_BGK, rows_M, entries_Q, codes_Q, links_WL, wire);
  const Tensor rows = dense(rows_M), entries = dense(entries_Q), codes = dense(codes_Q);
  const Tensor weights = dense(weights_BGK), table = dense(links_WL);
  const int64_t S = static_cast<int64_t>(sources.size()), B = sources[0].size(0);
  const int64_t D = sources[0].size(1);
  const Layout layout = {exchange::read_links(table), D * exchange::bytes_of(wire),
                         exchange::kCodeBytes, static_cast<int64_t>(weights.element_size())};
  exchange::check_rising(layout.links);
  exchange::check_total(layout.links, exchange::kRows, "rows_M", rows.numel());
  exchange::check_total(layout.links, exchange::kPicks, "entries_Q", entries.numel());
  exchange::check_bytes(layout, num_bytes);
  check_indices("rows_M", "rows", rows, B * S);
  check_indices("entries_Q", "entries", entries, weights.numel());
  check_named(rows, layout.links.first(layout.links.W, exchange::kRows));
  std::vector<Tensor> packed;
  for (const Tensor& source : sources) packed.push_back(packed_rows(source));
  const Tensor message = fresh(weights, {num_bytes}, ScalarType::Byte);
  const auto to = exchange::rows_of(layout, bytes(message));
  exchange::for_types(sources[0].scalar_type(), wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    const auto copy = MMOE_BEST(copy_row<typename Row<T>::sum_t, T, N>);
    parallel_for(0, static_cast<int64_t>(to.size()), grain(D), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t row = numbers(rows)[n];
        const Tensor& x = packed[row % S];
        copy(static_cast<const T*>(x.const_data_ptr()) + row / S * x.stride(0),
             reinterpret_cast<N*>(to[n]), D);
      }
    });
  });
  write_codes(layout, numbers(codes), bytes(message));
  write_weights(layout, weights, numbers(entries), bytes(message));
  return message;
}

std::tuple<Tensor, Tensor> pack_rows_backward(const Tensor& message, const Tensor& rows_M,
                                              const Tensor& rows_BGK, const Tensor& entries_Q,
                                              const Tensor& links_WL, int64_t num_sources,
                                              int64_t width, ScalarType dtype, ScalarType wire) {
  exchange::check_message(message);
  exchange::check_wire(dtype, wire);
  exchange::check_index("rows_M", rows_M);
  exchange::check_picks("rows_BGK", rows_BGK, rows_BGK);
  exchange::check_index("entries_Q", entries_Q);
  exchange::check_links(links_WL);
  exchange::check_sizes(num_sources, width);
  const Tensor from = dense(message), rows = dense(rows_M), slots = dense(rows_BGK);
  const Tensor entries = dense(entries_Q), table = dense(links_WL);
  const int64_t B = slots.size(0), S = num_sources, D = width;
  const int64_t picks = slots.size(1) * slots.size(2);
  const ScalarType sums = accumulate_type(dtype);
  const Layout layout = {exchange::read_links(table), D * exchange::bytes_of(wire), 0,
                         exchange::bytes_of(sums)};
  exchange::check_rising(layout.links);
  exchange::check_total(layout.links, exchange::kRows, "rows_M", rows.numel());
  exchange::check_total(layout.links, exchange::kPicks, "entries_Q", entries.numel());
  exchange::check_bytes(layout, from.numel());
  check_indices("rows_M", "rows", rows, B * S);
  check_indices("entries_Q", "entries", entries, slots.numel());
  check_indices("rows_BGK", "rows", slots, layout.links.first(layout.links.W, exchange::kRows));
  const Tensor grad = fresh(from, {B, S, D}, dtype);
  const Tensor grad_weights = empty(from, {B, slots.size(1), slots.size(2)}, sums);
  const auto grads = exchange::rows_of(layout, static_cast<const char*>(from.const_data_ptr()));
  exchange::for_types(dtype, wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    const auto add = MMOE_BEST(add_rows<typename Row<T>::sum_t, N, T>);
    T* to = static_cast<T*>(grad.mutable_data_ptr());
    parallel_for(0, B, grain((picks + 1) * D), [&](int64_t begin, int64_t end) {
      std::vector<int32_t> own(picks);
      std::vector<const N*> some(picks);
      for (int64_t b = begin; b < end; ++b) {
        const int64_t count = distinct(numbers(slots) + b * picks, picks, own.data());
        for (int64_t s = 0; s < S; ++s) {
          int64_t used = 0;
          for (int64_t i = 0; i < count; ++i) {
            if (numbers(rows)[own[i]] % S != s) continue;
            some[used++] = reinterpret_cast<const N*>(grads[own[i]]);
          }
          add(some.data(), used, to + (b * S + s) * D, D);
        }
      }
    });
  });
  char* to = bytes(grad_weights);
  fill_zero(to, grad_weights.numel() * layout.weight_bytes);
  for_weights(layout, [&](int64_t first, int64_t byte, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t entry = numbers(entries)[first + i];
      if (entry < 0) continue;
      std::memcpy(to + entry * layout.weight_bytes,
                  static_cast<const char*>(from.const_data_ptr()) + byte + i * layout.weight_bytes,
                  static_cast<size_t>(layout.weight_bytes));
    }
  });
  return {grad, grad_weights};
}

Tensor unpack_rows(const Tensor& message, const Tensor& rows_R, const Tensor& links_WL,
                   int64_t width, ScalarType dtype, ScalarType wire) {
  exchange::check_message(message);
  exchange::check_wire(dtype, wire);
  exchange::check_index("rows_R", rows_R);
  exchange::check_links(links_WL);
  exchange::check_sizes(1, width);
  const Tensor from = dense(message), rows = dense(rows_R), table = dense(links_WL);
  const Layout layout = {exchange::read_links(table), width * exchange::bytes_of(wire),
                         exchange::kCodeBytes, exchange::bytes_of(accumulate_type(dtype))};
  exchange::check_rising(layout.links);
  exchange::check_bytes(layout, from.numel());
  check_indices("rows_R", "rows", rows, layout.links.first(layout.links.W, exchange::kRows));
  const Tensor x = fresh(from, {rows.numel(), width}, dtype);
  const auto sent_rows = exchange::rows_of(layout, static_cast<const char*>(from.const_data_ptr()));
  exchange::for_types(dtype, wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    const auto copy = MMOE_BEST(copy_row<typename Row<T>::sum_t, N, T>);
    T* to = static_cast<T*>(x.mutable_data_ptr());
    parallel_for(0, rows.numel(), grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t n = numbers(rows)[i];
        if (n < 0) {
          fill_zero(to + i * width, width);
        } else {
          copy(reinterpret_cast<const N*>(sent_rows[n]), to + i * width, width);
        }
      }
    });
  });
  return x;
}

Tensor unpack_rows_backward(const Tensor& grad_RD, const Tensor& grad_weights_NGK,
                            const Tensor& slots_NGK, const Tensor& places_Q, const Tensor& links_WL,
                            ScalarType wire, int64_t num_bytes) {
  exchange::check_unpack_rows_backward(grad_RD, grad_weights_NGK, slots_NGK, places_Q, links_WL,
                                       wire);
  const Tensor grad = packed_rows(grad_RD), grad_weights = dense(grad_weights_NGK);
  const Tensor slots = dense(slots_NGK), places = dense(places_Q), table = dense(links_WL);
  const int64_t D = grad.size(1), picks = slots.size(1) * slots.size(2);
  const Layout layout = {exchange::read_links(table), D * exchange::bytes_of(wire), 0,
                         static_cast<int64_t>(grad_weights.element_size())};
  exchange::check_rising(layout.links);
  exchange::check_total(layout.links, exchange::kRows, "slots_NGK", slots.size(0));
  exchange::check_total(layout.links, exchange::kPicks, "places_Q", places.numel());
  exchange::check_bytes(layout, num_bytes);
  check_indices("slots_NGK", "slots", slots, grad.size(0));
  check_indices("places_Q", "places", places, slots.numel());
  const Tensor message = fresh(grad, {num_bytes}, ScalarType::Byte);
  const auto to = exchange::rows_of(layout, bytes(message));
  exchange::for_types(grad.scalar_type(), wire, [&](auto type, auto sent) {
    using T = decltype(type);
    using N = decltype(sent);
    const auto add = MMOE_BEST(add_rows<typename Row<T>::sum_t, T, N>);
    const T* from = static_cast<const T*>(grad.const_data_ptr());
    const auto count = static_cast<int64_t>(to.size());
    parallel_for(0, count, grain((picks + 1) * D), [&](int64_t begin, int64_t end) {
      std::vector<int32_t> own(picks);
      std::vector<const T*> some(picks);
      for (int64_t n = begin; n < end; ++n) {
        const int64_t used = distinct(numbers(slots) + n * picks, picks, own.data());
        for (int64_t i = 0; i < used; ++i) some[i] = from + own[i] * grad.stride(0);
        add(some.data(), used, reinterpret_cast<N*>(to[n]), D);
      }
    });
  });
  write_weights(layout, grad_weights, numbers(places), bytes(message));
  return message;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("pack_rows", MMOE_BOX(pack_rows));
  m.impl("pack_rows_backward", MMOE_BOX(pack_rows_backward));
  m.impl("unpack_rows", MMOE_BOX(unpack_rows));
  m.impl("unpack_rows_backward", MMOE_BOX(unpack_rows_backward));
}

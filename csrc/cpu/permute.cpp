// permute and unpermute on the CPU. Both are bound by memory, so rows are copied or added where
// they lie. unpermute asks early for the rows it needs next, goes sample by sample, and adds a
// sample's few pairs up in increasing order: no atomics, and the same sum whatever the number of
// threads.

#include <torch/csrc/stable/library.h>

#include <atomic>

#include "distinct.h"
#include "indices.h"
#include "memory.h"
#include "rows.h"

namespace mmoe::permutation {

template <typename T>
struct Scatter {
  const T* y;
  const int32_t* rows;
  const int32_t* slots;
  T* out;
  int64_t B, N, D, stride;  // N picks of a sample; stride in elements
};

}  // namespace mmoe::permutation

#define MMOE_KERNELS "permute_kernels.h"
#include "each_isa.h"

namespace mmoe {
namespace {

using permutation::Scatter;

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Rows may lie apart (slices of one wide tensor need no copy), but a row's numbers side by side.
Tensor packed_rows(const Tensor& rows) {
  const bool packed = rows.stride(1) == 1 || rows.size(1) <= 1;
  return packed ? rows : dense_copy(rows);
}

struct Gather {
  const char* x;
  const int32_t* rows;
  char* out;
  int64_t P, stride, width;  // stride and width in bytes
};

void gather_rows(const Gather& d, int64_t begin, int64_t end) {
  const auto width = static_cast<size_t>(d.width);
  for (int64_t p = begin; p < end; ++p) {
    char* to = d.out + p * d.width;
    if (d.rows[p] < 0) {
      std::memset(to, 0, width);
    } else {
      std::memcpy(to, d.x + d.rows[p] * d.stride, width);
    }
  }
}

Tensor permute(const Tensor& x_BD, const Tensor& rows_P, const Tensor& slots_BGK) {
  check_permute("x_BD", x_BD, rows_P, slots_BGK);
  check_size("slots_BGK", slots_BGK, 0, x_BD.size(0));
  const Tensor x = packed_rows(x_BD), rows = dense(rows_P);
  check_indices("rows_P", "rows", rows, x.size(0));
  const Tensor out = fresh(x, {rows.size(0), x.size(1)}, x.scalar_type());
  const auto bytes = static_cast<int64_t>(x.element_size());
  const Gather d = {static_cast<const char*>(x.const_data_ptr()),
                    static_cast<const int32_t*>(rows.const_data_ptr()),
                    static_cast<char*>(out.mutable_data_ptr()),
                    rows.size(0),
                    x.stride(0) * bytes,
                    x.size(1) * bytes};
  if (d.width == 0) return out;  // without memory, and memcpy takes no null pointer
  torch::stable::parallel_for(0, d.P, grain(x.size(1)),
                              [&](int64_t begin, int64_t end) { gather_rows(d, begin, end); });
  return out;
}

// The first pick whose pair belongs to another sample, or kNone.
template <typename T>
int64_t first_stranger(const Scatter<T>& d, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t i = b * d.N; i < (b + 1) * d.N; ++i) {
      if (d.slots[i] >= 0 && d.rows[d.slots[i]] != b) return i;
    }
  }
  return kNone;
}

template <typename T>
void unpermute_as(const Tensor& y, const Tensor& rows, const Tensor& slots, const Tensor& out) {
  const Scatter<T> d = {static_cast<const T*>(y.const_data_ptr()),
                        static_cast<const int32_t*>(rows.const_data_ptr()),
                        static_cast<const int32_t*>(slots.const_data_ptr()),
                        static_cast<T*>(out.mutable_data_ptr()),
                        slots.size(0),
                        slots.size(1) * slots.size(2),
                        y.size(1),
                        y.stride(0)};
  const auto run = MMOE_BEST(scatter_rows<T>);
  std::atomic<int64_t> stranger{kNone};
  torch::stable::parallel_for(0, d.B, grain((d.N + 1) * d.D), [&](int64_t begin, int64_t end) {
    const int64_t found = first_stranger(d, begin, end);
    if (found != kNone) {
      int64_t least = stranger.load();
      while (found < least && !stranger.compare_exchange_weak(least, found)) {
      }
      return;
    }
    std::vector<int32_t> pairs(d.N);
    std::vector<const T*> from(d.N);
    run(d, begin, end, pairs.data(), from.data());
  });
  if (stranger.load() == kNone) return;
  const int32_t slot = d.slots[stranger.load()];
  fail("slots_BGK: expected pairs of sample ", stranger.load() / d.N, ", got pair ", slot,
       " of sample ", d.rows[slot], " in rows_P");
}

Tensor unpermute(const Tensor& y_PD, const Tensor& rows_P, const Tensor& slots_BGK) {
  check_permute("y_PD", y_PD, rows_P, slots_BGK);
  check_size("rows_P", rows_P, 0, y_PD.size(0));
  const Tensor y = packed_rows(y_PD), rows = dense(rows_P), slots = dense(slots_BGK);
  check_indices("slots_BGK", "slots", slots, y.size(0));
  const Tensor out = fresh(y, {slots.size(0), y.size(1)}, y.scalar_type());
  switch (y.scalar_type()) {
    case ScalarType::Double:
      unpermute_as<double>(y, rows, slots, out);
      break;
    case ScalarType::BFloat16:
      unpermute_as<bf16>(y, rows, slots, out);
      break;
    default:
      unpermute_as<float>(y, rows, slots, out);
  }
  return out;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("permute", MMOE_BOX(permute));
  m.impl("unpermute", MMOE_BOX(unpermute));
}

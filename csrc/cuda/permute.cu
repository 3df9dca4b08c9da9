// permute and unpermute on CUDA. permute copies rows and does not look at the numbers in them.
// unpermute goes sample by sample, a warp finding the sample's pairs in increasing order, so that
// nothing is added atomically and the sum is the same in every run.

#include <torch/csrc/stable/library.h>

#include "common.cuh"

namespace mmoe {
namespace {

struct Gather {
  const int32_t* rows;
  int64_t P, B;
};

template <typename Unit>
__global__ void gather_rows(Gather d, const Unit* x, Unit* out, int64_t units) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= d.P * units) return;
  const int32_t row = d.rows[i / units];
  MMOE_DEVICE_CHECK(row >= -1 && row < d.B, "rows_P: expected a row in [0, B) or -1", row);
  out[i] = row < 0 ? Unit{} : x[row * units + i % units];
}

template <typename T>
struct Scatter {
  const T* y;
  const int32_t* rows;
  const int32_t* slots;
  int64_t P, B, N, D;  // N picks of a sample
};

constexpr uint32_t kNoPair = ~0u;

// The smallest pair above `last`, the same in all lanes.
__device__ uint32_t next_pair(const int32_t* slots, int64_t N, int64_t P, int32_t last) {
  uint32_t next = kNoPair;
  for (int64_t n = threadIdx.x % kWarp; n < N; n += kWarp) {
    const int32_t slot = slots[n];
    MMOE_DEVICE_CHECK(slot >= -1 && slot < P, "slots_BGK: expected a slot in [0, P) or -1", slot);
    if (slot > last) next = min(next, static_cast<uint32_t>(slot));
  }
  return __reduce_min_sync(~0u, next);
}

template <typename T, int V>
__global__ void scatter_rows(Scatter<T> d, T* out) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int64_t parts = (d.D + kWarp * V - 1) / (kWarp * V);
  if (i >= d.B * parts) return;  // the whole warp at once
  const int64_t b = i / parts, o = (i % parts * kWarp + threadIdx.x % kWarp) * V;
  const int32_t* slots = d.slots + b * d.N;
  sum_t<T> sums[V] = {};
  int32_t last = -1;
  for (;;) {
    const uint32_t pair = next_pair(slots, d.N, d.P, last);
    if (pair == kNoPair) break;
    last = static_cast<int32_t>(pair);
    MMOE_DEVICE_CHECK(d.rows[last] == b, "slots_BGK: expected a pair of the same sample", last);
    if (o >= d.D) continue;
    const Pack<T, V> y = load_pack<T, V>(d.y + last * d.D + o);
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] += to_sum(y.at[v]);
  }
  if (o < d.D) store_pack<T, V>(out + b * d.D + o, sums);
}

void check_plan(const char* name, const Tensor& rows, const Tensor& rows_P,
                const Tensor& slots_BGK) {
  check_permute(name, rows, rows_P, slots_BGK);
  check_device(rows, name, {{"rows_P", &rows_P}, {"slots_BGK", &slots_BGK}});
}

// Calls run with a value of the widest type in which all the rows can be copied.
template <typename Run>
void for_unit(int64_t row_bytes, std::initializer_list<const void*> pointers, const Run& run) {
  const auto fits = [&](uintptr_t bytes) {
    return row_bytes % static_cast<int64_t>(bytes) == 0 &&
           std::all_of(pointers.begin(), pointers.end(),
                       [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; });
  };
  if (fits(16)) return run(uint4{});
  if (fits(8)) return run(uint64_t{});
  if (fits(4)) return run(uint32_t{});
  run(uint16_t{});
}

Tensor permute(const Tensor& x_BD, const Tensor& rows_P, const Tensor& slots_BGK) {
  check_plan("x_BD", x_BD, rows_P, slots_BGK);
  check_size("slots_BGK", slots_BGK, 0, x_BD.size(0));
  const Launch launch(x_BD);
  const Tensor x = dense(x_BD), rows = dense(rows_P);
  const Tensor out = empty(x, {rows.size(0), x.size(1)}, x.scalar_type());
  if (out.numel() == 0) return out;
  const Gather d = {static_cast<const int32_t*>(rows.const_data_ptr()), rows.size(0), x.size(0)};
  const int64_t bytes = x.size(1) * static_cast<int64_t>(x.element_size());
  for_unit(bytes, {x.const_data_ptr(), out.const_data_ptr()}, [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
    gather_rows<Unit><<<blocks_for(d.P * units), kThreads, 0, launch.stream()>>>(
        d, static_cast<const Unit*>(x.const_data_ptr()), static_cast<Unit*>(out.mutable_data_ptr()),
        units);
  });
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

template <typename T>
void run_scatter(const Scatter<T>& d, T* out, cudaStream_t stream) {
  if (d.D % kPack<T> == 0 && aligned(d.y) && aligned(out)) {
    constexpr int V = kPack<T>;
    const int64_t parts = (d.D + kWarp * V - 1) / (kWarp * V);
    scatter_rows<T, V><<<blocks_for(d.B * parts * kWarp), kThreads, 0, stream>>>(d, out);
  } else {
    const int64_t parts = (d.D + kWarp - 1) / kWarp;
    scatter_rows<T, 1><<<blocks_for(d.B * parts * kWarp), kThreads, 0, stream>>>(d, out);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor unpermute(const Tensor& y_PD, const Tensor& rows_P, const Tensor& slots_BGK) {
  check_plan("y_PD", y_PD, rows_P, slots_BGK);
  check_size("rows_P", rows_P, 0, y_PD.size(0));
  const Launch launch(y_PD);
  const Tensor y = dense(y_PD), rows = dense(rows_P), slots = dense(slots_BGK);
  const int64_t B = slots.size(0), N = slots.size(1) * slots.size(2), D = y.size(1);
  const Tensor out = empty(y, {B, D}, y.scalar_type());
  if (out.numel() == 0) return out;
  for_type(y.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const Scatter<T> d = {static_cast<const T*>(y.const_data_ptr()),
                          static_cast<const int32_t*>(rows.const_data_ptr()),
                          static_cast<const int32_t*>(slots.const_data_ptr()),
                          y.size(0),
                          B,
                          N,
                          D};
    run_scatter(d, static_cast<T*>(out.mutable_data_ptr()), launch.stream());
  });
  return out;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("permute", MMOE_BOX(permute));
  m.impl("unpermute", MMOE_BOX(unpermute));
}

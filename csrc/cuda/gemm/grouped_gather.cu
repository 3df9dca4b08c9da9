// The rows that pairs read as a copy, for PyTorch's product: gathered and padded in one pass.

#include "grouped_mm.h"

namespace mmoe {
namespace {

// A thread per pack of the copy. kPacks: the rows of x are whole packs, too.
template <bool kPacks>
__global__ void gather(const __nv_bfloat16* x, const int32_t* numbers, __nv_bfloat16* to, int32_t B,
                       int64_t D, int64_t row_packs, int64_t packs) {
  constexpr int V = kPack<__nv_bfloat16>;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const int64_t c = i % row_packs * V;
  const int32_t number = numbers[i / row_packs];
  MMOE_DEVICE_CHECK(number >= -1 && number < B, "rows_P: expected a row in [0, B) or -1", number);
  Pack<__nv_bfloat16, V> pack;
#pragma unroll
  for (int v = 0; v < V; ++v) pack.at[v] = from_sum<__nv_bfloat16>(0);
  const int64_t from = number * D + c;
  if (kPacks && number >= 0) {
    pack = load_pack<__nv_bfloat16, V>(x + from);
  } else if (number >= 0) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (c + v < D) pack.at[v] = x[from + v];
    }
  }
  *reinterpret_cast<Pack<__nv_bfloat16, V>*>(to + i * V) = pack;
}

}  // namespace

Tensor gather_bf16(const Tensor& x_BD, const Tensor& rows_P, int64_t columns, cudaStream_t stream) {
  const int64_t D = x_BD.size(1), row_packs = columns / kPack<__nv_bfloat16>;
  const Tensor copy = empty(x_BD, {rows_P.size(0), columns}, ScalarType::BFloat16);
  const int64_t packs = rows_P.size(0) * row_packs;
  if (packs == 0) return copy;
  const auto* x = static_cast<const __nv_bfloat16*>(x_BD.const_data_ptr());
  const auto* numbers = static_cast<const int32_t*>(rows_P.const_data_ptr());
  auto* to = static_cast<__nv_bfloat16*>(copy.mutable_data_ptr());
  const auto B = static_cast<int32_t>(x_BD.size(0));
  if (D == columns && aligned(x)) {
    gather<true>
        <<<blocks_for(packs), kThreads, 0, stream>>>(x, numbers, to, B, D, row_packs, packs);
  } else {
    gather<false>
        <<<blocks_for(packs), kThreads, 0, stream>>>(x, numbers, to, B, D, row_packs, packs);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return copy;
}

}  // namespace mmoe

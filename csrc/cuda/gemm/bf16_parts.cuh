// A float as three bfloat16s, so that tensor cores multiply it without rounding it:
//
//   a = p0 + p1 / 2^8 + p2 / 2^16, exactly, for every finite float.
//
// Each part holds 8 of the 24 bits. The lower ones are kept 2^8 and 2^16 times as large: so they
// lie in bfloat16's range for the smallest denormals too, and are no larger than p0, so that their
// sums overflow no earlier than the first. Each part's products are summed apart, which costs
// nothing: they are columns of one product.
//
// bfloat16 times bfloat16 is exact in float, so what is left is the rounding of the sums. Tensor
// cores cut a sum off after each 16 steps of the depth; fused multiply-adds round it after each
// step. Both computed so on a CPU, step by step, and seen from the sum of |x * w|, the largest
// error at depth 1,024 is 3e-7 against 2e-7 for normal numbers, and 2e-6 against 2e-6 where all of
// them are positive; with the weights in bfloat16 it is 6e-4 and 3e-3.

#pragma once

#include "../common.cuh"

namespace mmoe {

constexpr int kParts = 3;
constexpr float kPartScale = 256;

// Of a finite number: bfloat16's nearest may be infinite, and then it is the largest instead.
__device__ inline __nv_bfloat16 nearest_finite(float x) {
  const __nv_bfloat16 nearest = __float2bfloat16_rn(x);
  const float cut = __uint_as_float(__float_as_uint(x) & 0xffff0000u);
  return isfinite(to_sum(nearest)) ? nearest : __float2bfloat16_rn(cut);
}

// An infinity or NaN is the first part; taken from itself it would make the others NaN.
__device__ inline __nv_bfloat16 part_of(float x, int number) {
  if (!isfinite(x)) return __float2bfloat16_rn(number == 0 ? x : 0.0f);
  __nv_bfloat16 part = nearest_finite(x);
  for (int i = 0; i < number; ++i) {
    x = (x - to_sum(part)) * kPartScale;  // exact
    part = nearest_finite(x);
  }
  return part;
}

// The sum of the products, from those of each part. Where the first is infinite or NaN it stands
// alone, as in a product of floats: an infinity times a lower part may be NaN, which is 0 or has
// the other sign.
__device__ inline float join_parts(float first, float second, float third) {
  constexpr float kShare = 1 / kPartScale;
  return isfinite(first) ? first + (second + third * kShare) * kShare : first;
}

}  // namespace mmoe

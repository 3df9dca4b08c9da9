#include <torch/csrc/stable/library.h>

#include <atomic>

#include "product_choice.h"

namespace mmoe {
namespace {

constexpr int64_t kMostExperts = 1023;  // that PyTorch's kernel takes
// Of depth and width: both products compute tiles of 128 columns, so that narrower layers waste as
// much in either, and the library's launches are not worth it.
constexpr int64_t kLeast = 128;

// Reasoned from data sheets, not measured; `gpu-check --stage kernels` times both products over
// depths and widths of 128 to 1,024, and these numbers are to follow what it finds.
//
// A row costs 2 * depth * width operations. PyTorch's kernel has the tensor cores' newest
// instructions, ours those of sm_80, which are slower on later GPUs; but ours gathers, pads, adds
// the bias and activates on the way, where PyTorch's needs passes over memory before and after.
// With r the library's operations per second (0.7 of the data sheet's, dense bfloat16: 0.989e15,
// 2.25e15), w the bytes per second (3.35e12, 8e12) and ours s times as fast (one half, one
// quarter), the library wins where
//   operations * (1 / s - 1) / r > bytes / w, or operations > bytes * (r / w) / (1 / s - 1).
struct Limit {
  int major;                  // of the compute capability; others have no kernel of PyTorch's
  int64_t operations_a_byte;  // that the library must save for each byte that it moves more
};
constexpr Limit kLimits[] = {{9, 200}, {10, 70}};

std::atomic<Choice> choice{Choice::automatic};

const Limit* limit_here() {
  int device = 0, major = 0;
  STD_CUDA_CHECK(cudaGetDevice(&device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  for (const Limit& limit : kLimits) {
    if (limit.major == major) return &limit;
  }
  return nullptr;
}

int64_t grouped_product(const Tensor& like, int64_t wanted) {
  if (wanted < 0 || wanted > 2) fail("choice: expected 0, 1 or 2, got ", wanted);
  return static_cast<int64_t>(choice.exchange(static_cast<Choice>(wanted)));
}

}  // namespace

bool takes_library(const ProductKind& kind) {
  const Choice now = choice.load();
  if (now == Choice::own || kind.type != ScalarType::BFloat16 || kind.experts > kMostExperts ||
      kind.depth == 0 || kind.width == 0) {
    return false;
  }
  const Limit* limit = limit_here();
  if (limit == nullptr || now == Choice::library) return limit != nullptr;
  if (kind.depth < kLeast || kind.width < kLeast) return false;
  // Each pass reads and writes two bytes a number.
  const int64_t bytes = 4 * ((kind.finished ? kind.width : 0) + (kind.copied ? kind.depth : 0));
  return 2 * kind.depth * kind.width >= bytes * limit->operations_a_byte;
}

}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) { m.impl("grouped_product", MMOE_BOX(grouped_product)); }

#include <torch/csrc/stable/library.h>

#include <atomic>

#include "dense_choice.h"

namespace mmoe {
namespace {

// Reasoned from data sheets, not measured; `gpu-check --stage kernels` times both ways, and these
// numbers are to follow what it finds.
//
// Straight, E products are launched one by one, some 5 microseconds of the host each, and a product
// must fill the GPU by itself. Batched, one launch serves all, but the result is written once more:
// each number's bytes are written, read and written again, and rows of the experts' own are copied
// together first. So a product is worth its launch where it takes as long itself: by the H100's
// data sheet at six tenths of its rate (bfloat16 0.989e15 operations a second, float without TF32
// and double 67e12).
struct Least {
  ScalarType type;
  int64_t operations;
};
constexpr Least kLeast[] = {
    {ScalarType::BFloat16, 3'000'000'000},
    {ScalarType::Float, 200'000'000},
    {ScalarType::Double, 200'000'000},
};
// A tile of 128 by 128 for nearly each of 132 multiprocessors.
constexpr int64_t kFills = 128 * 128 * 128;

std::atomic<DenseChoice> choice{DenseChoice::automatic};

int64_t dense_product(const Tensor& like, int64_t wanted) {
  if (wanted < 0 || wanted > 2) fail("choice: expected 0, 1 or 2, got ", wanted);
  return static_cast<int64_t>(choice.exchange(static_cast<DenseChoice>(wanted)));
}

}  // namespace

bool writes_straight(const DenseProducts& products) {
  const DenseChoice now = choice.load();
  // A product without depth, rows or outputs is left to the batch, which knows what it is.
  if (now == DenseChoice::batched || products.operations == 0) return false;
  if (now == DenseChoice::straight || products.experts == 1) return true;
  for (const Least& least : kLeast) {
    if (least.type != products.type) continue;
    return products.operations >= least.operations && products.numbers >= kFills;
  }
  return false;
}

}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) { m.impl("dense_product", MMOE_BOX(dense_product)); }

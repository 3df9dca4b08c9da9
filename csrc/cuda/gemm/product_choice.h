// Whether grouped_mm's products in bfloat16 are this library's own or PyTorch's.

#pragma once

#include "grouped_mm.h"

namespace mmoe {

// Of torch.ops.mmoe.grouped_product, which mmoe/ops/product_choice.py explains.
enum class Choice : int64_t { automatic, own, library };

// What decides about one of a layer's products, and nothing of the batch does: a row would else
// have other bits in a batch of another height.
struct ProductKind {
  ScalarType type;
  int64_t experts, depth, width;
  bool finished;  // a bias, an activation or a cut follow it: the library needs one more pass
  bool copied;    // the library needs its rows padded or gathered first
};

// The result is PyTorch's to compute: it can, and the setting of the process says so or, in
// `automatic`, it is expected to be faster.
bool takes_library(const ProductKind& kind);

}  // namespace mmoe

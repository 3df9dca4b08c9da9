// Whether dense_mm's products go straight into their results.

#pragma once

#include "../../checks.h"

namespace mmoe {

// Of torch.ops.mmoe.dense_product, which mmoe/ops/product_choice.py explains.
enum class DenseChoice : int64_t { automatic, batched, straight };

// The products of one layer, each of them an expert's.
struct DenseProducts {
  ScalarType type;
  int64_t experts;
  int64_t operations;  // of one product: 2 * rows * depth * width
  int64_t numbers;     // of one result
};

bool writes_straight(const DenseProducts& products);

}  // namespace mmoe

// What the owners of rows have of a layer's product already: checked, and as a product reads it.

#pragma once

#include "../indices.h"
#include "dense_layer.h"

namespace mmoe {

inline std::vector<Tensor> owned_rows(const Dense& d, const std::vector<Tensor>& shared) {
  if (static_cast<int64_t>(shared.size()) != d.layer.experts) {
    fail("shared: expected ", d.layer.experts, " tensors, one per expert, got ", shared.size());
  }
  std::vector<Tensor> packed;
  for (size_t e = 0; e < shared.size(); ++e) {
    const Name part("shared", e);
    check_dim(part, shared[e], 2);
    check_type(part, shared[e], d.x[0].scalar_type());
    check_size(part, shared[e], 0, shared[0].size(0));
    check_size(part, shared[e], 1, d.layer.outputs);
    packed.push_back(dense(shared[e]));
  }
  return packed;
}

// Refuses an index outside [0, limit), of which there is no such row.
inline Tensor checked_numbers(const char* name, const Tensor& numbers, int64_t limit) {
  check_dim(name, numbers, 1);
  check_type(name, numbers, ScalarType::Int);
  const Tensor packed = dense(numbers);
  check_indices(name, "numbers", packed, limit);
  const auto* number = static_cast<const int32_t*>(packed.const_data_ptr());
  for (int64_t i = 0; i < packed.numel(); ++i) {
    if (number[i] < 0) fail(name, ": expected numbers in [0, ", limit, "), got ", number[i]);
  }
  return packed;
}

struct SharedRows {
  std::vector<Tensor> shared;  // [Q, H] of each expert
  Tensor owners;               // of each row
  ExpertRows added;

  SharedRows(const Dense& d, const std::vector<Tensor>& from, const Tensor& owners_B)
      : shared(owned_rows(d, from)), owners(owners_B) {
    check_size("owners_B", owners_B, 0, d.x[0].size(0));
    owners = checked_numbers("owners_B", owners_B, shared[0].size(0));
    added = d.rows_of(shared, d.layer.outputs);
    added.numbers.assign(d.layer.experts, static_cast<const int32_t*>(owners.const_data_ptr()));
  }
};

}  // namespace mmoe

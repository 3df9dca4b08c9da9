// What gates that decide together are asked for, checked: the same on every device.

#pragma once

#include "checks.h"

namespace mmoe {

// How gates pick together; the tensors without gaps.
struct JointSelect {
  Tensor votes;
  std::optional<Tensor> asked;
  int64_t shared_k, private_k, budget;
  bool floor, largest;

  JointSelect(const Tensor& scores, const Tensor& visibility, const Tensor& votes_G,
              const std::optional<Tensor>& asked_BG, int64_t shared_k, int64_t private_k,
              int64_t budget, int64_t floor, bool largest)
      : votes(votes_G),
        shared_k(shared_k),
        private_k(private_k),
        budget(budget),
        floor(floor != 0),
        largest(largest) {
    check_dim("scores_BGE", scores, 3);
    const ScalarType type = scores.scalar_type();
    if (type != ScalarType::Float && type != ScalarType::Double) {
      fail("scores_BGE: expected one of torch.float32, torch.float64, got ", type_name(type));
    }
    const int64_t B = scores.size(0), G = scores.size(1), E = scores.size(2);
    if (E == 0) fail("scores_BGE: expected at least one expert, got none");
    check_mask("visibility_GE", visibility, {G, E});
    check_mask("votes_G", votes_G, {G});
    if (asked_BG) check_mask("asked_BG", *asked_BG, {B, G});
    if (shared_k < 0) fail("shared_k: expected 0 or more, got ", shared_k);
    if (private_k < 0) fail("private_k: expected 0 or more, got ", private_k);
    if (shared_k > E || private_k > E - shared_k || shared_k + private_k == 0) {
      fail("shared_k: expected shared_k + private_k from 1 to ", E,
           " (the number of experts), got ", shared_k, " + ", private_k);
    }
    if (budget < 0 || (budget > 0 && budget < shared_k)) {
      fail("budget: expected ", std::max<int64_t>(shared_k, 1), " or more (shared_k is ", shared_k,
           "), got ", budget);
    }
    if (floor != 0 && floor != 1) fail("floor: expected 0 or 1, got ", floor);
    votes = dense(votes_G);
    if (asked_BG) asked = dense(*asked_BG);
  }

 private:
  static void check_mask(const char* name, const Tensor& mask,
                         std::initializer_list<int64_t> sizes) {
    check_dim(name, mask, static_cast<int64_t>(sizes.size()));
    check_type(name, mask, ScalarType::Bool);
    int64_t dim = 0;
    for (const int64_t size : sizes) check_size(name, mask, dim++, size);
  }
};

}  // namespace mmoe

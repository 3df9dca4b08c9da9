// shared_mm: every expert on all rows, whose owners have a part of the product already; and what
// the rows of each owner want of that part, added up.

#include <torch/csrc/stable/library.h>

#include <cstring>

#include "../jobs.h"
#include "shared_rows.h"

namespace mmoe {
namespace {

using gemm::Kernels;

// One expert's rows of one owner.
struct Owned {
  int64_t expert, owner, begin, end;

  double cost() const { return static_cast<double>(end - begin) + 1; }
};

std::tuple<std::vector<Tensor>, std::vector<Tensor>> shared_mm(
    const Tensor& x_BD, const Tensor& weight_EDH, std::optional<Tensor> bias_EH,
    std::vector<Tensor> shared, const Tensor& owners_B, std::optional<Tensor> order_B,
    std::optional<Tensor> bounds, std::string activation) {
  const Dense d({x_BD}, weight_EDH, bias_EH, activation);
  const SharedRows parts(d, shared, owners_B);
  const std::vector<Tensor> y = d.outputs();
  const std::vector<Tensor> z = d.keeps_z() ? d.outputs() : std::vector<Tensor>{};
  layer_forward(d.layer, d.rows_of(d.x, d.layer.inputs), d.rows_of(y, d.layer.outputs),
                z.empty() ? ExpertRows{} : d.rows_of(z, d.layer.outputs), parts.added);
  return {y, z};
}

// The sum of dz over the rows of one owner, in their order.
void add_up(const Kernels& k, gemm::Activation activation, const Owned& job, const int32_t* order,
            const std::vector<const char*>& grad, const std::vector<const char*>& y,
            const std::vector<const char*>& z, int64_t H, char* out) {
  const int64_t c_step = k.padded(H);
  char* sums = scratch().c.get(c_step * k.sum_size);
  char* dz = scratch().dz.get(H * k.size + 64);
  std::memset(sums, 0, static_cast<size_t>(c_step * k.sum_size));
  for (int64_t i = job.begin; i < job.end; ++i) {
    const int64_t at = order[i] * H * k.size;
    const char* row = grad[job.expert] + at;
    if (activation != gemm::Activation::none) {
      const char* kept = z.empty() ? nullptr : z[job.expert] + at;
      k.derive(row, y[job.expert] + at, kept, activation, H, dz);
      row = dz;
    }
    k.add_rows(row, H, 1, H, sums);
  }
  k.finish({sums, c_step, 1, H, nullptr, gemm::Activation::none, out, H, nullptr, false});
}

std::vector<const char*> tables(const std::vector<Tensor>& tensors) {
  std::vector<const char*> found;
  for (const Tensor& tensor : tensors) {
    found.push_back(static_cast<const char*>(tensor.const_data_ptr()));
  }
  return found;
}

std::vector<Tensor> alike(const char* name, const std::vector<Tensor>& tensors,
                          const Tensor& like) {
  std::vector<Tensor> packed;
  for (size_t e = 0; e < tensors.size(); ++e) {
    const Name part(name, e);
    check_dim(part, tensors[e], 2);
    check_type(part, tensors[e], like.scalar_type());
    check_size(part, tensors[e], 0, like.size(0));
    check_size(part, tensors[e], 1, like.size(1));
    packed.push_back(dense(tensors[e]));
  }
  return packed;
}

std::vector<Tensor> shared_sums(std::vector<Tensor> grad, std::vector<Tensor> y,
                                std::vector<Tensor> z, const Tensor& order_B, const Tensor& bounds,
                                std::string activation) {
  if (grad.empty()) fail("grad: expected one tensor per expert, got none");
  const Tensor like = grad[0];
  check_dim("grad", like, 2);
  check_float("grad", like);
  const gemm::Activation act = activation_from(activation);
  if (y.size() != grad.size() || z.size() != (keeps_z(act) ? grad.size() : 0)) {
    fail("y: expected as many tensors as grad, and z where the activation needs it");
  }
  grad = alike("grad", grad, like);
  y = alike("y", y, like);
  z = alike("z", z, like);
  const int64_t B = like.size(0), H = like.size(1), E = static_cast<int64_t>(grad.size());
  check_size("order_B", order_B, 0, B);
  const Tensor order = checked_numbers("order_B", order_B, B);
  const Tensor ends = checked_numbers("bounds", bounds, B + 1);
  const int64_t Q = ends.size(0) - 1;
  const auto* bound = static_cast<const int32_t*>(ends.const_data_ptr());
  const auto* numbers = static_cast<const int32_t*>(order.const_data_ptr());
  std::vector<Tensor> out;
  std::vector<Owned> jobs;
  for (int64_t e = 0; e < E; ++e) {
    out.push_back(fresh(like, {Q, H}, like.scalar_type()));
    for (int64_t q = 0; q < Q; ++q) {
      if (bound[q + 1] < bound[q]) fail("bounds: expected numbers that rise");
      jobs.push_back({e, q, bound[q], bound[q + 1]});
    }
  }
  const Kernels& k = *kernels_for(like.scalar_type());
  const auto grads = tables(grad), ys = tables(y), zs = tables(z);
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* to = static_cast<char*>(out[jobs[i].expert].mutable_data_ptr());
      add_up(k, act, jobs[i], numbers, grads, ys, zs, H, to + jobs[i].owner * H * k.size);
    }
  });
  return out;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("shared_mm", MMOE_BOX(shared_mm));
  m.impl("shared_sums", MMOE_BOX(shared_sums));
}

#include "expert_layer.h"

#include "../processor.h"
#include "rows_product.h"
#include "weight_gradient.h"

namespace mmoe {
namespace {

using gemm::Activation;
using gemm::Kernels;

// Either kind of job of a backward pass.
struct BackwardJob : Job {
  bool weight;
};

// Both kinds for one expert follow each other, so that the second finds the rows in the cache.
std::vector<BackwardJob> by_expert(const std::vector<Job>& rows, const std::vector<Job>& weights) {
  std::vector<BackwardJob> jobs;
  size_t r = 0, w = 0;
  while (r < rows.size() || w < weights.size()) {
    if (w == weights.size() || (r < rows.size() && rows[r].expert <= weights[w].expert)) {
      jobs.push_back({rows[r++], false});
    } else {
      jobs.push_back({weights[w++], true});
    }
  }
  return jobs;
}

}  // namespace

void layer_forward(const ExpertLayer& layer, const ExpertRows& x, const ExpertRows& y,
                   const ExpertRows& z, const ExpertRows& added) {
  const Source rows = {&layer, Activation::none, x, {}, {}};
  run({&layer, rows, layer.inputs, layer.outputs, false, layer.bias != nullptr, layer.activation, y,
       z, layer.exact, added});
}

void layer_backward(const ExpertLayer& layer, const ExpertRows& grad, const ExpertRows& x,
                    const ExpertRows& y, const ExpertRows& z, const LayerGradients& gradients) {
  const Source dz = {&layer, layer.activation, grad, y, z, layer.exact};
  const RowsProduct product = {
      &layer, dz, layer.outputs, layer.inputs, true, false, Activation::none, gradients.x, {}};
  const bool wanted = !gradients.x.empty();
  if (wanted && gradients.shared) run_shared(product);
  const std::vector<BackwardJob> jobs =
      by_expert(wanted && !gradients.shared ? jobs_of(product) : std::vector<Job>{},
                weight_jobs(layer, gradients));
  Columns columns(layer, x);
  if (gradients.shared && gradients.weight != nullptr && layer.experts > 1) columns.pack_shared();
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    RowsRunner runner(product);
    for (int64_t i = begin; i < end; ++i) {
      const BackwardJob& job = jobs[i];
      Reads next;
      if (i + 1 < end && jobs[i + 1].weight) {
        next = weight_reads(layer, columns, dz, jobs[i + 1], 0);
      } else if (i + 1 < end) {
        next = runner.reads(jobs[i + 1], job.weight ? nullptr : &job);
      }
      if (job.weight) {
        weight_piece(layer, columns, dz, job, gradients, next);
      } else {
        runner.run(job, next);
      }
    }
  });
}

const Kernels* kernels_for(ScalarType type, bool exact) {
#ifdef MMOE_X86_KERNELS
  if (has_avx512()) {
    if (type == ScalarType::Float) return &gemm::avx512_f32;
    if (type == ScalarType::Double) return &gemm::avx512_f64;
    return !exact && has_avx512bf16() ? &gemm::avx512bf16_bf16 : &gemm::avx512_bf16;
  }
  if (has_avx2()) {
    if (type == ScalarType::Float) return &gemm::avx2_f32;
    return type == ScalarType::Double ? &gemm::avx2_f64 : &gemm::avx2_bf16;
  }
#endif
  if (type == ScalarType::Float) return &gemm::generic_f32;
  return type == ScalarType::Double ? &gemm::generic_f64 : &gemm::generic_bf16;
}

}  // namespace mmoe

// mixed_towers: a tile of rows is mixed for a few gates and goes through their towers while it is
// in the cache. The mixes of many gates are the largest thing of a network with many tasks; here no
// one writes them, nor their gradients, to memory. Backward (mixed_towers_backward.cpp) they are
// mixed again.

#include "mixed_towers.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#define MMOE_KERNELS "gemm/mixed_towers_kernels.h"
#include "../each_isa.h"

namespace mmoe::towers {

using combination::kBlockGates;
using gemm::Activation;
using gemm::Kernels;
using gemm::Parts;

MixedTowers::MixedTowers(const std::vector<Tensor>& outputs, const Tensor& weights_BGE,
                         const Tensor& weight_GOH, const Tensor& bias_GH, const Tensor& head_GH,
                         const Tensor& head_bias_G, const std::string& activation)
    : y(outputs) {
  check_dense_combine(y, weights_BGE);
  const int64_t G = weights_BGE.size(1);
  if (G < 1) fail("weights_BGE: expected at least one gate, got none");
  check_dim("weight_GOH", weight_GOH, 3);
  check_size("weight_GOH", weight_GOH, 0, G);
  check_size("weight_GOH", weight_GOH, 1, y.width);
  const int64_t H = weight_GOH.size(2);
  const ScalarType sum_type = accumulate_type(y.type);
  if (weight_GOH.scalar_type() != y.type) check_type("weight_GOH", weight_GOH, sum_type);
  check_dim("bias_GH", bias_GH, 2);
  check_type("bias_GH", bias_GH, weight_GOH.scalar_type());
  check_size("bias_GH", bias_GH, 0, G);
  check_size("bias_GH", bias_GH, 1, H);
  check_dim("head_GH", head_GH, 2);
  check_type("head_GH", head_GH, sum_type);
  check_size("head_GH", head_GH, 0, G);
  check_size("head_GH", head_GH, 1, H);
  check_dim("head_bias_G", head_bias_G, 1);
  check_type("head_bias_G", head_bias_G, sum_type);
  check_size("head_bias_G", head_bias_G, 0, G);
  weights = dense(weights_BGE);
  weight = dense(weight_GOH);
  bias = dense(bias_GH);
  head = dense(head_GH);
  head_bias = dense(head_bias_G);
  const auto data = [](const Tensor& tensor) {
    return static_cast<const char*>(tensor.const_data_ptr());
  };
  const std::vector<int64_t> rows(G, y.rows);
  hidden = {kernels_for(y.type), activation_from(activation),    G,   y.width, H, data(weight),
            data(bias),          weight.scalar_type() != y.type, rows};
  logit = {
      kernels_for(sum_type), Activation::none, G, H, 1, data(head), data(head_bias), false, rows};
}

Packed::Packed(RowsProduct of, Buffer& buffer) : product(std::move(of)) {
  const RowsProduct& p = product;
  const Kernels& k = *p.layer->kernels;
  const int64_t G = p.layer->experts;
  // Panels begin where a line of the cache does
  weight_bytes = (k.words(p.K) * k.padded(p.N) * k.word + 63) / 64 * 64;
  bias_bytes = (k.padded(p.N) * k.sum_size + 63) / 64 * 64;
  weights = buffer.get(G * (weight_bytes + bias_bytes) + 64);
  biases = weights + G * weight_bytes;
  std::vector<Job> jobs;
  for (int64_t g = 0; g < G; ++g) jobs.push_back({g, 0, p.N, 0, 0, p.K});
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      k.pack_b(p.b(g, 0), p.K, p.N, weights + g * weight_bytes);
      widened_bias(p, jobs[g], biases + g * bias_bytes);
    }
  });
}

SharedRoom& shared_room() {
  thread_local SharedRoom own;
  return own;
}

namespace {

RowsProduct layer_of(const ExpertLayer& layer, bool keeps_z) {
  const int64_t G = layer.experts;
  const Source rows = {&layer, Activation::none, places(G, layer.inputs), {}, {}};
  return {&layer,
          rows,
          layer.inputs,
          layer.outputs,
          false,
          true,
          layer.activation,
          places(G, layer.outputs),
          keeps_z ? places(G, layer.outputs) : ExpertRows{}};
}

template <typename T>
class Forward {
 public:
  using sum_t = typename Row<T>::sum_t;

  Forward(const MixedTowers& towers, const Kept& kept, sum_t* logits)
      : m_(towers),
        kept_(kept),
        logits_(logits),
        hidden_(layer_of(m_.hidden, kept.z != nullptr), shared_room().hidden),
        logit_(layer_of(m_.logit, false), shared_room().logit) {}

  void run() const {
    const Parts tiles(m_.y.rows, kTowerRows);
    // Few tiles are cut by their gates, too, to keep the threads busy
    const int64_t wanted = 2 * torch::stable::get_num_threads() / std::max<int64_t>(1, tiles.count);
    const int64_t blocks = (m_.gates() + kBlockGates - 1) / kBlockGates;
    const int64_t parts = std::min(std::max<int64_t>(1, wanted), blocks);
    std::vector<Job> jobs;
    for (int64_t t = 0; t < tiles.count; ++t) {
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t row = tiles.begin(t), g = blocks * p / parts * kBlockGates;
        const int64_t end = std::min(blocks * (p + 1) / parts * kBlockGates, m_.gates());
        jobs.push_back({g, 0, end - g, row, tiles.begin(t + 1) - row, m_.inputs()});
      }
    }
    for_jobs(jobs, [&](int64_t begin, int64_t end) {
      RowsProduct hidden = hidden_.product, logit = logit_.product;
      logit.y.step = m_.gates();
      for (int64_t i = begin; i < end; ++i) tile(jobs[i], hidden, logit);
    });
  }

 private:
  // Gates [job.expert, job.expert + job.columns) of some rows.
  void tile(const Job& job, RowsProduct& hidden, RowsProduct& logit) const {
    const int64_t row = job.row, rows = job.rows, last = job.expert + job.columns;
    const int64_t O = m_.inputs(), H = m_.width(), E = m_.y.experts();
    const int64_t size = m_.hidden.kernels->size;
    char* mixes = scratch().hidden.get(kBlockGates * kTowerRows * O * size + 64);
    char* own_h = scratch().b.get(kTowerRows * H * (size + sizeof(sum_t)) + 64);
    auto* held = reinterpret_cast<sum_t*>(scratch().dz.get(
        E > combination::kBlockExperts
            ? kTowerRows * kBlockGates * whole_vectors<T>(O) * static_cast<int64_t>(sizeof(sum_t))
            : 0));
    const auto mix = MMOE_BEST(forward_block<T>);
    const std::vector<const void*> from = m_.outputs_from(row);
    for (int64_t g = job.expert; g < last; ++g) {
      const int64_t i = g % kBlockGates;
      if (i == 0) {
        const int64_t gates = std::min(kBlockGates, last - g);
        mix(m_.template tile<T>(from, row, rows, g, gates), 0, rows, held,
            reinterpret_cast<T*>(mixes));
      }
      const int64_t at = (g * m_.y.rows + row) * H * size;
      char* h = kept_.h == nullptr ? own_h : kept_.h + at;
      hidden.a.rows.data[g] = mixes + i * kTowerRows * O * size;
      hidden.y.data[g] = h;
      if (kept_.z != nullptr) hidden.z.data[g] = kept_.z + at;
      Reads next;
      if (g + 1 < last) add_run(next, hidden_.weight(g + 1), hidden_.weight_bytes);
      run_piece(hidden, {g, 0, H, 0, rows, O}, hidden_.weight(g), hidden_.bias(g), next);
      if (m_.hidden.kernels->size != m_.logit.kernels->size) {
        char* wide = own_h + kTowerRows * H * size;
        m_.hidden.kernels->widen(h, false, rows * H, wide);
        h = wide;
      }
      logit.a.rows.data[g] = h;
      logit.y.data[g] = reinterpret_cast<char*>(logits_ + row * m_.gates() + g);
      run_piece(logit, {g, 0, 1, 0, rows, H}, logit_.weight(g), logit_.bias(g), {});
    }
  }

  const MixedTowers& m_;
  Kept kept_;
  sum_t* logits_;
  Packed hidden_, logit_;
};

}  // namespace
}  // namespace mmoe::towers

namespace mmoe {
namespace {

using namespace towers;

std::tuple<Tensor, std::vector<Tensor>> mixed_towers(std::vector<Tensor> y,
                                                     const Tensor& weights_BGE,
                                                     const Tensor& weight_GOH,
                                                     const Tensor& bias_GH, const Tensor& head_GH,
                                                     const Tensor& head_bias_G,
                                                     std::string activation, bool keep) {
  const MixedTowers m(y, weights_BGE, weight_GOH, bias_GH, head_GH, head_bias_G, activation);
  const Tensor logits = fresh(y[0], {m.y.rows, m.gates()}, m.head.scalar_type());
  std::vector<Tensor> kept;
  const int64_t tables = !keep ? 0 : keeps_z(m.hidden.activation) ? 2 : 1;
  for (int64_t i = 0; i < tables; ++i) {
    kept.push_back(fresh(y[0], {m.gates(), m.y.rows, m.width()}, m.y.type));
  }
  run_as<Forward>(m, kept_in(kept), logits.mutable_data_ptr());
  return {logits, kept};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) { m.impl("mixed_towers", MMOE_BOX(mixed_towers)); }

// The gradients of mixed_towers: a tile of rows is mixed again, gate by gate gives what it adds to
// the gradients of the tower's matrices, and what becomes of it before the mixes goes back to the
// experts' outputs, all while it is in the cache.

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "mixed_towers.h"

#define MMOE_KERNELS "gemm/mixed_towers_kernels.h"
#include "../each_isa.h"

namespace mmoe::towers {
namespace {

using combination::kBlockGates;
using gemm::Activation;
using gemm::Kernels;
using gemm::Parts;

// The gradients of what mixed_towers reads; those of y and weights where `mixes`.
struct Gradients {
  bool mixes;
  ExpertGradients y;
  Tensor weights, weight, bias, head, head_bias;
};

// Rows are cut into chunks, by their number alone. A chunk sums the gradients of the matrices over
// its rows, and the chunks' sums are added in order: the same bits for any number of threads.
constexpr int64_t kMostChunks = 16, kLeastChunkRows = 2 * kTowerRows;
constexpr int64_t kSumsBytes = 128 << 20;  // what the chunks' sums may take together

template <typename T>
class Backward {
 public:
  using sum_t = typename Row<T>::sum_t;

  Backward(const MixedTowers& towers, const Kept& kept, const sum_t* grad, Gradients& to)
      : m_(towers),
        kept_(kept),
        grad_(grad),
        to_(to),
        back_(to_mixes(towers.hidden), shared_room().hidden),
        step_(m_.hidden.kernels->padded(m_.width())),
        gate_sums_((m_.inputs() + 2) * step_),
        chunk_sums_(m_.gates() * gate_sums_ + whole_vectors<T>(m_.gates())),
        chunks_(m_.y.rows, chunk_rows()) {
    sums_ = reinterpret_cast<sum_t*>(shared_room().sums.get(
        chunks_.count * chunk_sums_ * static_cast<int64_t>(sizeof(sum_t)) + 64));
  }

  void run() const {
    std::vector<Job> jobs;
    for (int64_t c = 0; c < chunks_.count; ++c) {
      const int64_t row = chunks_.begin(c);
      jobs.push_back({c, 0, m_.width(), row, chunks_.begin(c + 1) - row, m_.inputs()});
    }
    for_jobs(jobs, [&](int64_t begin, int64_t end) {
      RowsProduct back = back_.product;
      for (int64_t i = begin; i < end; ++i) chunk(jobs[i], back);
    });
    add_chunks();
  }

 private:
  static RowsProduct to_mixes(const ExpertLayer& layer) {
    const int64_t G = layer.experts;
    const Source dz = {&layer, Activation::none, places(G, layer.outputs), {}, {}};
    RowsProduct p = {&layer, dz,    layer.outputs,    layer.inputs,
                     true,   false, Activation::none, places(G, layer.inputs),
                     {}};
    p.sums = true;
    return p;
  }

  int64_t chunk_rows() const {
    const int64_t bytes = chunk_sums_ * static_cast<int64_t>(sizeof(sum_t));
    const int64_t most = std::clamp<int64_t>(kSumsBytes / bytes, 1, kMostChunks);
    return std::max(kLeastChunkRows, (m_.y.rows + most - 1) / most);
  }

  void chunk(const Job& job, RowsProduct& back) const {
    const int64_t G = m_.gates();
    sum_t* sums = sums_ + job.expert * chunk_sums_;
    for (int64_t g = 0; g < G; ++g) {
      fill_zero(sums + g * gate_sums_ + m_.inputs() * step_, 2 * step_);
    }
    sum_t* of_logits = sums + G * gate_sums_;
    fill_zero(of_logits, G);
    m_.logit.kernels->add_rows(grad_ + job.row * G, G, job.rows, G, of_logits);
    const Parts tiles(job.rows, kTowerRows);
    for (int64_t t = 0; t < tiles.count; ++t) {
      const int64_t row = job.row + tiles.begin(t);
      tile(row, tiles.begin(t + 1) - tiles.begin(t), t == 0, sums, back);
    }
  }

  void tile(int64_t row, int64_t rows, bool first, sum_t* sums, RowsProduct& back) const {
    const Kernels& k = *m_.hidden.kernels;
    const int64_t G = m_.gates(), O = m_.inputs(), H = m_.width(), E = m_.y.experts();
    const int64_t padded = whole_vectors<T>(O);
    const auto bytes = [](int64_t numbers) {
      return numbers * static_cast<int64_t>(sizeof(sum_t)) + 64;
    };
    Scratch& room = scratch();
    auto* mixes = reinterpret_cast<T*>(room.hidden.get(bytes(kBlockGates * kTowerRows * O)));
    auto* grads = reinterpret_cast<sum_t*>(room.rows.get(bytes(kBlockGates * kTowerRows * O)));
    auto* held = reinterpret_cast<sum_t*>(room.packed.get(bytes(kTowerRows * E * padded)));
    // Between blocks of experts the mixes wait where the gradients will
    auto* waiting = reinterpret_cast<sum_t*>(room.bias.get(
        E > combination::kBlockExperts ? bytes(kTowerRows * kBlockGates * padded) : 0));
    auto* dz = reinterpret_cast<T*>(room.dz.get(bytes(kTowerRows * H)));
    const auto mix = MMOE_BEST(forward_block<T>);
    const auto unmix = MMOE_BEST(backward_tile<T>);
    const std::vector<const void*> from = m_.outputs_from(row);
    std::vector<void*> grad_y;
    for (void* to : to_.y.data) grad_y.push_back(static_cast<T*>(to) + row * O);
    auto* grad_weights = static_cast<sum_t*>(to_.weights.mutable_data_ptr()) + row * G * E;
    for (int64_t g = 0; g < G; g += kBlockGates) {
      const int64_t gates = std::min(kBlockGates, G - g);
      const combination::Dense<T> d = m_.template tile<T>(from, row, rows, g, gates);
      mix(d, 0, rows, waiting, mixes);
      for (int64_t i = 0; i < gates; ++i) {
        sum_t* of_gate = sums + (g + i) * gate_sums_;
        layer_gradient(row, rows, g + i, of_gate, dz);
        weight_gradient(rows, mixes + i * kTowerRows * O, dz, first, of_gate);
        if (!to_.mixes) continue;
        back.a.rows.data[g + i] = reinterpret_cast<char*>(dz);
        back.y.data[g + i] = reinterpret_cast<char*>(grads + i * kTowerRows * O);
        Reads next;
        if (g + i + 1 < G) {
          add_run(next, back_.weight(g + i + 1), back_.weight_bytes);
          add_run(next, kept(kept_.h, row, g + i + 1), rows * H * k.size);
          if (kept_.z != nullptr) add_run(next, kept(kept_.z, row, g + i + 1), rows * H * k.size);
        }
        run_piece(back, {g + i, 0, O, 0, rows, H}, back_.weight(g + i), nullptr, next);
      }
      if (!to_.mixes) continue;
      unmix(d, {grads, held, grad_y.data(), grad_weights + g * E, g == 0, g + gates == G});
    }
  }

  // From a row of a gate on, of [G, B, H].
  const char* kept(const char* table, int64_t row, int64_t g) const {
    return table + (g * m_.y.rows + row) * m_.width() * m_.hidden.kernels->size;
  }

  // The gradient of what goes into a tower's activation, and what the rows add to those of its bias
  // and of the last layer.
  void layer_gradient(int64_t row, int64_t rows, int64_t g, sum_t* of_gate, T* dz) const {
    const Kernels& k = *m_.hidden.kernels;
    const int64_t G = m_.gates(), H = m_.width();
    const auto* h = reinterpret_cast<const T*>(kept(kept_.h, row, g));
    const auto* z = kept_.z == nullptr ? nullptr : kept(kept_.z, row, g);
    const auto* head = static_cast<const sum_t*>(m_.head.const_data_ptr()) + g * H;
    sum_t* of_bias = of_gate + m_.inputs() * step_;
    MMOE_BEST(head_backward<T>)
    ({h, grad_ + row * G + g, head, G, rows, H, dz, of_bias + step_});
    if (m_.hidden.activation != Activation::none) {
      k.derive(dz, h, z, m_.hidden.activation, rows * H, dz);
    }
    k.add_rows(dz, H, rows, H, of_bias);
  }

  void weight_gradient(int64_t rows, const T* mixes, const T* dz, bool first, sum_t* to) const {
    const Kernels& k = *m_.hidden.kernels;
    const int64_t O = m_.inputs(), H = m_.width();
    char* a = scratch().a.get((k.words(kTowerRows) * O + k.lanes) * k.word);
    char* b = scratch().b.get(k.words(kTowerRows) * step_ * k.word + 64);
    k.pack_columns(mixes, O, rows, O, a);
    k.pack_b({dz, H, false, false, false}, rows, H, b);
    gemm::Product product = {a, 0, false, b, O, H, k.words(rows), to, step_, !first, nullptr, {}};
    Reads next;
    const auto* following = reinterpret_cast<const char*>(to + gate_sums_);
    if (!first) add_run(next, following, gate_sums_ * static_cast<int64_t>(sizeof(sum_t)));
    next.copy_part(0, 1, &product);
    k.multiply(product);
  }

  // The chunks' sums, and what becomes of them.
  void add_chunks() const {
    const Kernels& k = *m_.hidden.kernels;
    const int64_t G = m_.gates(), O = m_.inputs(), H = m_.width();
    std::vector<Job> jobs;
    for (int64_t g = 0; g < G; ++g) jobs.push_back({g, 0, H, 0, chunks_.count, O});
    for_jobs(jobs, [&](int64_t begin, int64_t end) {
      auto* total = reinterpret_cast<sum_t*>(
          scratch().c.get(gate_sums_ * static_cast<int64_t>(sizeof(sum_t)) + 64));
      for (int64_t g = begin; g < end; ++g) {
        fill_zero(total, gate_sums_);
        add(sums_ + g * gate_sums_, gate_sums_, total);
        const auto write = [&](const sum_t* sums, int64_t rows, const Tensor& to, bool wide) {
          char* at = static_cast<char*>(to.mutable_data_ptr()) +
                     g * rows * H * static_cast<int64_t>(to.element_size());
          k.finish({sums, step_, rows, H, nullptr, Activation::none, at, H, nullptr, wide});
        };
        write(total, O, to_.weight, m_.hidden.wide);
        write(total + O * step_, 1, to_.bias, m_.hidden.wide);
        write(total + (O + 1) * step_, 1, to_.head, true);
      }
    });
    auto* head_bias = static_cast<sum_t*>(to_.head_bias.mutable_data_ptr());
    fill_zero(head_bias, G);
    add(sums_ + G * gate_sums_, G, head_bias);
  }

  void add(const sum_t* of_first_chunk, int64_t numbers, sum_t* to) const {
    m_.logit.kernels->add_rows(of_first_chunk, chunk_sums_, chunks_.count, numbers, to);
  }

  const MixedTowers& m_;
  Kept kept_;
  const sum_t* grad_;
  Gradients& to_;
  Packed back_;
  // Numbers of a row of a weight's gradient; of a gate's sums: those of weight, bias and head; and
  // of a chunk's, of all gates and of the logits
  int64_t step_, gate_sums_, chunk_sums_;
  Parts chunks_;
  sum_t* sums_;
};

}  // namespace
}  // namespace mmoe::towers

namespace mmoe {
namespace {

using namespace towers;

std::tuple<std::vector<Tensor>, Tensor, Tensor, Tensor, Tensor, Tensor> mixed_towers_backward(
    const Tensor& grad_BG, std::vector<Tensor> y, const Tensor& weights_BGE,
    const Tensor& weight_GOH, const Tensor& head_GH, std::vector<Tensor> kept,
    std::string activation, bool need_mixes) {
  check_dim("weight_GOH", weight_GOH, 3);
  const Tensor none_GH =
      empty(weight_GOH, {weight_GOH.size(0), weight_GOH.size(2)}, weight_GOH.scalar_type());
  const Tensor none_G = empty(head_GH, {weight_GOH.size(0)}, head_GH.scalar_type());
  const MixedTowers m(y, weights_BGE, weight_GOH, none_GH, head_GH, none_G, activation);
  const int64_t G = m.gates(), O = m.inputs(), H = m.width();
  check_dim("grad_BG", grad_BG, 2);
  check_type("grad_BG", grad_BG, m.head.scalar_type());
  check_size("grad_BG", grad_BG, 0, m.y.rows);
  check_size("grad_BG", grad_BG, 1, G);
  const size_t tables = keeps_z(m.hidden.activation) ? 2 : 1;
  if (kept.size() != tables) fail("kept: expected ", tables, " tensors, got ", kept.size());
  for (size_t i = 0; i < tables; ++i) {
    const Name name("kept", i);
    check_dim(name, kept[i], 3);
    check_type(name, kept[i], m.y.type);
    check_size(name, kept[i], 0, G);
    check_size(name, kept[i], 1, m.y.rows);
    check_size(name, kept[i], 2, H);
    kept[i] = dense(kept[i]);
  }
  Gradients to = {need_mixes,
                  ExpertGradients(need_mixes ? y : std::vector<Tensor>{}),
                  need_mixes ? empty_as(m.weights) : empty(m.weights, {0}, m.weights.scalar_type()),
                  empty(weight_GOH, {G, O, H}, weight_GOH.scalar_type()),
                  empty_as(none_GH),
                  empty(head_GH, {G, H}, head_GH.scalar_type()),
                  empty_as(none_G)};
  const Tensor grad = dense(grad_BG);
  run_as<Backward>(m, kept_in(kept), grad.const_data_ptr(), to);
  return {to.y.tensors, to.weights, to.weight, to.bias, to.head, to.head_bias};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("mixed_towers_backward", MMOE_BOX(mixed_towers_backward));
}

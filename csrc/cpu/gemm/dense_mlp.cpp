// dense_mlp: every expert's layers one behind the other on all rows, without gradients. A tile of
// rows goes through all layers of an expert before the next one: what lies between two layers stays
// in the cache, and as many bytes less leave it as there are hidden numbers.

#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "rows_product.h"
#include "shared_rows.h"

namespace mmoe {
namespace {

using gemm::Parts;

// What a core's second cache (1 MiB and up) keeps of an expert beside a tile of rows.
constexpr int64_t kPackedBytes = 640 << 10;
constexpr int64_t kMostLayers = 8;

std::optional<Tensor> bias_of_layer(const std::vector<Tensor>& biases, size_t layer) {
  return biases.empty() ? std::nullopt : std::optional<Tensor>(biases[layer]);
}

// The layers of all experts as products, and the rows between them.
class Chain {
 public:
  Chain(std::vector<ExpertLayer> layers, ExpertRows x, ExpertRows y, ExpertRows added)
      : layers_(std::move(layers)), x_(std::move(x)), y_(std::move(y)), added_(std::move(added)) {}

  // Whether the weights of an expert stay in the cache while its rows pass.
  bool fits() const {
    int64_t bytes = 0;
    for (const ExpertLayer& layer : layers_) {
      if (layer.inputs == 0 || layer.outputs == 0) return false;
      bytes += packed_bytes(layer);
    }
    return bytes <= kPackedBytes && static_cast<int64_t>(layers_.size()) <= kMostLayers;
  }

  void run() const {
    std::vector<Job> jobs;
    const Parts rows(layers_[0].rows[0], kJobRows);
    for (int64_t e = 0; e < layers_[0].experts; ++e) {
      for (int64_t r = 0; r < rows.count; ++r) {
        const int64_t row = rows.begin(r);
        jobs.push_back({e, 0, layers_[0].outputs, row, rows.begin(r + 1) - row, layers_[0].inputs});
      }
    }
    for_jobs(jobs, [&](int64_t begin, int64_t end) { run_some(jobs, begin, end); });
  }

 private:
  static int64_t packed_bytes(const ExpertLayer& layer) {
    const gemm::Kernels& k = *layer.kernels;
    return k.words(layer.inputs) * k.padded(layer.outputs) * k.word + 64;
  }

  RowsProduct product_of(size_t l) const {
    const ExpertLayer& layer = layers_[l];
    ExpertRows from = x_, to = y_;
    if (l > 0) from.step = layer.inputs;
    if (l + 1 < layers_.size()) to.step = layer.outputs;
    const Source rows = {&layer, Activation::none, from, {}, {}};
    RowsProduct product = {&layer,           rows,  layer.inputs,
                           layer.outputs,    false, layer.bias != nullptr,
                           layer.activation, to,    {}};
    if (l == 0) product.added = added_;
    return product;
  }

  void run_some(const std::vector<Job>& jobs, int64_t begin, int64_t end) const {
    const int64_t size = layers_[0].kernels->size;
    std::vector<RowsProduct> products;
    std::vector<const char*> biases(layers_.size());
    std::vector<char*> weights;
    int64_t bytes = 0, widest = 0;
    for (size_t l = 0; l < layers_.size(); ++l) {
      products.push_back(product_of(l));
      bytes += packed_bytes(layers_[l]);
      if (l + 1 < layers_.size()) widest = std::max(widest, layers_[l].outputs);
    }
    char* packed = scratch().packed.get(bytes);
    for (const ExpertLayer& layer : layers_) {
      weights.push_back(packed);
      packed += packed_bytes(layer);
    }
    // Two, of which a layer reads one and writes the other
    const int64_t tile_bytes = kTileRows * widest * size;
    char* const hidden = scratch().hidden.get(2 * tile_bytes + 64);

    int64_t expert = -1;
    for (int64_t i = begin; i < end; ++i) {
      const Job& job = jobs[i];
      const int64_t e = job.expert;
      if (e != expert) pack(products, e, weights, &biases);
      expert = e;
      const Parts tiles(job.rows, kTileRows);
      for (int64_t t = 0; t < tiles.count; ++t) {
        const int64_t row = job.row + tiles.begin(t);
        for (size_t l = 0; l < layers_.size(); ++l) {
          RowsProduct& p = products[l];
          const bool last = l + 1 == layers_.size();
          p.a.rows.data[e] = l == 0 ? x_.data[e] + row * x_.step * size
                                    : hidden + static_cast<int64_t>((l - 1) % 2) * tile_bytes;
          p.y.data[e] = last ? y_.data[e] + row * y_.step * size
                             : hidden + static_cast<int64_t>(l % 2) * tile_bytes;
          if (!p.added.empty()) p.added.numbers[e] = added_.numbers[e] + row;
          const int64_t rows = tiles.begin(t + 1) - tiles.begin(t);
          run_piece(p, {e, 0, p.N, 0, rows, p.K}, weights[l], biases[l], {});
        }
      }
    }
  }

  void pack(const std::vector<RowsProduct>& products, int64_t e, const std::vector<char*>& weights,
            std::vector<const char*>* biases) const {
    const gemm::Kernels& k = *layers_[0].kernels;
    int64_t room = 0;
    for (const RowsProduct& p : products) room += k.padded(p.N) * k.sum_size;
    char* sums = scratch().bias.get(room);
    for (size_t l = 0; l < products.size(); ++l) {
      const RowsProduct& p = products[l];
      k.pack_b(p.b(e, 0), p.K, p.N, weights[l]);
      (*biases)[l] = widened_bias(p, {e, 0, p.N, 0, 0, p.K}, sums);
      sums += k.padded(p.N) * k.sum_size;
    }
  }

  std::vector<ExpertLayer> layers_;
  ExpertRows x_, y_, added_;
};

std::vector<Tensor> dense_mlp(std::vector<Tensor> x, std::vector<Tensor> weights,
                              std::vector<Tensor> biases, std::string activation,
                              std::string output_activation, std::vector<Tensor> shared,
                              std::optional<Tensor> owners_B) {
  if (weights.empty()) fail("weights: expected those of one layer or more, got none");
  if (!biases.empty() && biases.size() != weights.size()) {
    fail("biases: expected none or ", weights.size(), ", one for each layer, got ", biases.size());
  }
  const auto activation_of = [&](size_t l) -> const std::string& {
    return l + 1 == weights.size() ? output_activation : activation;
  };
  const Dense first(x, weights[0], bias_of_layer(biases, 0), activation_of(0));
  if (shared.empty() == owners_B.has_value()) {
    fail("owners_B: expected with shared rows, and with them alone");
  }
  if (owners_B && (x.size() != 1 || is_stacked(x)))
    fail("x: expected one tensor x_BD with owners_B");
  std::optional<SharedRows> parts;
  if (owners_B) parts.emplace(first, shared, *owners_B);
  const ExpertRows added = parts ? parts->added : ExpertRows{};
  std::vector<Tensor> kept;  // weights without gaps
  std::vector<ExpertLayer> layers = {first.layer};
  for (size_t l = 1; l < weights.size(); ++l) {
    const std::optional<Tensor> bias = bias_of_layer(biases, l);
    check_layer(weights[l], bias, layers.back().outputs, first.x[0].scalar_type());
    check_size("weight_EDH", weights[l], 0, first.layer.experts);
    ExpertLayer layer = first.layer;
    layer.activation = activation_from(activation_of(l));
    layer.inputs = weights[l].size(1);
    layer.outputs = weights[l].size(2);
    layer.wide = weights[l].scalar_type() != first.x[0].scalar_type();
    kept.push_back(dense(weights[l]));
    layer.weight = static_cast<const char*>(kept.back().const_data_ptr());
    layer.bias = nullptr;
    if (bias) {
      kept.push_back(dense(*bias));
      layer.bias = static_cast<const char*>(kept.back().const_data_ptr());
    }
    layers.push_back(layer);
  }
  std::vector<Tensor> y;
  for (int64_t e = 0; e < first.layer.experts; ++e) {
    const Tensor& like = first.x[0];
    y.push_back(fresh(like, {like.size(0), layers.back().outputs}, like.scalar_type()));
  }
  const Chain chain(layers, first.rows_of(first.x, first.layer.inputs),
                    first.rows_of(y, layers.back().outputs), added);
  if (chain.fits()) {
    chain.run();
    return y;
  }
  std::vector<Tensor> rows = first.x;
  for (size_t l = 0; l < layers.size(); ++l) {
    const Dense layer(rows, weights[l], bias_of_layer(biases, l), activation_of(l));
    const std::vector<Tensor> next = l + 1 == layers.size() ? y : layer.outputs();
    layer_forward(layer.layer, layer.rows_of(layer.x, layer.layer.inputs),
                  layer.rows_of(next, layer.layer.outputs), {}, l == 0 ? added : ExpertRows{});
    rows = next;
  }
  return y;
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) { m.impl("dense_mlp", MMOE_BOX(dense_mlp)); }

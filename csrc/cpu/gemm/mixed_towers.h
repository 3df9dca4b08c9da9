// The towers of many tasks on their gates' mixes, of one hidden layer and a logit each: what
// mixed_towers and its gradient are called with.

#pragma once

#include <algorithm>
#include <cstring>

#include "../dense_combine.h"
#include "../memory.h"
#include "rows_product.h"

namespace mmoe::towers {

constexpr int64_t kTowerRows = 48;  // rows that go through all towers while they are in the cache

// Bytes that lie side by side, as rows that a product fetches.
inline void add_run(Reads& reads, const char* data, int64_t bytes) {
  constexpr int64_t run = 1 << 10;
  if (bytes >= run) reads.add(data, run, run, bytes / run);
}

struct MixedTowers {
  ExpertOutputs y;
  Tensor weights, weight, bias, head, head_bias;
  ExpertLayer hidden, logit;  // a tower stands for an expert

  MixedTowers(const std::vector<Tensor>& y, const Tensor& weights_BGE, const Tensor& weight_GOH,
              const Tensor& bias_GH, const Tensor& head_GH, const Tensor& head_bias_G,
              const std::string& activation);

  int64_t gates() const { return hidden.experts; }
  int64_t inputs() const { return hidden.inputs; }
  int64_t width() const { return hidden.outputs; }

  // Rows [row, row + rows) of the experts' outputs: where each begins.
  std::vector<const void*> outputs_from(int64_t row) const {
    std::vector<const void*> from;
    const int64_t size = hidden.kernels->size;
    for (int64_t e = 0; e < y.experts(); ++e) {
      from.push_back(static_cast<const char*>(y.data[e]) + row * y.row_stride[e] * size);
    }
    return from;
  }

  // Mixes of gates [g, g + gates) for a tile of rows, of which `from` are the experts' outputs;
  // each gate's lie in kTowerRows rows.
  template <typename T>
  combination::Dense<T> tile(const std::vector<const void*>& from, int64_t row, int64_t rows,
                             int64_t g, int64_t gates_of_it) const {
    using sum_t = typename Row<T>::sum_t;
    const int64_t E = y.experts(), G = gates(), O = y.width;
    const auto* first = static_cast<const sum_t*>(weights.const_data_ptr()) + (row * G + g) * E;
    return {from.data(), y.row_stride.data(), first, rows, gates_of_it, E, O, G * E,
            O,           kTowerRows * O};
  }
};

// Of a tile of rows and one tower: the gradient of what its last layer reads, and what the rows add
// to that of the layer's weights.
//   dh[b] = grad[b] * head;   grad_head += sum over b of grad[b] * h[b]
template <typename T>
struct HeadTask {
  using sum_t = typename Row<T>::sum_t;
  const T* h;         // [B, H]
  const sum_t* grad;  // of the logits, `step` numbers apart
  const sum_t* head;
  int64_t step, B, H;
  T* dh;
  sum_t* grad_head;
};

// What a few gates add to the gradients of a tile's expert outputs, and those of their weights.
// Between gates the sums wait in `held`, [B, E, O].
template <typename T>
struct TileGradients {
  using sum_t = typename Row<T>::sum_t;
  const sum_t* mixes;  // their gradients, as Dense says
  sum_t* held;
  void* const* y;  // [B, O] of every expert
  sum_t* weights;  // as those of Dense
  bool is_first, is_last;
};

struct Kept {
  char *h = nullptr, *z = nullptr;  // [G, B, H], or null
};

inline Kept kept_in(const std::vector<Tensor>& kept) {
  const auto at = [&](size_t i) {
    return i < kept.size() ? static_cast<char*>(kept[i].mutable_data_ptr()) : nullptr;
  };
  return {at(0), at(1)};
}

// Rows of every tower at one place, which a tile's products move.
inline ExpertRows places(int64_t gates, int64_t step) {
  ExpertRows rows;
  rows.data.assign(gates, nullptr);
  rows.step = step;
  return rows;
}

// Of the calling thread; the workers fill them together.
struct SharedRoom {
  Buffer hidden, logit, sums;
};
SharedRoom& shared_room();

// A layer's matrices as a product reads them, of all towers: packed once, by all threads.
struct Packed {
  const RowsProduct product;
  int64_t weight_bytes, bias_bytes;
  char *weights, *biases;

  // `buffer`: of the calling thread, which the workers fill together.
  Packed(RowsProduct product, Buffer& buffer);

  const char* weight(int64_t g) const { return weights + g * weight_bytes; }
  const char* bias(int64_t g) const { return product.bias ? biases + g * bias_bytes : nullptr; }
};

// `run<T>` for the type of the rows.
template <template <typename> class Pass, typename Sums, typename... Rest>
void run_as(const MixedTowers& m, const Kept& kept, Sums* sums, Rest&... rest) {
  using Float = std::conditional_t<std::is_const_v<Sums>, const float, float>;
  using Double = std::conditional_t<std::is_const_v<Sums>, const double, double>;
  switch (m.y.type) {
    case ScalarType::Double:
      return Pass<double>(m, kept, static_cast<Double*>(sums), rest...).run();
    case ScalarType::BFloat16:
      return Pass<bf16>(m, kept, static_cast<Float*>(sums), rest...).run();
    default:
      return Pass<float>(m, kept, static_cast<Float*>(sums), rest...).run();
  }
}

}  // namespace mmoe::towers

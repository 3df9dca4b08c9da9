// target_attention on the CPU, a row of the batch at a time. The first layer's product with an
// event and with (event times target) is one product with the row's own weights, A + C diag(q), and
// half of the work; events are scaled behind it. What is [events, H] lives for a tile of events
// alone, in the cache. Every sum over rows is taken in blocks that the shapes alone determine.

#pragma once

#include <type_traits>
#include <vector>

#include "../jobs.h"
#include "../memory.h"
#include "../rows.h"

namespace mmoe::attention {

template <typename T>
using sum_of = typename Row<T>::sum_t;

constexpr int64_t kTile = 64;       // events whose hidden layer stays in the cache
constexpr int64_t kBlockRows = 16;  // rows of a block, at least
constexpr int64_t kMostBlocks = 128;

// Some events of one row.
template <typename S>
struct Events {
  const S* e;
  int64_t step, count, numbers, width;  // of an event; width in whole vectors
};

// The first layer of one row; the score is its own where it is the only one.
template <typename S>
struct Hidden {
  const S *bias, *score;
  int64_t width;
  S *grad_bias, *grad_score;  // backward
};

// Two packed matrices whose mixture is a row's own.
template <typename S>
struct Panels {
  const S *own, *product;
  int64_t rows, columns, panel;  // columns in whole vectors
};

// What there is of loops for one processor.
template <typename T>
struct Loops {
  using S = sum_of<T>;
  int64_t lanes;
  void (*widen)(const T*, int64_t, int64_t, int64_t, S*);
  void (*join_by_row)(const Panels<S>&, const S*, S*);
  void (*join_by_column)(const Panels<S>&, const S*, S*);
  void (*score)(const Events<S>&, const Hidden<S>&, const S*, S, S*);
  void (*activate_scaled)(const Events<S>&, const S*, int64_t, const S*, S*);
  void (*activate_deeper)(const S*, int64_t, int64_t, S*);
  void (*score_deeper)(const S*, int64_t, int64_t, const S*, S, S*);
  void (*exp_all)(S*, int64_t);
  void (*add_weighted)(const Events<S>&, const S*, S*);
  void (*add_dots)(const Events<S>&, const S*, S*);
  void (*differentiate_score)(const S*, const S*, const S*, int64_t, int64_t, S*, S*);
  void (*mask)(const S*, int64_t, S*);
  void (*add_rows)(const S*, int64_t, int64_t, S*);
  void (*differentiate)(const Events<S>&, const Hidden<S>&, const S*, const S*, S*, S*, S*);
  void (*differentiate_deep)(const Events<S>&, const Hidden<S>&, const S*, const S*, S*, S*, S*);
  void (*finish_events)(const Events<S>&, const S*, const S*, const S*, const S*, T*);
  void (*take_apart)(const S*, const S*, const S*, int64_t, int64_t, S*, S*, S*);
};

template <typename T>
Loops<T> best_loops();

constexpr int64_t kMostPartials = 1 << 23;  // numbers of gradients that wait to be added up

// The layer's weights as the products read them.
template <typename S>
struct Packed {
  std::vector<S> own, product;
  Panels<S> panels;

  Packed(const gemm::Kernels& kernels, const S* weight, int64_t half, bool transposed, int64_t step,
         int64_t rows, int64_t columns, int64_t width)
      : own(rows * width), product(rows * width) {
    kernels.pack_b({weight, step, transposed, false}, rows, columns, own.data());
    kernels.pack_b({weight + half, step, transposed, false}, rows, columns, product.data());
    panels = {own.data(), product.data(), rows, width, kernels.nr};
  }
};

// A layer after the first one.
template <typename S>
struct Layer {
  int64_t in, out, wide_in, wide_out;
  std::vector<S> forward, back, bias;  // packed for either way
};

// The tensors that forward and backward pass read, dense.
struct Read {
  Tensor e, offsets, q, weight, bias;
  std::vector<Tensor> deep_weights, deep_biases;
  Tensor score;
  bool softmax;

  Read(const Tensor& e_VD, const Tensor& offsets_B1, const Tensor& q_BD, const Tensor& weight_2DH,
       const Tensor& bias_BH, const std::vector<Tensor>& weights, const std::vector<Tensor>& biases,
       const Tensor& score_N, bool softmax)
      : e(dense(e_VD)),
        offsets(dense(offsets_B1)),
        q(dense(q_BD)),
        weight(dense(weight_2DH)),
        bias(dense(bias_BH)),
        score(dense(score_N)),
        softmax(softmax) {
    for (const Tensor& one : weights) deep_weights.push_back(dense(one));
    for (const Tensor& one : biases) deep_biases.push_back(dense(one));
  }
};

// A call's tensors. What reads or writes whole vectors is copied to where there are some.
template <typename T>
struct Call {
  using S = sum_of<T>;
  Loops<T> loops;
  const gemm::Kernels& kernels;
  int64_t B, D, H, N, wide_D, wide_H, wide_N;  // wide: in whole vectors; N: of the last layer
  const T *e, *q;
  const int32_t* offsets;
  const S *weight, *bias;
  std::vector<S> score;
  std::vector<Layer<S>> deeper;
  bool softmax;

  explicit Call(const Read& read)
      : loops(best_loops<T>()),
        kernels(*kernels_for(read.score.scalar_type())),
        B(read.q.size(0)),
        D(read.q.size(1)),
        H(read.weight.size(1)),
        N(read.score.size(0)),
        wide_D(whole(D)),
        wide_H(whole(H)),
        wide_N(whole(N)),
        e(static_cast<const T*>(read.e.const_data_ptr())),
        q(static_cast<const T*>(read.q.const_data_ptr())),
        offsets(static_cast<const int32_t*>(read.offsets.const_data_ptr())),
        weight(sums_of(read.weight)),
        bias(sums_of(read.bias)),
        score(padded(read.score)),
        softmax(read.softmax) {
    for (size_t i = 0; i < read.deep_weights.size(); ++i) {
      const Tensor& of_layer = read.deep_weights[i];
      const int64_t in = of_layer.size(0), out = of_layer.size(1);
      Layer<S> layer = {in, out, whole(in), whole(out), {}, {}, padded(read.deep_biases[i])};
      layer.forward.resize(in * layer.wide_out);
      layer.back.resize(out * layer.wide_in);
      kernels.pack_b({of_layer.const_data_ptr(), out, false, false}, in, out, layer.forward.data());
      kernels.pack_b({of_layer.const_data_ptr(), out, true, false}, out, in, layer.back.data());
      deeper.push_back(std::move(layer));
    }
  }

  static const S* sums_of(const Tensor& tensor) {
    return static_cast<const S*>(tensor.const_data_ptr());
  }
  std::vector<S> padded(const Tensor& numbers) const {
    std::vector<S> to(whole(numbers.size(0)));
    std::copy(sums_of(numbers), sums_of(numbers) + numbers.size(0), to.begin());
    return to;
  }
  int64_t whole(int64_t numbers) const {
    return (numbers + loops.lanes - 1) / loops.lanes * loops.lanes;
  }
  int64_t begin(int64_t row) const { return offsets[row]; }
  int64_t count(int64_t row) const { return int64_t{offsets[row + 1]} - offsets[row]; }

  // From events to the hidden layer, and for gradients back.
  Packed<S> to_hidden() const { return {kernels, weight, D * H, false, H, D, H, wide_H}; }
  Packed<S> to_events() const { return {kernels, weight, D * H, true, H, H, D, wide_D}; }
};

// Where a block's sums of the gradients of what all rows share begin.
template <typename T>
struct Places {
  int64_t product, score, deeper, score_bias, size;

  explicit Places(const Call<T>& call) {
    product = call.H * call.wide_D;
    score = 2 * product;
    deeper = score + call.wide_N;
    score_bias = deeper;
    for (const auto& layer : call.deeper) score_bias += (layer.in + 1) * layer.wide_out;
    size = score_bias + 1;
  }
};

struct Block {
  int64_t begin, end, work;
  double cost() const { return static_cast<double>(work); }
};

// Of a number of rows that the shapes alone determine, as gradients are added up block by block.
template <typename T>
std::vector<Block> blocks_of(const Call<T>& call) {
  const int64_t most = std::clamp<int64_t>(kMostPartials / Places<T>(call).size, 1, kMostBlocks);
  const int64_t rows = std::max(kBlockRows, (call.B + most - 1) / most);
  std::vector<Block> blocks;
  for (int64_t begin = 0; begin < call.B; begin += rows) {
    const int64_t end = std::min(begin + rows, call.B);
    // A row costs about as much as two events, for its own weights.
    blocks.push_back({begin, end, call.begin(end) - call.begin(begin) + 2 * (end - begin)});
  }
  return blocks;
}

// What a thread needs for one row at a time.
template <typename T>
class Worker {
 public:
  using S = sum_of<T>;

  Worker(const Call<T>& call, const Packed<S>& to_hidden)
      : call_(call),
        to_hidden_(to_hidden),
        joined_(call.D * call.wide_H),
        q_(call.wide_D),
        bias_(call.wide_H),
        z_(kTile * call.wide_H),
        events_(kTile * call.wide_D) {
    if (!call.deeper.empty()) values_.emplace_back(kTile * call.wide_H);
    for (const auto& layer : call.deeper) values_.emplace_back(kTile * layer.wide_out);
  }

 protected:
  const Call<T>& call_;
  const Packed<S>& to_hidden_;
  std::vector<S> joined_, q_, bias_, z_, events_;
  std::vector<std::vector<S>> values_;  // of each layer for a tile, where there are deeper ones

  void open_row(int64_t row) {
    call_.loops.widen(call_.q + row * call_.D, 1, call_.D, call_.wide_D, q_.data());
    std::copy(call_.bias + row * call_.H, call_.bias + (row + 1) * call_.H, bias_.begin());
    call_.loops.join_by_row(to_hidden_.panels, q_.data(), joined_.data());
  }

  // Calls run with each tile of a row's events, and the place of its first one.
  template <typename Run>
  void for_tiles(int64_t row, const Run& run) {
    const int64_t end = call_.begin(row) + call_.count(row);
    for (int64_t first = call_.begin(row); first < end; first += kTile) {
      run(tile(first, std::min(kTile, end - first)), first);
    }
  }

  Events<S> tile(int64_t first, int64_t count) {
    const T* from = call_.e + first * call_.D;
    if constexpr (std::is_same_v<T, S>) {
      if (call_.D == call_.wide_D) return {from, call_.D, count, call_.D, call_.D};
    }
    call_.loops.widen(from, count, call_.D, call_.wide_D, events_.data());
    return {events_.data(), call_.wide_D, count, call_.D, call_.wide_D};
  }

  static constexpr int64_t bytes(int64_t numbers) {
    return numbers * static_cast<int64_t>(sizeof(S));
  }

  // z of a tile, before its scale and bias, and the values of all layers where there are deeper
  // ones.
  void multiply(const Events<S>& events) {
    const Loops<T>& loops = call_.loops;
    call_.kernels.multiply({events.e,
                            bytes(events.step),
                            true,
                            joined_.data(),
                            events.count,
                            call_.H,
                            call_.D,
                            z_.data(),
                            call_.wide_H,
                            false,
                            {}});
    if (call_.deeper.empty()) return;
    loops.activate_scaled(events, bias_.data(), call_.wide_H, z_.data(), values_[0].data());
    for (size_t i = 0; i < call_.deeper.size(); ++i) {
      const Layer<S>& layer = call_.deeper[i];
      S* to = values_[i + 1].data();
      call_.kernels.multiply({values_[i].data(),
                              bytes(layer.wide_in),
                              true,
                              layer.forward.data(),
                              events.count,
                              layer.out,
                              layer.in,
                              to,
                              layer.wide_out,
                              false,
                              {}});
      loops.activate_deeper(layer.bias.data(), events.count, layer.wide_out, to);
    }
  }
};

// Calls run with an empty number of the type that stands for a dtype.
template <typename Run>
void for_type(ScalarType type, const Run& run) {
  switch (type) {
    case ScalarType::Double:
      return run(double{});
    case ScalarType::BFloat16:
      return run(bf16{});
    default:
      return run(float{});
  }
}

// Refuses offsets that do not rise from 0 to the number of events.
inline void check_bounds(const Tensor& offsets_B1, int64_t events) {
  const auto* offsets = static_cast<const int32_t*>(offsets_B1.const_data_ptr());
  const int64_t rows = offsets_B1.size(0) - 1;
  if (offsets[0] != 0) fail("offsets_B1: expected the first offset to be 0, got ", offsets[0]);
  if (offsets[rows] != events) {
    fail("offsets_B1: expected the last offset to be ", events, ", got ", offsets[rows]);
  }
  for (int64_t b = 0; b < rows; ++b) {
    if (offsets[b] <= offsets[b + 1]) continue;
    fail("offsets_B1: expected offsets that rise, got ", offsets[b], " and then ", offsets[b + 1],
         " for row ", b);
  }
}

}  // namespace mmoe::attention

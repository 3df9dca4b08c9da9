// target_attention on the CPU. The first layer's product with an event and with (event times
// target) is, for a row of many events, one product with the row's own weights, A + C diag(q), and
// half of the work; rows of few events go together, a tile of them beside their products with the
// targets. Which way a row goes depends on that row alone. Events are scaled behind the product.
// What is [events, H] lives for a tile of events alone, in the cache. Every sum over rows is taken
// in blocks that the shapes alone determine.

#pragma once

#include <type_traits>
#include <vector>

#include "../../target_attention.h"
#include "../jobs.h"
#include "../memory.h"
#include "../rows.h"

namespace mmoe::attention {

template <typename T>
using sum_of = typename Row<T>::sum_t;

constexpr int64_t kTile = 64;       // events whose hidden layer stays in the cache
constexpr int64_t kFewEvents = 6;   // of rows that go together
constexpr int64_t kBlockRows = 16;  // rows of a block, at least
constexpr int64_t kMostBlocks = 128;

// Some events: of one row, or a tile of several.
template <typename S>
struct Events {
  const S* e;
  int64_t step, count, numbers, width;  // of an event; width in whole vectors
};

// The first layer of a tile; the score is its own where it is the only one.
template <typename S>
struct Hidden {
  const S *bias, *score;
  int64_t width, step;        // step of the bias from event to event: 0 where they share it
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
  void (*activate_scaled)(const Events<S>&, const Hidden<S>&, const S*, S*);
  void (*activate_deeper)(const S*, int64_t, int64_t, int64_t, S*);
  void (*score_deeper)(const S*, int64_t, int64_t, const S*, S, S*);
  void (*exp_all)(S*, int64_t);
  void (*add_weighted)(const Events<S>&, const S*, S*);
  void (*add_dots)(const Events<S>&, const S*, S*);
  void (*differentiate_score)(const S*, const S*, const S*, int64_t, int64_t, S*, S*);
  void (*mask)(const S*, int64_t, S*);
  void (*add_rows)(const S*, int64_t, int64_t, S*);
  using Differentiate = void (*)(const Events<S>&, const Hidden<S>&, const S*, const S*, S*, S*,
                                 S*);
  Differentiate differentiate, differentiate_deep, differentiate_apart, differentiate_deep_apart;
  void (*join_halves)(const Events<S>&, const S*, S*, S*);
  void (*add_products)(const Events<S>&, const S*, S*);
  void (*finish_events)(const Events<S>&, const S*, const S*, const S*, const S*, int64_t, T*);
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

// The first layer's for events beside their products, [2 wide_D, H], packed for either way.
template <typename S>
struct Both {
  std::vector<S> forward, back;
};

// A layer after the first one.
template <typename S>
struct Layer {
  int64_t in, out, wide_in, wide_out;
  std::vector<S> forward, back, bias;  // packed for either way
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

  explicit Call(const AttentionTensors& read)
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

  Both<S> both() const {
    std::vector<S> apart(2 * wide_D * H);
    std::copy(weight, weight + D * H, apart.begin());
    std::copy(weight + D * H, weight + 2 * D * H, apart.begin() + wide_D * H);
    Both<S> packed = {std::vector<S>(2 * wide_D * wide_H), std::vector<S>(2 * wide_D * H)};
    kernels.pack_b({apart.data(), H, false, false}, 2 * wide_D, H, packed.forward.data());
    kernels.pack_b({apart.data(), H, true, false}, H, 2 * wide_D, packed.back.data());
    return packed;
  }
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
    blocks.push_back({begin, end, call.begin(end) - call.begin(begin) + end - begin});
  }
  return blocks;
}

// Calls many with each row of a block that has many events, few with the others, a tile at a time.
template <typename T, typename Many, typename Few>
void for_rows(const Call<T>& call, const Block& block, const Many& many, const Few& few) {
  std::vector<int64_t> rows;
  int64_t events = 0;
  for (int64_t row = block.begin; row < block.end; ++row) {
    const int64_t count = call.count(row);
    if (count > kFewEvents) {
      many(row);
      continue;
    }
    if (events + count > kTile) {
      few(rows);
      rows.clear();
      events = 0;
    }
    rows.push_back(row);
    events += count;
  }
  if (!rows.empty()) few(rows);
}

// What a thread needs for one row of many events, or a tile of rows of few, at a time.
template <typename T>
class Worker {
 public:
  using S = sum_of<T>;

  Worker(const Call<T>& call, const Packed<S>& to_hidden, const Both<S>& both)
      : call_(call),
        to_hidden_(to_hidden),
        both_(both),
        joined_(call.D * call.wide_H),
        q_(call.wide_D),
        bias_(kTile * call.wide_H),
        z_(kTile * call.wide_H),
        events_(kTile * 2 * call.wide_D) {
    if (!call.deeper.empty()) values_.emplace_back(kTile * call.wide_H);
    for (const auto& layer : call.deeper) values_.emplace_back(kTile * layer.wide_out);
  }

 protected:
  const Call<T>& call_;
  const Packed<S>& to_hidden_;
  const Both<S>& both_;
  std::vector<S> joined_, q_, bias_, z_, events_;
  std::vector<std::vector<S>> values_;  // of each layer for a tile, where there are deeper ones

  void open_target(int64_t row) {
    call_.loops.widen(call_.q + row * call_.D, 1, call_.D, call_.wide_D, q_.data());
  }

  void copy_bias(int64_t row, S* to) const {
    std::copy(call_.bias + row * call_.H, call_.bias + (row + 1) * call_.H, to);
  }

  void open_row(int64_t row) {
    open_target(row);
    copy_bias(row, bias_.data());
    call_.loops.join_by_row(to_hidden_.panels, q_.data(), joined_.data());
  }

  // A tile of the rows' events beside their products with the targets, and biases for each.
  Events<S> open_rows(const std::vector<int64_t>& rows) {
    const int64_t step = 2 * call_.wide_D;
    int64_t events = 0;
    for (const int64_t row : rows) {
      const int64_t count = call_.count(row);
      S* to = events_.data() + events * step;
      open_target(row);
      call_.loops.widen(call_.e + call_.begin(row) * call_.D, count, call_.D, step, to);
      call_.loops.add_products({to, step, count, call_.D, call_.wide_D}, q_.data(),
                               to + call_.wide_D);
      for (int64_t v = 0; v < count; ++v)
        copy_bias(row, bias_.data() + (events + v) * call_.wide_H);
      events += count;
    }
    return {events_.data(), step, events, call_.D, call_.wide_D};
  }

  // Of a tile, the events from one on that belong to one row.
  static Events<S> part(const Events<S>& events, int64_t first, int64_t count) {
    return {events.e + first * events.step, events.step, count, events.numbers, events.width};
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

  // C = A * B of `rows` rows, steps in numbers.
  void multiply(const S* a, int64_t a_step, const std::vector<S>& b, int64_t rows, int64_t columns,
                int64_t depth, S* c, int64_t c_step) const {
    const void* packed = b.data();
    call_.kernels.multiply(
        {a, bytes(a_step), true, packed, rows, columns, depth, c, c_step, false, {}});
  }

  // z of a tile, before its scale and bias, and the values of all layers where there are deeper
  // ones. Where biases are apart, so are the events' products.
  void find_values(const Events<S>& events, const Hidden<S>& hidden) {
    const bool apart = hidden.step != 0;
    multiply(events.e, events.step, apart ? both_.forward : joined_, events.count, call_.H,
             apart ? events.step : call_.D, z_.data(), call_.wide_H);
    if (call_.deeper.empty()) return;
    const Loops<T>& loops = call_.loops;
    loops.activate_scaled(events, hidden, z_.data(), values_[0].data());
    for (size_t i = 0; i < call_.deeper.size(); ++i) {
      const Layer<S>& layer = call_.deeper[i];
      S* to = values_[i + 1].data();
      multiply(values_[i].data(), layer.wide_in, layer.forward, events.count, layer.out, layer.in,
               to, layer.wide_out);
      loops.activate_deeper(layer.bias.data(), events.count, layer.out, layer.wide_out, to);
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

// target_attention on the CPU, a row of the batch at a time. The hidden layer's product with an
// event and with (event times target) is one product with the row's own weights, A + C diag(q), and
// half of the work; events are scaled behind it. What is [events, H] lives for a tile of events
// alone, in the cache. Every sum over rows is taken in blocks that the shapes alone determine.

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <type_traits>
#include <vector>

#include "jobs.h"
#include "memory.h"
#include "rows.h"

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

// The hidden layer of one row.
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
  void (*exp_all)(S*, int64_t);
  void (*add_weighted)(const Events<S>&, const S*, S*);
  void (*add_dots)(const Events<S>&, const S*, S*);
  void (*differentiate)(const Events<S>&, const Hidden<S>&, const S*, S*, S*, S*);
  void (*finish_events)(const Events<S>&, const S*, const S*, const S*, const S*, T*);
  void (*take_apart)(const S*, const S*, const S*, int64_t, int64_t, S*, S*, S*);
};

}  // namespace mmoe::attention

#define MMOE_KERNELS "target_attention_kernels.h"
#include "each_isa.h"

namespace mmoe {
namespace {

using attention::Events;
using attention::Hidden;
using attention::kBlockRows;
using attention::kMostBlocks;
using attention::kTile;
using attention::Loops;
using attention::Panels;
using attention::sum_of;

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

// A call's tensors. What reads or writes whole vectors is copied to where there are some.
template <typename T>
struct Call {
  using S = sum_of<T>;
  Loops<T> loops;
  const gemm::Kernels& kernels;
  int64_t B, D, H, wide_D, wide_H;  // wide: in whole vectors
  const T *e, *q;
  const int32_t* offsets;
  const S *weight, *bias;
  std::vector<S> score;
  bool softmax;

  Call(const Tensor& e_VD, const Tensor& offsets_B1, const Tensor& q_BD, const Tensor& weight_2DH,
       const Tensor& bias_BH, const Tensor& score_H, bool softmax)
      : loops(MMOE_BEST(loops<T>)()),
        kernels(*kernels_for(score_H.scalar_type())),
        B(q_BD.size(0)),
        D(q_BD.size(1)),
        H(score_H.size(0)),
        wide_D(whole(D)),
        wide_H(whole(H)),
        e(static_cast<const T*>(e_VD.const_data_ptr())),
        q(static_cast<const T*>(q_BD.const_data_ptr())),
        offsets(static_cast<const int32_t*>(offsets_B1.const_data_ptr())),
        weight(static_cast<const S*>(weight_2DH.const_data_ptr())),
        bias(static_cast<const S*>(bias_BH.const_data_ptr())),
        score(wide_H),
        softmax(softmax) {
    const auto* from = static_cast<const S*>(score_H.const_data_ptr());
    std::copy(from, from + H, score.begin());
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

struct Block {
  int64_t begin, end, work;
  double cost() const { return static_cast<double>(work); }
};

// Of a number of rows that the shapes alone determine, as gradients are added up block by block.
template <typename T>
std::vector<Block> blocks_of(const Call<T>& call) {
  const int64_t partials = 2 * call.H * call.wide_D + 1;
  const int64_t most = std::clamp<int64_t>(kMostPartials / partials, 1, kMostBlocks);
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
        events_(kTile * call.wide_D),
        scores_(kTile) {}

 protected:
  const Call<T>& call_;
  const Packed<S>& to_hidden_;
  std::vector<S> joined_, q_, bias_, z_, events_, scores_;

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

  // z of a tile, before its scale and bias.
  void multiply(const Events<S>& events) {
    call_.kernels.multiply({events.e,
                            events.step * static_cast<int64_t>(sizeof(S)),
                            true,
                            joined_.data(),
                            events.count,
                            call_.H,
                            call_.D,
                            z_.data(),
                            call_.wide_H,
                            false,
                            {}});
  }
};

template <typename T>
class Forward : Worker<T> {
 public:
  using S = sum_of<T>;
  using Worker<T>::call_;

  Forward(const Call<T>& call, const Packed<S>& to_hidden, S score_bias, S* weights, T* out)
      : Worker<T>(call, to_hidden),
        score_bias_(score_bias),
        weights_(weights),
        out_(out),
        sums_(call.wide_D) {}

  void run(int64_t row) {
    if (call_.count(row) > 0) {
      this->open_row(row);
      const Hidden<S> hidden = {this->bias_.data(), call_.score.data(), call_.wide_H, nullptr,
                                nullptr};
      this->for_tiles(row, [&](const Events<S>& events, int64_t first) {
        this->multiply(events);
        call_.loops.score(events, hidden, this->z_.data(), score_bias_, weights_ + first);
      });
      if (call_.softmax) normalise(weights_ + call_.begin(row), call_.count(row));
    }
    std::fill(sums_.begin(), sums_.end(), S(0));
    this->for_tiles(row, [&](const Events<S>& events, int64_t first) {
      call_.loops.add_weighted(events, weights_ + first, sums_.data());
    });
    for (int64_t d = 0; d < call_.D; ++d) out_[row * call_.D + d] = Row<T>::from_sum(sums_[d]);
  }

 private:
  S score_bias_;
  S* weights_;
  T* out_;
  std::vector<S> sums_;

  void normalise(S* weights, int64_t count) const {
    const S most = *std::max_element(weights, weights + count);
    for (int64_t v = 0; v < count; ++v) weights[v] -= most;
    call_.loops.exp_all(weights, count);
    S sum = 0;
    for (int64_t v = 0; v < count; ++v) sum += weights[v];
    for (int64_t v = 0; v < count; ++v) weights[v] /= sum;
  }
};

// Gradients of what all rows share, of one block of them.
template <typename S>
struct Partials {
  S *own, *product, *score, *score_bias;  // [H, wide_D] twice, [wide_H], 1
};

// What the backward pass reads beside the call, and where it writes.
template <typename T>
struct Gradients {
  using S = sum_of<T>;
  const T* grad;                    // [B, D]
  const S *grad_weights, *weights;  // [V]
  T *e, *q;
  S* bias;
};

template <typename T>
class Backward : Worker<T> {
 public:
  using S = sum_of<T>;
  using Worker<T>::call_;

  Backward(const Call<T>& call, const Packed<S>& to_hidden, const Packed<S>& to_events,
           const S* product, const Gradients<T>& to)
      : Worker<T>(call, to_hidden),
        to_events_(to_events),
        product_(product),
        to_(to),
        back_(call.H * call.wide_D),
        grad_(call.wide_D),
        grad_q_(call.wide_D),
        grad_bias_(call.wide_H),
        grad_joined_(call.H * call.wide_D),
        through_(kTile * call.wide_D),
        pulls_(kTile),
        columns_(kTile * call.H + call.loops.lanes),
        packed_(kTile * call.wide_D),
        room_(kTile * (call.loops.lanes + 1)) {}

  void run(int64_t row, const Partials<S>& partials) {
    const int64_t count = call_.count(row);
    std::fill(grad_q_.begin(), grad_q_.end(), S(0));
    std::fill(grad_bias_.begin(), grad_bias_.end(), S(0));
    if (count > 0) {
      this->open_row(row);
      call_.loops.join_by_column(to_events_.panels, this->q_.data(), back_.data());
      call_.loops.widen(to_.grad + row * call_.D, 1, call_.D, call_.wide_D, grad_.data());
      differentiate_weights(row);
      for (int64_t v = 0; v < count; ++v) *partials.score_bias += grad_weights_[v];
      std::fill(grad_joined_.begin(), grad_joined_.end(), S(0));
      this->for_tiles(row, [&](const Events<S>& events, int64_t first) {
        differentiate_tile(events, first, first - call_.begin(row), partials);
      });
      call_.loops.take_apart(grad_joined_.data(), product_, this->q_.data(), call_.H, call_.wide_D,
                             partials.own, partials.product, grad_q_.data());
    }
    for (int64_t d = 0; d < call_.D; ++d) to_.q[row * call_.D + d] = Row<T>::from_sum(grad_q_[d]);
    std::copy(grad_bias_.begin(), grad_bias_.begin() + call_.H, to_.bias + row * call_.H);
  }

 private:
  const Packed<S>& to_events_;
  const S* product_;  // [H, wide_D]: of the layer's weights, those of events times target
  Gradients<T> to_;
  std::vector<S> back_, grad_, grad_q_, grad_bias_, grad_joined_, through_, pulls_, columns_,
      packed_, room_, grad_weights_;

  // The gradients of the row's weights, before a softmax.
  void differentiate_weights(int64_t row) {
    const int64_t begin = call_.begin(row), count = call_.count(row);
    grad_weights_.assign(to_.grad_weights + begin, to_.grad_weights + begin + count);
    this->for_tiles(row, [&](const Events<S>& events, int64_t first) {
      call_.loops.add_dots(events, grad_.data(), grad_weights_.data() + first - begin);
    });
    if (!call_.softmax) return;
    const S* weights = to_.weights + begin;
    S mean = 0;
    for (int64_t v = 0; v < count; ++v) mean += weights[v] * grad_weights_[v];
    for (int64_t v = 0; v < count; ++v) grad_weights_[v] = weights[v] * (grad_weights_[v] - mean);
  }

  void differentiate_tile(const Events<S>& events, int64_t first, int64_t place,
                          const Partials<S>& partials) {
    const Hidden<S> hidden = {this->bias_.data(), call_.score.data(), call_.wide_H,
                              grad_bias_.data(), partials.score};
    S* grad_z = this->z_.data();
    this->multiply(events);
    call_.loops.differentiate(events, hidden, grad_weights_.data() + place, grad_z, room_.data(),
                              pulls_.data());
    const gemm::Kernels& k = call_.kernels;
    k.multiply({grad_z,
                call_.wide_H * static_cast<int64_t>(sizeof(S)),
                true,
                back_.data(),
                events.count,
                call_.D,
                call_.H,
                through_.data(),
                call_.wide_D,
                false,
                {}});
    call_.loops.finish_events(events, through_.data(), to_.weights + first, pulls_.data(),
                              grad_.data(), to_.e + first * call_.D);
    k.pack_columns(grad_z, call_.wide_H, events.count, call_.H, columns_.data());
    k.pack_b({events.e, events.step, false, false}, events.count, call_.D, packed_.data());
    k.multiply({columns_.data(),
                0,
                false,
                packed_.data(),
                call_.H,
                call_.D,
                events.count,
                grad_joined_.data(),
                call_.wide_D,
                true,
                {}});
  }
};

// Refuses offsets that do not rise from 0 to the number of events.
void check_bounds(const Tensor& offsets_B1, int64_t events) {
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

template <typename T>
void forward_as(const Call<T>& call, const Tensor& score_bias, const Tensor& weights,
                const Tensor& out) {
  using S = sum_of<T>;
  const auto packed = call.to_hidden();
  const S bias = *static_cast<const S*>(score_bias.const_data_ptr());
  const std::vector<Block> blocks = blocks_of(call);
  for_jobs(blocks, [&](int64_t begin, int64_t end) {
    Forward<T> forward(call, packed, bias, static_cast<S*>(weights.mutable_data_ptr()),
                       static_cast<T*>(out.mutable_data_ptr()));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t row = blocks[i].begin; row < blocks[i].end; ++row) forward.run(row);
    }
  });
}

// The products' half of the layer's weights, a row of events' numbers for each hidden one.
template <typename T>
std::vector<sum_of<T>> transposed_product(const Call<T>& call) {
  std::vector<sum_of<T>> to(call.H * call.wide_D);
  for (int64_t d = 0; d < call.D; ++d) {
    for (int64_t h = 0; h < call.H; ++h) {
      to[h * call.wide_D + d] = call.weight[(call.D + d) * call.H + h];
    }
  }
  return to;
}

// Adds the blocks' gradients up, in their order.
template <typename T>
void add_partials(const Call<T>& call, const std::vector<sum_of<T>>& partials, int64_t blocks,
                  int64_t size, sum_of<T>* weight, sum_of<T>* score, sum_of<T>* score_bias) {
  using S = sum_of<T>;
  std::vector<S> sums(size);
  torch::stable::parallel_for(0, size, 1 << 12, [&](int64_t begin, int64_t end) {
    for (int64_t block = 0; block < blocks; ++block) {
      const S* from = partials.data() + block * size;
      for (int64_t i = begin; i < end; ++i) sums[i] += from[i];
    }
  });
  const int64_t half = call.H * call.wide_D;
  for (int64_t part = 0; part < 2; ++part) {
    for (int64_t d = 0; d < call.D; ++d) {
      for (int64_t h = 0; h < call.H; ++h) {
        weight[(part * call.D + d) * call.H + h] = sums[part * half + h * call.wide_D + d];
      }
    }
  }
  std::copy(sums.begin() + 2 * half, sums.begin() + 2 * half + call.H, score);
  *score_bias = sums.back();
}

struct Results {
  Tensor e, q, weight, bias, score, score_bias;
};

template <typename T>
void backward_as(const Call<T>& call, const Tensor& grad, const Tensor& grad_weights,
                 const Tensor& weights, const Results& results) {
  using S = sum_of<T>;
  const auto to_hidden = call.to_hidden(), to_events = call.to_events();
  const std::vector<S> product = transposed_product(call);
  const Gradients<T> to = {static_cast<const T*>(grad.const_data_ptr()),
                           static_cast<const S*>(grad_weights.const_data_ptr()),
                           static_cast<const S*>(weights.const_data_ptr()),
                           static_cast<T*>(results.e.mutable_data_ptr()),
                           static_cast<T*>(results.q.mutable_data_ptr()),
                           static_cast<S*>(results.bias.mutable_data_ptr())};
  const std::vector<Block> blocks = blocks_of(call);
  const int64_t half = call.H * call.wide_D, size = 2 * half + call.wide_H + 1;
  std::vector<S> partials(static_cast<int64_t>(blocks.size()) * size);
  for_jobs(blocks, [&](int64_t begin, int64_t end) {
    Backward<T> backward(call, to_hidden, to_events, product.data(), to);
    for (int64_t i = begin; i < end; ++i) {
      S* own = partials.data() + i * size;
      const Partials<S> of_block = {own, own + half, own + 2 * half, own + size - 1};
      for (int64_t row = blocks[i].begin; row < blocks[i].end; ++row) backward.run(row, of_block);
    }
  });
  add_partials(call, partials, static_cast<int64_t>(blocks.size()), size,
               static_cast<S*>(results.weight.mutable_data_ptr()),
               static_cast<S*>(results.score.mutable_data_ptr()),
               static_cast<S*>(results.score_bias.mutable_data_ptr()));
}

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

std::tuple<Tensor, Tensor> target_attention(const Tensor& e_VD, const Tensor& offsets_B1,
                                            const Tensor& q_BD, const Tensor& weight_2DH,
                                            const Tensor& bias_BH, const Tensor& score_H,
                                            const Tensor& score_bias_1, bool softmax) {
  check_target_attention(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, score_H);
  check_score_bias(score_bias_1, score_H);
  const Tensor e = dense(e_VD), offsets = dense(offsets_B1), q = dense(q_BD);
  const Tensor weight = dense(weight_2DH), bias = dense(bias_BH), score = dense(score_H);
  check_bounds(offsets, e.size(0));
  const Tensor out = fresh(q, {q.size(0), q.size(1)}, q.scalar_type());
  const Tensor weights = fresh(score, {e.size(0)}, score.scalar_type());
  for_type(e.scalar_type(), [&](auto type) {
    using T = decltype(type);
    forward_as(Call<T>(e, offsets, q, weight, bias, score, softmax), score_bias_1, weights, out);
  });
  return {out, weights};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> target_attention_backward(
    const Tensor& grad_BD, const Tensor& grad_weights_V, const Tensor& e_VD,
    const Tensor& offsets_B1, const Tensor& q_BD, const Tensor& weight_2DH, const Tensor& bias_BH,
    const Tensor& score_H, const Tensor& weights_V, bool softmax) {
  check_target_attention(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, score_H);
  check_target_attention_grad(grad_BD, grad_weights_V, e_VD, q_BD, weights_V);
  const Tensor e = dense(e_VD), offsets = dense(offsets_B1), q = dense(q_BD);
  const Tensor weight = dense(weight_2DH), bias = dense(bias_BH), score = dense(score_H);
  const Tensor grad = dense(grad_BD), grad_weights = dense(grad_weights_V);
  const Tensor weights = dense(weights_V);
  check_bounds(offsets, e.size(0));
  const auto like = [](const Tensor& tensor) {
    return tensor.dim() == 1
               ? fresh(tensor, {tensor.size(0)}, tensor.scalar_type())
               : fresh(tensor, {tensor.size(0), tensor.size(1)}, tensor.scalar_type());
  };
  const Results to = {like(e),    like(q),     like(weight),
                      like(bias), like(score), fresh(score, {1}, score.scalar_type())};
  for_type(e.scalar_type(), [&](auto type) {
    using T = decltype(type);
    backward_as(Call<T>(e, offsets, q, weight, bias, score, softmax), grad, grad_weights, weights,
                to);
  });
  return {to.e, to.q, to.weight, to.bias, to.score, to.score_bias};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("target_attention", MMOE_BOX(target_attention));
  m.impl("target_attention_backward", MMOE_BOX(target_attention_backward));
}

// The backward pass of target_attention; see attention.h.

#include <torch/csrc/stable/library.h>

#include "attention.h"

namespace mmoe::attention {
namespace {

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
           const Both<S>& both, const S* product, const Gradients<T>& to)
      : Worker<T>(call, to_hidden, both),
        to_events_(to_events),
        product_(product),
        to_(to),
        back_(call.H * call.wide_D),
        grad_(call.wide_D),
        grad_q_(call.wide_D),
        grad_bias_(kTile * call.wide_H),
        grad_joined_(call.H * call.wide_D),
        through_(kTile * 2 * call.wide_D),
        pulls_(kTile),
        places_(call),
        room_(kTile * (call.loops.lanes + 1)) {
    int64_t widest = call.wide_H, deepest = std::max(call.H, call.wide_D);
    for (const Layer<S>& layer : call.deeper) {
      widest = std::max(widest, layer.wide_out);
      deepest = std::max({deepest, layer.in, layer.wide_out});
    }
    columns_.resize(kTile * deepest + call.loops.lanes);
    packed_.resize(kTile * deepest);
    above_.resize(call.deeper.empty() ? 0 : kTile * widest);
    below_.resize(above_.size());
  }

  // `sums`: of the row's block.
  void run(int64_t row, S* sums) {
    const int64_t count = call_.count(row);
    std::fill(grad_bias_.begin(), grad_bias_.begin() + call_.wide_H, S(0));
    std::fill(grad_joined_.begin(), grad_joined_.end(), S(0));
    this->open_row(row);
    open_grad(row);
    call_.loops.join_by_column(to_events_.panels, this->q_.data(), back_.data());
    grad_weights_.assign(to_.grad_weights + call_.begin(row),
                         to_.grad_weights + call_.begin(row) + count);
    this->for_tiles(row, [&](const Events<S>& events, int64_t first) {
      call_.loops.add_dots(events, grad_.data(), grad_weights_.data() + first - call_.begin(row));
    });
    finish_weights(row, grad_weights_.data(), sums);
    this->for_tiles(row, [&](const Events<S>& events, int64_t first) {
      const S* grad = grad_weights_.data() + (first - call_.begin(row));
      differentiate(events, 0, grad, sums);
      S* through = through_.data();
      this->multiply(this->z_.data(), call_.wide_H, back_, events.count, call_.D, call_.H, through,
                     call_.wide_D);
      call_.loops.finish_events(events, through, to_.weights + first, pulls_.data(), grad_.data(),
                                call_.wide_D, to_.e + first * call_.D);
      add_products(this->z_.data(), call_.wide_H, call_.H, events.e, events.step, call_.D,
                   events.count, grad_joined_.data(), call_.wide_D);
    });
    call_.loops.take_apart(grad_joined_.data(), product_, this->q_.data(), call_.H, call_.wide_D,
                           sums, sums + places_.product, grad_q_.data());
    write(row, grad_bias_.data(), 1);
  }

  void run(const std::vector<int64_t>& rows, S* sums) {
    const Events<S> events = this->open_rows(rows);
    grad_weights_.resize(events.count);
    const auto for_parts = [&](const auto& run) {
      int64_t first = 0;
      for (const int64_t row : rows) {
        run(row, this->part(events, first, call_.count(row)), first);
        first += call_.count(row);
      }
    };
    for_parts([&](int64_t row, const Events<S>& part, int64_t first) {
      S* grad = grad_weights_.data() + first;
      std::copy(to_.grad_weights + call_.begin(row),
                to_.grad_weights + call_.begin(row) + part.count, grad);
      open_grad(row);
      call_.loops.add_dots(part, grad_.data(), grad);
      finish_weights(row, grad, sums);
    });
    if (events.count > 0) {
      const S* grad_z = this->z_.data();
      differentiate(events, call_.wide_H, grad_weights_.data(), sums);
      this->multiply(grad_z, call_.wide_H, this->both_.back, events.count, events.step, call_.H,
                     through_.data(), events.step);
      add_products(grad_z, call_.wide_H, call_.H, events.e, events.step, call_.D, events.count,
                   sums, call_.wide_D);
      add_products(grad_z, call_.wide_H, call_.H, events.e + call_.wide_D, events.step, call_.D,
                   events.count, sums + places_.product, call_.wide_D);
    }
    for_parts([&](int64_t row, const Events<S>& part, int64_t first) {
      S* through = through_.data() + first * events.step;
      std::fill(grad_q_.begin(), grad_q_.end(), S(0));
      this->open_target(row);
      open_grad(row);
      call_.loops.join_halves(part, this->q_.data(), through, grad_q_.data());
      call_.loops.finish_events(part, through, to_.weights + call_.begin(row),
                                pulls_.data() + first, grad_.data(), events.step,
                                to_.e + call_.begin(row) * call_.D);
      write(row, grad_bias_.data() + first * call_.wide_H, part.count);
    });
  }

 private:
  const Packed<S>& to_events_;
  const S* product_;  // [H, wide_D]: of the layer's weights, those of events times target
  Gradients<T> to_;
  std::vector<S> back_, grad_, grad_q_, grad_bias_, grad_joined_, through_, pulls_;
  Places<T> places_;
  std::vector<S> room_, columns_, packed_, above_, below_, grad_weights_;

  void open_grad(int64_t row) {
    call_.loops.widen(to_.grad + row * call_.D, 1, call_.D, call_.wide_D, grad_.data());
  }

  // From the gradients of a row's weights to those before a softmax, and of the score's bias.
  void finish_weights(int64_t row, S* grad, S* sums) const {
    const int64_t count = call_.count(row);
    if (call_.softmax) {
      const S* weights = to_.weights + call_.begin(row);
      S mean = 0;
      for (int64_t v = 0; v < count; ++v) mean += weights[v] * grad[v];
      for (int64_t v = 0; v < count; ++v) grad[v] = weights[v] * (grad[v] - mean);
    }
    for (int64_t v = 0; v < count; ++v) sums[places_.score_bias] += grad[v];
  }

  // What a row has a gradient of alone: its target, and its bias, the sum of `count` rows.
  void write(int64_t row, const S* grad_bias, int64_t count) {
    for (int64_t d = 0; d < call_.D; ++d) to_.q[row * call_.D + d] = Row<T>::from_sum(grad_q_[d]);
    S* to = to_.bias + row * call_.H;
    std::fill(to, to + call_.H, S(0));
    for (int64_t v = 0; v < count; ++v, grad_bias += call_.wide_H) {
      for (int64_t h = 0; h < call_.H; ++h) to[h] += grad_bias[h];
    }
  }

  // to[in, to_step] += from[count, in]^T * grads[count, out].
  void add_products(const S* from, int64_t from_step, int64_t in, const S* grads, int64_t step,
                    int64_t out, int64_t count, S* to, int64_t to_step) {
    const gemm::Kernels& k = call_.kernels;
    k.pack_columns(from, from_step, count, in, columns_.data());
    k.pack_b({grads, step, false, false}, count, out, packed_.data());
    k.multiply({columns_.data(), 0, false, packed_.data(), in, out, count, to, to_step, true, {}});
  }

  // From the scores down to what the first layer gives, whose gradient is then in above_.
  void differentiate_deeper(const S* grad, int64_t count, S* sums) {
    const Loops<T>& loops = call_.loops;
    loops.differentiate_score(this->values_.back().data(), call_.score.data(), grad, count,
                              call_.wide_N, sums + places_.score, above_.data());
    int64_t place = places_.score_bias;
    for (size_t i = call_.deeper.size(); i-- > 0;) {
      const Layer<S>& layer = call_.deeper[i];
      const S* values = this->values_[i].data();
      place -= (layer.in + 1) * layer.wide_out;
      add_products(values, layer.wide_in, layer.in, above_.data(), layer.wide_out, layer.out, count,
                   sums + place, layer.wide_out);
      loops.add_rows(above_.data(), count, layer.wide_out,
                     sums + place + layer.in * layer.wide_out);
      this->multiply(above_.data(), layer.wide_out, layer.back, count, layer.in, layer.out,
                     below_.data(), layer.wide_in);
      if (i > 0) loops.mask(values, count * layer.wide_in, below_.data());
      std::swap(above_, below_);
    }
  }

  // The gradients of a tile's products, in place of z.
  void differentiate(const Events<S>& events, int64_t bias_step, const S* grad, S* sums) {
    const Hidden<S> hidden = {this->bias_.data(), call_.score.data(), call_.wide_H,
                              bias_step,          grad_bias_.data(),  sums + places_.score};
    const Loops<T>& loops = call_.loops;
    const bool deep = !call_.deeper.empty(), apart = bias_step != 0;
    this->find_values(events, hidden);
    if (deep) differentiate_deeper(grad, events.count, sums);
    const auto run = deep ? (apart ? loops.differentiate_deep_apart : loops.differentiate_deep)
                          : (apart ? loops.differentiate_apart : loops.differentiate);
    run(events, hidden, grad, above_.data(), this->z_.data(), room_.data(), pulls_.data());
  }
};

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

struct Results {
  Tensor e, q, weight, bias;
  std::vector<Tensor> deep_weights, deep_biases;
  Tensor score, score_bias;
};

// Adds the blocks' gradients up, in their order.
template <typename S>
std::vector<S> add_up(const std::vector<S>& of_blocks, int64_t size) {
  std::vector<S> sums(size);
  const int64_t blocks = static_cast<int64_t>(of_blocks.size()) / size;
  torch::stable::parallel_for(0, size, 1 << 12, [&](int64_t begin, int64_t end) {
    for (int64_t block = 0; block < blocks; ++block) {
      const S* from = of_blocks.data() + block * size;
      for (int64_t i = begin; i < end; ++i) sums[i] += from[i];
    }
  });
  return sums;
}

template <typename T>
void write_sums(const Call<T>& call, const std::vector<sum_of<T>>& sums, const Results& to) {
  using S = sum_of<T>;
  const auto numbers = [](const Tensor& tensor) {
    return static_cast<S*>(tensor.mutable_data_ptr());
  };
  const Places<T> places(call);
  S* weight = numbers(to.weight);
  for (int64_t part = 0; part < 2; ++part) {
    for (int64_t d = 0; d < call.D; ++d) {
      for (int64_t h = 0; h < call.H; ++h) {
        *weight++ = sums[part * places.product + h * call.wide_D + d];
      }
    }
  }
  const S* from = sums.data() + places.score;
  std::copy(from, from + call.N, numbers(to.score));
  from = sums.data() + places.deeper;
  for (size_t i = 0; i < call.deeper.size(); ++i) {
    const Layer<S>& layer = call.deeper[i];
    for (int64_t row = 0; row < layer.in; ++row, from += layer.wide_out) {
      std::copy(from, from + layer.out, numbers(to.deep_weights[i]) + row * layer.out);
    }
    std::copy(from, from + layer.out, numbers(to.deep_biases[i]));
    from += layer.wide_out;
  }
  *numbers(to.score_bias) = sums.back();
}

template <typename T>
void backward_as(const Call<T>& call, const Tensor& grad, const Tensor& grad_weights,
                 const Tensor& weights, const Results& results) {
  using S = sum_of<T>;
  const auto to_hidden = call.to_hidden(), to_events = call.to_events();
  const auto both = call.both();
  const std::vector<S> product = transposed_product(call);
  const Gradients<T> to = {static_cast<const T*>(grad.const_data_ptr()),
                           static_cast<const S*>(grad_weights.const_data_ptr()),
                           static_cast<const S*>(weights.const_data_ptr()),
                           static_cast<T*>(results.e.mutable_data_ptr()),
                           static_cast<T*>(results.q.mutable_data_ptr()),
                           static_cast<S*>(results.bias.mutable_data_ptr())};
  const std::vector<Block> blocks = blocks_of(call);
  const int64_t size = Places<T>(call).size;
  std::vector<S> sums(static_cast<int64_t>(blocks.size()) * size);
  for_jobs(blocks, [&](int64_t begin, int64_t end) {
    Backward<T> backward(call, to_hidden, to_events, both, product.data(), to);
    for (int64_t i = begin; i < end; ++i) {
      const auto run = [&](const auto& rows) { backward.run(rows, sums.data() + i * size); };
      for_rows(call, blocks[i], run, run);
    }
  });
  write_sums(call, add_up(sums, size), results);
}

Tensor fresh_as(const Tensor& tensor) {
  return tensor.dim() == 1 ? fresh(tensor, {tensor.size(0)}, tensor.scalar_type())
                           : fresh(tensor, {tensor.size(0), tensor.size(1)}, tensor.scalar_type());
}

AttentionGradient target_attention_backward(
    const Tensor& grad_BD, const Tensor& grad_weights_V, const Tensor& e_VD,
    const Tensor& offsets_B1, const Tensor& q_BD, const Tensor& weight_2DH, const Tensor& bias_BH,
    const std::vector<Tensor>& deep_weights, const std::vector<Tensor>& deep_biases,
    const Tensor& score_N, const Tensor& weights_V, bool softmax) {
  const AttentionTensors read(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, deep_weights,
                              deep_biases, score_N, softmax);
  check_target_attention_grad(grad_BD, grad_weights_V, e_VD, q_BD, weights_V);
  const Tensor grad = dense(grad_BD), grad_weights = dense(grad_weights_V);
  const Tensor weights = dense(weights_V);
  check_bounds(read.offsets, read.e.size(0));
  Results to = {fresh_as(read.e),
                fresh_as(read.q),
                fresh_as(read.weight),
                fresh_as(read.bias),
                {},
                {},
                fresh_as(read.score),
                fresh(read.score, {1}, read.score.scalar_type())};
  for (const Tensor& one : read.deep_weights) to.deep_weights.push_back(fresh_as(one));
  for (const Tensor& one : read.deep_biases) to.deep_biases.push_back(fresh_as(one));
  for_type(read.e.scalar_type(), [&](auto type) {
    backward_as(Call<decltype(type)>(read), grad, grad_weights, weights, to);
  });
  return {to.e, to.q, to.weight, to.bias, to.deep_weights, to.deep_biases, to.score, to.score_bias};
}

}  // namespace
}  // namespace mmoe::attention

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("target_attention_backward", MMOE_BOX(attention::target_attention_backward));
}

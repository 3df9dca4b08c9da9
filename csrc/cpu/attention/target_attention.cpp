// The forward pass of target_attention; see attention.h.

#include <torch/csrc/stable/library.h>

#include "attention.h"

namespace mmoe::attention {
namespace {

template <typename T>
class Forward : Worker<T> {
 public:
  using S = sum_of<T>;
  using Worker<T>::call_;

  Forward(const Call<T>& call, const Packed<S>& to_hidden, const Both<S>& both, S score_bias,
          S* weights, T* out)
      : Worker<T>(call, to_hidden, both),
        score_bias_(score_bias),
        weights_(weights),
        out_(out),
        scores_(kTile),
        sums_(call.wide_D) {}

  void run(int64_t row) {
    this->open_row(row);
    this->for_tiles(
        row, [&](const Events<S>& events, int64_t first) { score(events, 0, weights_ + first); });
    if (call_.softmax) normalise(weights_ + call_.begin(row), call_.count(row));
    std::fill(sums_.begin(), sums_.end(), S(0));
    this->for_tiles(row, [&](const Events<S>& events, int64_t first) {
      call_.loops.add_weighted(events, weights_ + first, sums_.data());
    });
    write(row);
  }

  void run(const std::vector<int64_t>& rows) {
    const Events<S> events = this->open_rows(rows);
    if (events.count > 0) score(events, call_.wide_H, scores_.data());
    int64_t first = 0;
    for (const int64_t row : rows) {
      const int64_t count = call_.count(row);
      S* weights = weights_ + call_.begin(row);
      std::copy(scores_.data() + first, scores_.data() + first + count, weights);
      if (call_.softmax && count > 0) normalise(weights, count);
      std::fill(sums_.begin(), sums_.end(), S(0));
      call_.loops.add_weighted(this->part(events, first, count), weights, sums_.data());
      write(row);
      first += count;
    }
  }

 private:
  S score_bias_;
  S* weights_;
  T* out_;
  std::vector<S> scores_, sums_;

  void score(const Events<S>& events, int64_t bias_step, S* to) {
    const Hidden<S> hidden = {
        this->bias_.data(), call_.score.data(), call_.wide_H, bias_step, nullptr, nullptr};
    this->find_values(events, hidden);
    if (call_.deeper.empty()) {
      call_.loops.score(events, hidden, this->z_.data(), score_bias_, to);
    } else {
      call_.loops.score_deeper(this->values_.back().data(), events.count, call_.wide_N,
                               call_.score.data(), score_bias_, to);
    }
  }

  void write(int64_t row) {
    for (int64_t d = 0; d < call_.D; ++d) out_[row * call_.D + d] = Row<T>::from_sum(sums_[d]);
  }

  void normalise(S* weights, int64_t count) const {
    const S most = *std::max_element(weights, weights + count);
    for (int64_t v = 0; v < count; ++v) weights[v] -= most;
    call_.loops.exp_all(weights, count);
    S sum = 0;
    for (int64_t v = 0; v < count; ++v) sum += weights[v];
    for (int64_t v = 0; v < count; ++v) weights[v] /= sum;
  }
};

template <typename T>
void forward_as(const Call<T>& call, const Tensor& score_bias, const Tensor& weights,
                const Tensor& out) {
  using S = sum_of<T>;
  const auto to_hidden = call.to_hidden();
  const auto both = call.both();
  const S bias = *static_cast<const S*>(score_bias.const_data_ptr());
  const std::vector<Block> blocks = blocks_of(call);
  for_jobs(blocks, [&](int64_t begin, int64_t end) {
    Forward<T> forward(call, to_hidden, both, bias, static_cast<S*>(weights.mutable_data_ptr()),
                       static_cast<T*>(out.mutable_data_ptr()));
    for (int64_t i = begin; i < end; ++i) {
      const auto run = [&](const auto& rows) { forward.run(rows); };
      for_rows(call, blocks[i], run, run);
    }
  });
}

std::tuple<Tensor, Tensor> target_attention(const Tensor& e_VD, const Tensor& offsets_B1,
                                            const Tensor& q_BD, const Tensor& weight_2DH,
                                            const Tensor& bias_BH,
                                            const std::vector<Tensor>& deep_weights,
                                            const std::vector<Tensor>& deep_biases,
                                            const Tensor& score_N, const Tensor& score_bias_1,
                                            bool softmax) {
  const AttentionTensors read(e_VD, offsets_B1, q_BD, weight_2DH, bias_BH, deep_weights,
                              deep_biases, score_N, softmax);
  check_score_bias(score_bias_1, score_N);
  check_bounds(read.offsets, read.e.size(0));
  const Tensor out = fresh(read.q, {read.q.size(0), read.q.size(1)}, read.q.scalar_type());
  const Tensor weights = fresh(read.score, {read.e.size(0)}, read.score.scalar_type());
  for_type(read.e.scalar_type(),
           [&](auto type) { forward_as(Call<decltype(type)>(read), score_bias_1, weights, out); });
  return {out, weights};
}

}  // namespace
}  // namespace mmoe::attention

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("target_attention", MMOE_BOX(attention::target_attention));
}

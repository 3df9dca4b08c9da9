// The loops of target_attention around its products; see each_isa.h. Rows of sums are whole vectors
// wide, with zeros behind the last number, but for events, which may lie as the caller has them.

#include "../vectors.h"

namespace mmoe::MMOE_ISA {
namespace {

using attention::Events;
using attention::Hidden;
using attention::Loops;
using attention::Panels;

// Events in the type of the sums, in whole vectors.
template <typename T>
void widen(const T* from, int64_t rows, int64_t width, int64_t step, typename Row<T>::sum_t* to) {
  constexpr int64_t lanes = Lanes<typename Row<T>::sum_t>::count;
  for (int64_t row = 0; row < rows; ++row, from += width, to += step) {
    int64_t d = 0;
    for (; d + lanes <= width; d += lanes) store(to + d, load(from + d));
    if (d < width) store(to + d, load_some(from + d, width - d));
  }
}

// A row's own weights, own + product * q: q goes along the rows of a packed matrix,
template <typename S>
void join_by_row(const Panels<S>& p, const S* q, S* out) {
  for (int64_t first = 0; first < p.columns; first += p.panel) {
    const int64_t width = std::min(p.panel, p.columns - first);
    for (int64_t k = 0; k < p.rows; ++k) {
      const int64_t at = first * p.rows + k * width;
      for (int64_t n = 0; n < width; n += Lanes<S>::count) {
        store(out + at + n, load(p.own + at + n) + load(p.product + at + n) * q[k]);
      }
    }
  }
}

// or along its columns.
template <typename S>
void join_by_column(const Panels<S>& p, const S* q, S* out) {
  for (int64_t first = 0; first < p.columns; first += p.panel) {
    const int64_t width = std::min(p.panel, p.columns - first);
    for (int64_t k = 0; k < p.rows; ++k) {
      const int64_t at = first * p.rows + k * width;
      for (int64_t n = 0; n < width; n += Lanes<S>::count) {
        store(out + at + n, load(p.own + at + n) + load(p.product + at + n) * load(q + first + n));
      }
    }
  }
}

// 1 / the root of an event's mean square.
template <typename S>
MMOE_INLINE S scale_of(const S* e, const Events<S>& events) {
  typename Lanes<S>::vec sum = {};
  for (int64_t d = 0; d < events.width; d += Lanes<S>::count) sum += load(e + d) * load(e + d);
  const S squares = join_lanes<S>(sum, Sum{});
  return 1 / std::sqrt(squares / std::max<int64_t>(events.numbers, 1) + S(1e-6));
}

template <typename V>
MMOE_INLINE V relu(V z) {
  return z < 0 ? V{} : z;  // NaN stays NaN
}

template <typename S>
void score(const Events<S>& events, const Hidden<S>& hidden, const S* z, S bias, S* scores) {
  for (int64_t v = 0; v < events.count; ++v) {
    const S scale = scale_of(events.e + v * events.step, events);
    typename Lanes<S>::vec sum = {};
    for (int64_t h = 0; h < hidden.width; h += Lanes<S>::count) {
      const auto bias = load(hidden.bias + v * hidden.step + h);
      const auto x = load(z + v * hidden.width + h) * scale + bias;
      sum += relu(x) * load(hidden.score + h);
    }
    scores[v] = join_lanes<S>(sum, Sum{}) + bias;
  }
}

// The same in two steps, for what deeper layers read: the first layer's numbers,
template <typename S>
void activate_scaled(const Events<S>& events, const Hidden<S>& hidden, const S* z, S* out) {
  for (int64_t v = 0; v < events.count; ++v) {
    const S scale = scale_of(events.e + v * events.step, events);
    for (int64_t h = 0; h < hidden.width; h += Lanes<S>::count) {
      const int64_t at = v * hidden.width + h;
      store(out + at, relu(load(z + at) * scale + load(hidden.bias + v * hidden.step + h)));
    }
  }
}

// those of a deeper one, in place,
template <typename S>
void activate_deeper(const S* bias, int64_t count, int64_t numbers, int64_t width, S* z) {
  for (int64_t v = 0; v < count; ++v, z += width) {
    for (int64_t h = 0; h < width; h += Lanes<S>::count) {
      store(z + h, relu(load(z + h) + load(bias + h)));
    }
    // Where a number is infinite, its product with the zeros behind the last one is none
    std::fill(z + numbers, z + width, S(0));
  }
}

// and the score of the last.
template <typename S>
void score_deeper(const S* values, int64_t count, int64_t width, const S* score, S bias,
                  S* scores) {
  for (int64_t v = 0; v < count; ++v, values += width) {
    typename Lanes<S>::vec sum = {};
    for (int64_t h = 0; h < width; h += Lanes<S>::count) sum += load(values + h) * load(score + h);
    scores[v] = join_lanes<S>(sum, Sum{}) + bias;
  }
}

// The gradient of the last layer before its ReLU; adds to that of the scores.
template <typename S>
void differentiate_score(const S* values, const S* score, const S* grad, int64_t count,
                         int64_t width, S* grad_score, S* out) {
  for (int64_t h = 0; h < width; h += Lanes<S>::count) {
    auto sum = load(grad_score + h);
    const auto factor = load(score + h);
    for (int64_t v = 0; v < count; ++v) {
      const auto value = load(values + v * width + h);
      sum += value * grad[v];
      store(out + v * width + h, value > 0 ? factor * grad[v] : typename Lanes<S>::vec{});
    }
    store(grad_score + h, sum);
  }
}

// That of a deeper layer before its ReLU, in place.
template <typename S>
void mask(const S* values, int64_t count, S* grad) {
  for (int64_t i = 0; i < count; i += Lanes<S>::count) {
    store(grad + i, load(values + i) > 0 ? load(grad + i) : typename Lanes<S>::vec{});
  }
}

template <typename S>
void add_rows(const S* rows, int64_t count, int64_t width, S* sums) {
  for (int64_t v = 0; v < count; ++v, rows += width) {
    for (int64_t h = 0; h < width; h += Lanes<S>::count)
      store(sums + h, load(sums + h) + load(rows + h));
  }
}

// C vectors of the sum of events at a time.
template <typename S, int C>
MMOE_INLINE void add_columns(const Events<S>& events, const S* weights, int64_t d, S* sums) {
  constexpr int64_t lanes = Lanes<S>::count;
  typename Lanes<S>::vec sum[C];
  for (int c = 0; c < C; ++c) sum[c] = load(sums + d + c * lanes);
  for (int64_t v = 0; v < events.count; ++v) {
    const S* e = events.e + v * events.step + d;
    for (int c = 0; c < C; ++c) sum[c] += load(e + c * lanes) * weights[v];
  }
  for (int c = 0; c < C; ++c) store(sums + d + c * lanes, sum[c]);
}

template <typename S>
void add_weighted(const Events<S>& events, const S* weights, S* sums) {
  constexpr int64_t lanes = Lanes<S>::count;
  int64_t d = 0;
  for (; d + 4 * lanes <= events.width; d += 4 * lanes) add_columns<S, 4>(events, weights, d, sums);
  for (; d < events.width; d += lanes) add_columns<S, 1>(events, weights, d, sums);
}

template <typename S>
void add_dots(const Events<S>& events, const S* grad, S* dots) {
  for (int64_t v = 0; v < events.count; ++v) {
    const S* e = events.e + v * events.step;
    typename Lanes<S>::vec sum = {};
    for (int64_t d = 0; d < events.width; d += Lanes<S>::count) sum += load(e + d) * load(grad + d);
    dots[v] += join_lanes<S>(sum, Sum{});
  }
}

// From z, the products of the events as they are, to the gradients of these products, in place;
// adds to that of the bias, of all events together or of each (Apart). What comes from above is
// grad[v] * score, and the scores' gradient is added to as well, or (Deep) `above`. pulls[v]
// becomes what the event itself is multiplied by for what its scale does: -scale^3 <gradient of z,
// z> / D.
template <typename S, bool Deep, bool Apart>
void differentiate(const Events<S>& events, const Hidden<S>& hidden, const S* grad, const S* above,
                   S* z, S* room, S* pulls) {
  constexpr int64_t lanes = Lanes<S>::count;
  using vec = typename Lanes<S>::vec;
  S* scales = room + events.count * lanes;
  for (int64_t v = 0; v < events.count; ++v) {
    scales[v] = scale_of(events.e + v * events.step, events);
    store(room + v * lanes, vec{});
  }
  for (int64_t h = 0; h < hidden.width; h += lanes) {
    vec bias = Apart ? vec{} : load(hidden.bias + h);
    const vec score = Deep ? vec{} : load(hidden.score + h);
    vec grad_bias = Apart ? vec{} : load(hidden.grad_bias + h);
    vec grad_score = Deep ? vec{} : load(hidden.grad_score + h);
    for (int64_t v = 0; v < events.count; ++v) {
      const int64_t at = v * hidden.width + h;
      if (Apart) bias = load(hidden.bias + at);
      const vec product = load(z + at), x = product * scales[v] + bias;
      if (!Deep) grad_score += relu(x) * grad[v];
      const vec from_above = Deep ? load(above + at) : score * grad[v];
      const vec grad_z = x > 0 ? from_above : vec{};
      if (Apart) {
        store(hidden.grad_bias + at, grad_z);
      } else {
        grad_bias += grad_z;
      }
      store(room + v * lanes, load(room + v * lanes) + grad_z * product);
      store(z + at, grad_z * scales[v]);
    }
    if (!Apart) store(hidden.grad_bias + h, grad_bias);
    if (!Deep) store(hidden.grad_score + h, grad_score);
  }
  for (int64_t v = 0; v < events.count; ++v) {
    const S along = join_lanes<S>(load(room + v * lanes), Sum{});
    pulls[v] = -along * scales[v] * scales[v] * scales[v] / std::max<int64_t>(events.numbers, 1);
  }
}

// grad_e = what came through the layer + weight * grad + pull * e.
template <typename T>
void finish_events(const Events<typename Row<T>::sum_t>& events,
                   const typename Row<T>::sum_t* through, const typename Row<T>::sum_t* weights,
                   const typename Row<T>::sum_t* pulls, const typename Row<T>::sum_t* grad,
                   int64_t through_step, T* out) {
  constexpr int64_t lanes = Lanes<typename Row<T>::sum_t>::count;
  for (int64_t v = 0; v < events.count; ++v, out += events.numbers) {
    const auto* e = events.e + v * events.step;
    for (int64_t d = 0; d < events.width; d += lanes) {
      const auto sum = load(through + v * through_step + d) + load(grad + d) * weights[v] +
                       load(e + d) * pulls[v];
      if (d + lanes <= events.numbers) {
        store(out + d, sum);
      } else {
        store_some(out + d, sum, events.numbers - d);
      }
    }
  }
}

// For events beside their products with the target: `through` has what came back to the one and, a
// half behind it, to the other. Adds to the target's gradient.
template <typename S>
void join_halves(const Events<S>& events, const S* q, S* through, S* grad_q) {
  constexpr int64_t lanes = Lanes<S>::count;
  for (int64_t v = 0; v < events.count; ++v, through += events.step) {
    const S* e = events.e + v * events.step;
    for (int64_t d = 0; d < events.width; d += lanes) {
      const auto of_product = load(through + events.width + d);
      store(grad_q + d, load(grad_q + d) + of_product * load(e + d));
      store(through + d, load(through + d) + of_product * load(q + d));
    }
  }
}

// Events beside their products with the target.
template <typename S>
void add_products(const Events<S>& events, const S* q, S* products) {
  for (int64_t v = 0; v < events.count; ++v) {
    for (int64_t d = 0; d < events.width; d += Lanes<S>::count) {
      store(products + v * events.step + d, load(events.e + v * events.step + d) * load(q + d));
    }
  }
}

// From the gradient of a row's own weights [H, width] to those of what they are made of.
template <typename S>
void take_apart(const S* grad, const S* product, const S* q, int64_t rows, int64_t width,
                S* grad_own, S* grad_product, S* grad_q) {
  for (int64_t d = 0; d < width; d += Lanes<S>::count) {
    const auto factor = load(q + d);
    typename Lanes<S>::vec sum = {};
    for (int64_t at = d; at < rows * width; at += width) {
      const auto x = load(grad + at);
      store(grad_own + at, load(grad_own + at) + x);
      store(grad_product + at, load(grad_product + at) + x * factor);
      sum += load(product + at) * x;
    }
    store(grad_q + d, sum);
  }
}

template <typename T>
Loops<T> loops() {
  using S = typename Row<T>::sum_t;
  return {Lanes<S>::count,
          widen<T>,
          join_by_row<S>,
          join_by_column<S>,
          score<S>,
          activate_scaled<S>,
          activate_deeper<S>,
          score_deeper<S>,
          exp_all<S>,
          add_weighted<S>,
          add_dots<S>,
          differentiate_score<S>,
          mask<S>,
          add_rows<S>,
          differentiate<S, false, false>,
          differentiate<S, true, false>,
          differentiate<S, false, true>,
          differentiate<S, true, true>,
          join_halves<S>,
          add_products<S>,
          finish_events<T>,
          take_apart<S>};
}

}  // namespace
}  // namespace mmoe::MMOE_ISA

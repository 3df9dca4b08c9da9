// dense_combine on the CPU. Memory-bound: what counts is that each expert output is read once, in
// long runs. Rows go in blocks, and inside a block a few experts at a time are summed in registers.

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <type_traits>

#include "../checks.h"
#include "rows.h"

namespace mmoe {
namespace {

constexpr int64_t kBlockRows = 16;    // rows of one expert read in a run: 8 KiB of 128 floats
constexpr int64_t kBlockExperts = 8;  // streams the prefetcher follows at a time
constexpr int64_t kBlockGates = 4;    // sums held in registers

template <typename T>
struct Dense {
  const void* const* y;
  const int64_t* row_stride;
  const typename Row<T>::sum_t* weights;
  int64_t B, G, E, O;
};

// Sums of NG gates over a block of experts, for one row. With more experts than one block, sums
// wait in `held` between blocks.
template <typename T>
struct RowTask {
  const T* y[kBlockExperts];              // the block's experts
  const typename Row<T>::sum_t* weights;  // of the first gate and expert
  typename Row<T>::sum_t* held;           // null where one block holds all experts
  T* out;
  int64_t experts, E, O, padded;
  bool is_first, is_last;
};

// C vectors of numbers from `o` on. Where `part` is not 0, only that many numbers of the (single)
// vector exist; it is a constant in the hot loop.
template <typename T, int NG, int C>
MMOE_INLINE void add_experts(const RowTask<T>& t, int64_t o, int64_t part) {
  using R = Row<T>;
  using S = Row<typename R::sum_t>;
  typename R::vec sums[NG][C] = {};
  if (!t.is_first) {
    for (int i = 0; i < NG; ++i) {
      for (int c = 0; c < C; ++c) sums[i][c] = S::load(t.held + i * t.padded + o + c * R::lanes);
    }
  }
  for (int64_t e = 0; e < t.experts; ++e) {
    typename R::vec value[C];
    for (int c = 0; c < C; ++c) {
      const T* y = t.y[e] + o + c * R::lanes;
      value[c] = part ? load_part(y, part) : R::load(y);
    }
    for (int i = 0; i < NG; ++i) {
      for (int c = 0; c < C; ++c) sums[i][c] += t.weights[i * t.E + e] * value[c];
    }
  }
  for (int i = 0; i < NG; ++i) {
    for (int c = 0; c < C; ++c) {
      T* out = t.out + i * t.O + o + c * R::lanes;
      if (!t.is_last) {
        S::store(t.held + i * t.padded + o + c * R::lanes, sums[i][c]);
      } else if (part) {
        store_part(out, sums[i][c], part);
      } else {
        R::store(out, sums[i][c]);
      }
    }
  }
}

// Two vectors at a time (four for a single gate) hide the latency of the sums.
template <typename T, int NG>
MMOE_INLINE void forward_row(const RowTask<T>& t) {
  constexpr int C = NG == 1 ? 4 : 2;
  constexpr int64_t lanes = Row<T>::lanes;
  int64_t o = 0;
  for (; o + C * lanes <= t.O; o += C * lanes) add_experts<T, NG, C>(t, o, 0);
  for (; o + lanes <= t.O; o += lanes) add_experts<T, NG, 1>(t, o, 0);
  if (o < t.O) add_experts<T, NG, 1>(t, o, t.O - o);
}

template <typename T>
MMOE_INLINE void forward_block(const Dense<T>& d, int64_t begin, int64_t end,
                               typename Row<T>::sum_t* held, T* out) {
  RowTask<T> t;
  t.E = d.E;
  t.O = d.O;
  t.padded = (d.O + Row<T>::lanes - 1) / Row<T>::lanes * Row<T>::lanes;
  for (int64_t first = 0; first < d.E; first += kBlockExperts) {
    t.experts = std::min(d.E - first, kBlockExperts);
    t.is_first = first == 0;
    t.is_last = first + t.experts == d.E;
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t e = 0; e < t.experts; ++e) {
        t.y[e] = static_cast<const T*>(d.y[first + e]) + b * d.row_stride[first + e];
      }
      for (int64_t g = 0; g < d.G; g += kBlockGates) {
        t.weights = d.weights + (b * d.G + g) * d.E + first;
        t.held = held + ((b - begin) * d.G + g) * t.padded;
        t.out = out + (b * d.G + g) * d.O;
        switch (std::min(d.G - g, kBlockGates)) {
          case 1:
            forward_row<T, 1>(t);
            break;
          case 2:
            forward_row<T, 2>(t);
            break;
          case 3:
            forward_row<T, 3>(t);
            break;
          default:
            forward_row<T, 4>(t);
        }
      }
    }
  }
}

// A thread's room for the backward pass of one block of rows.
template <typename T>
struct Room {
  using sum_t = typename Row<T>::sum_t;
  std::vector<const sum_t*> grads;   // [G] of one sample
  std::vector<sum_t> weights, dots;  // [G]
  std::vector<sum_t> scratch;        // [G, lanes]
  std::vector<sum_t> widened;        // [kBlockRows, G, O], where T is narrower than its sums
  Room(int64_t G, int64_t O)
      : grads(G),
        weights(G),
        dots(G),
        scratch(G * Row<T>::lanes),
        widened(std::is_same_v<T, sum_t> ? 0 : kBlockRows * G * O) {}
};

// The gradients of a block of rows in the accumulation type: every expert reads them again.
template <typename T>
MMOE_INLINE const typename Row<T>::sum_t* widen(const T* from, int64_t count, Room<T>& room) {
  using R = Row<T>;
  if constexpr (std::is_same_v<T, typename R::sum_t>) {
    return from;
  } else {
    typename R::sum_t* to = room.widened.data();
    int64_t i = 0;
    for (; i + R::lanes <= count; i += R::lanes) {
      Row<typename R::sum_t>::store(to + i, R::load(from + i));
    }
    for (; i < count; ++i) to[i] = R::to_sum(from[i]);
    return to;
  }
}

template <typename T>
MMOE_INLINE void backward_block(const Dense<T>& d, int64_t begin, int64_t end, const T* grad,
                                void* const* grad_y, typename Row<T>::sum_t* grad_weights,
                                Room<T>& room) {
  using sum_t = typename Row<T>::sum_t;
  const int64_t GO = d.G * d.O;
  const sum_t* grads = widen(grad + begin * GO, (end - begin) * GO, room);
  for (int64_t e = 0; e < d.E; ++e) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t g = 0; g < d.G; ++g) {
        room.grads[g] = grads + (b - begin) * GO + g * d.O;
        room.weights[g] = d.weights[(b * d.G + g) * d.E + e];
      }
      backward_row_any<T, sum_t>({static_cast<const T*>(d.y[e]) + b * d.row_stride[e],
                                  static_cast<T*>(grad_y[e]) + b * d.O, room.grads.data(),
                                  room.weights.data(), room.dots.data(), room.scratch.data(), d.G,
                                  d.O});
      for (int64_t g = 0; g < d.G; ++g) grad_weights[(b * d.G + g) * d.E + e] = room.dots[g];
    }
  }
}

// target_clones takes plain functions, so each type has its own.
#define MMOE_DENSE(T)                                                                           \
  MMOE_CLONES void forward_clone(const Dense<T>& d, int64_t begin, int64_t end,                 \
                                 Row<T>::sum_t* held, T* out) {                                 \
    forward_block<T>(d, begin, end, held, out);                                                 \
  }                                                                                             \
  MMOE_CLONES void backward_clone(const Dense<T>& d, int64_t begin, int64_t end, const T* grad, \
                                  void* const* grad_y, Row<T>::sum_t* grad_weights,             \
                                  Room<T>& room) {                                              \
    backward_block<T>(d, begin, end, grad, grad_y, grad_weights, room);                         \
  }
MMOE_DENSE(float)
MMOE_DENSE(double)
MMOE_DENSE(bf16)
#undef MMOE_DENSE

template <typename T>
Dense<T> describe(const ExpertOutputs& y, const Tensor& weights) {
  using sum_t = typename Row<T>::sum_t;
  return {y.data.data(), y.row_stride.data(), static_cast<const sum_t*>(weights.const_data_ptr()),
          y.rows,        weights.size(1),     y.experts(),
          y.width};
}

template <typename T>
void forward(const ExpertOutputs& y, const Tensor& weights, const Tensor& out) {
  const Dense<T> d = describe<T>(y, weights);
  T* to = static_cast<T*>(out.mutable_data_ptr());
  const int64_t blocks = (d.B + kBlockRows - 1) / kBlockRows;
  const int64_t padded = (d.O + Row<T>::lanes - 1) / Row<T>::lanes * Row<T>::lanes;
  const int64_t held_numbers = d.E > kBlockExperts ? kBlockRows * d.G * padded : 0;
  const int64_t numbers = kBlockRows * d.O * (d.E + d.G);
  torch::stable::parallel_for(0, blocks, grain(numbers), [&](int64_t first, int64_t last) {
    std::vector<typename Row<T>::sum_t> held(held_numbers);
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockRows;
      forward_clone(d, begin, std::min(d.B, begin + kBlockRows), held.data(), to);
    }
  });
}

template <typename T>
void backward(const ExpertOutputs& y, const Tensor& weights, const Tensor& grad,
              const ExpertGradients& grad_y, const Tensor& grad_weights) {
  using sum_t = typename Row<T>::sum_t;
  const Dense<T> d = describe<T>(y, weights);
  const T* from = static_cast<const T*>(grad.const_data_ptr());
  auto* to = static_cast<sum_t*>(grad_weights.mutable_data_ptr());
  const int64_t blocks = (d.B + kBlockRows - 1) / kBlockRows;
  const int64_t numbers = kBlockRows * d.O * (2 * d.E + d.G);
  torch::stable::parallel_for(0, blocks, grain(numbers), [&](int64_t first, int64_t last) {
    Room<T> room(d.G, d.O);
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockRows;
      backward_clone(d, begin, std::min(d.B, begin + kBlockRows), from, grad_y.data.data(), to,
                     room);
    }
  });
}

Tensor dense_combine(const std::vector<Tensor>& y, const Tensor& weights_BGE) {
  const ExpertOutputs outputs(y);
  check_dense_combine(outputs, weights_BGE);
  const Tensor weights = dense(weights_BGE);
  const Tensor out = empty(y[0], {outputs.rows, weights.size(1), outputs.width}, outputs.type);
  switch (outputs.type) {
    case ScalarType::Double:
      forward<double>(outputs, weights, out);
      break;
    case ScalarType::BFloat16:
      forward<bf16>(outputs, weights, out);
      break;
    default:
      forward<float>(outputs, weights, out);
  }
  return out;
}

std::tuple<std::vector<Tensor>, Tensor> dense_combine_backward(const Tensor& grad_BGO,
                                                               const std::vector<Tensor>& y,
                                                               const Tensor& weights_BGE) {
  const ExpertOutputs outputs(y);
  check_dense_combine(outputs, weights_BGE);
  check_grad(grad_BGO, outputs.rows, weights_BGE.size(1), outputs.width, outputs.type);
  const Tensor weights = dense(weights_BGE), grad = dense(grad_BGO);
  const ExpertGradients grad_y(y);
  const Tensor grad_weights = empty_as(weights);
  switch (outputs.type) {
    case ScalarType::Double:
      backward<double>(outputs, weights, grad, grad_y, grad_weights);
      break;
    case ScalarType::BFloat16:
      backward<bf16>(outputs, weights, grad, grad_y, grad_weights);
      break;
    default:
      backward<float>(outputs, weights, grad, grad_y, grad_weights);
  }
  return {grad_y.tensors, grad_weights};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CPU, m) {
  m.impl("dense_combine", MMOE_BOX(dense_combine));
  m.impl("dense_combine_backward", MMOE_BOX(dense_combine_backward));
}

// The activations that are fused behind a product, for the CPU and for CUDA. No other headers:
// files that are compiled for one instruction set include this one.

#pragma once

namespace mmoe {

enum class Activation { none, relu, gelu, silu };

// Whether the gradient needs what went into the activation: ReLU's can be told from the result.
inline bool keeps_z(Activation activation) {
  return activation == Activation::gelu || activation == Activation::silu;
}

}  // namespace mmoe

// Checks and small helpers that the CPU and CUDA kernels share. A failed check throws
// std::invalid_argument, which arrives in Python as ValueError.

#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "activation.h"
#include "out_of_memory.h"

namespace mmoe {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename... Parts>
[[noreturn]] inline void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

// An argument as messages name it: x, or x[2] for one of a list.
struct Name {
  const char* text;
  int64_t index = -1;  // -1: not of a list
  Name(const char* text) : text(text) {}
  Name(const char* list, size_t index) : text(list), index(static_cast<int64_t>(index)) {}
};

inline std::ostream& operator<<(std::ostream& to, const Name& name) {
  to << name.text;
  return name.index < 0 ? to : to << '[' << name.index << ']';
}

// As Python prints it.
inline std::string type_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "torch.float32";
    case ScalarType::Double:
      return "torch.float64";
    case ScalarType::BFloat16:
      return "torch.bfloat16";
    case ScalarType::Half:
      return "torch.float16";
    case ScalarType::Int:
      return "torch.int32";
    case ScalarType::Long:
      return "torch.int64";
    case ScalarType::Bool:
      return "torch.bool";
    case ScalarType::Byte:
      return "torch.uint8";
    default:
      return "number " + std::to_string(static_cast<int>(type));
  }
}

// Of the types that operators make tensors of.
inline int64_t element_bytes(ScalarType type) {
  switch (type) {
    case ScalarType::Double:
    case ScalarType::Long:
      return 8;
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Byte:
    case ScalarType::Bool:
      return 1;
    default:
      return 4;
  }
}

inline bool is_float(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Double;
}

// The dtype in which sums are taken, and which the operators expect of weights.
inline ScalarType accumulate_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline void check_dim(Name name, const Tensor& tensor, int64_t dim) {
  if (tensor.dim() == dim) return;
  fail(name, ": expected ", dim, dim == 1 ? " dimension" : " dimensions", ", got ", tensor.dim());
}

inline void check_type(Name name, const Tensor& tensor, ScalarType type) {
  if (tensor.scalar_type() == type) return;
  fail(name, ": expected dtype ", type_name(type), ", got ", type_name(tensor.scalar_type()),
       "; use .to(", type_name(type), ")");
}

inline void check_float(Name name, const Tensor& tensor) {
  if (is_float(tensor.scalar_type())) return;
  fail(name, ": expected one of torch.float32, torch.bfloat16, torch.float64, got ",
       type_name(tensor.scalar_type()));
}

inline void check_size(Name name, const Tensor& tensor, int64_t dim, int64_t size) {
  if (tensor.size(dim) != size) {
    fail(name, ": expected size ", size, " in dimension ", dim, ", got ", tensor.size(dim));
  }
}

template <typename Sizes>
[[noreturn]] void fail_allocation(const Tensor& like, const Sizes& sizes, ScalarType type) {
  std::ostringstream asked;
  double bytes = static_cast<double>(element_bytes(type));
  for (const int64_t size : sizes) bytes *= static_cast<double>(size);
  asked << std::fixed << std::setprecision(0) << bytes << " bytes for a tensor of shape [";
  for (size_t i = 0; i < sizes.size(); ++i) asked << (i == 0 ? "" : ", ") << sizes[i];
  asked << "] in " << type_name(type);
  fail_allocation(like, asked.str());
}

inline Tensor empty(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type) {
  const std::vector<int64_t> shape(sizes);
  try {
    return torch::stable::new_empty(like, shape, type);
  } catch (const std::runtime_error&) {
    fail_allocation(like, shape, type);
  }
}

inline Tensor empty_as(const Tensor& tensor) {
  try {
    return torch::stable::new_empty(tensor, tensor.sizes());
  } catch (const std::runtime_error&) {
    fail_allocation(tensor, tensor.sizes(), tensor.scalar_type());
  }
}

inline Tensor dense_copy(const Tensor& tensor) {
  try {
    return torch::stable::contiguous(tensor);
  } catch (const std::runtime_error&) {
    fail_allocation(tensor, tensor.sizes(), tensor.scalar_type());
  }
}

inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : dense_copy(tensor);
}

// Rows, the last dimension, may lie apart, but the numbers of one row lie side by side.
inline Tensor with_whole_rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  // A row of one number may carry any stride.
  return tensor.stride(last) == 1 || tensor.size(last) <= 1 ? tensor : dense_copy(tensor);
}

// The two forms of dense_combine's `y`: E tensors [B, O], or one [E, B, O]. Rows may lie apart, but
// the numbers of one row lie side by side.
struct ExpertOutputs {
  std::vector<Tensor> kept;  // owns what `data` points to
  std::vector<const void*> data;
  std::vector<int64_t> row_stride;  // in elements
  ScalarType type;
  int64_t rows, width;

  explicit ExpertOutputs(const std::vector<Tensor>& y) {
    const bool stacked = y.size() == 1 && y[0].dim() == 3;
    if (y.empty() || (stacked && y[0].size(0) == 0)) {
      fail("y: expected at least one expert, got none");
    }
    type = y[0].scalar_type();
    for (size_t i = 0; i < y.size(); ++i) {
      const Tensor& tensor = y[i];
      const Name name = stacked ? Name("y") : Name("y", i);
      const int64_t last = stacked ? 2 : 1;
      check_dim(name, tensor, last + 1);
      check_float(name, tensor);
      check_type(name, tensor, type);
      rows = y[0].size(last - 1);
      width = y[0].size(last);
      check_size(name, tensor, last - 1, rows);
      check_size(name, tensor, last, width);
      kept.push_back(with_whole_rows(tensor));
    }
    if (stacked) {
      const Tensor& only = kept[0];
      const int64_t step = only.stride(0) * static_cast<int64_t>(only.element_size());
      for (int64_t e = 0; e < only.size(0); ++e) {
        data.push_back(static_cast<const char*>(only.const_data_ptr()) + e * step);
        row_stride.push_back(only.stride(1));
      }
    } else {
      for (const Tensor& tensor : kept) {
        data.push_back(tensor.const_data_ptr());
        row_stride.push_back(tensor.stride(0));
      }
    }
  }

  int64_t experts() const { return static_cast<int64_t>(data.size()); }
};

// Gradients in the form of `y`: contiguous tensors, and where each expert's part starts.
struct ExpertGradients {
  std::vector<Tensor> tensors;
  std::vector<void*> data;

  explicit ExpertGradients(const std::vector<Tensor>& y) {
    for (const Tensor& tensor : y) {
      tensors.push_back(empty_as(tensor));
      const Tensor& grad = tensors.back();
      const int64_t experts = grad.dim() == 3 ? grad.size(0) : 1;
      const int64_t step = experts == 0 ? 0 : grad.numel() / experts;
      for (int64_t e = 0; e < experts; ++e) {
        data.push_back(static_cast<char*>(grad.mutable_data_ptr()) +
                       e * step * static_cast<int64_t>(grad.element_size()));
      }
    }
  }
};

inline void check_dense_combine(const ExpertOutputs& y, const Tensor& weights) {
  check_dim("weights_BGE", weights, 3);
  check_type("weights_BGE", weights, accumulate_type(y.type));
  check_size("weights_BGE", weights, 0, y.rows);
  check_size("weights_BGE", weights, 2, y.experts());
}

inline void check_gated_combine(const Tensor& y, const Tensor& slots, const Tensor& weights) {
  check_dim("y_PO", y, 2);
  check_float("y_PO", y);
  check_dim("slots_BGK", slots, 3);
  check_type("slots_BGK", slots, ScalarType::Int);
  check_dim("weights_BGK", weights, 3);
  check_type("weights_BGK", weights, accumulate_type(y.scalar_type()));
  for (int64_t dim = 0; dim < 3; ++dim) check_size("weights_BGK", weights, dim, slots.size(dim));
}

inline void check_grad(const Tensor& grad, int64_t B, int64_t G, int64_t O, ScalarType type) {
  check_dim("grad_BGO", grad, 3);
  check_type("grad_BGO", grad, type);
  check_size("grad_BGO", grad, 0, B);
  check_size("grad_BGO", grad, 1, G);
  check_size("grad_BGO", grad, 2, O);
}

// P, the most pairs a plan can hold.
inline int64_t check_route_plan(const Tensor& experts, int64_t num_experts) {
  check_dim("experts_BGK", experts, 3);
  check_type("experts_BGK", experts, ScalarType::Int);
  constexpr int64_t most = std::numeric_limits<int32_t>::max();  // experts have int32 numbers
  if (num_experts < 1 || num_experts > most) {
    fail("num_experts: expected 1 to ", most, ", got ", num_experts);
  }
  const int64_t rows = experts.size(0);
  const int64_t pairs = std::min(experts.size(1) * experts.size(2), num_experts);
  if (rows > 0 && pairs > most / rows) {
    fail("experts_BGK: ", rows, " times ", pairs, " pairs do not fit in int32; split the batch");
  }
  return rows * pairs;
}

inline Activation activation_from(const std::string& name) {
  if (name == "none") return Activation::none;
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "silu") return Activation::silu;
  fail("activation: expected one of none, relu, gelu, silu, got ", name);
}

// The weights of a layer of every expert, beside rows of width `inputs`.
inline void check_layer(const Tensor& weight, const std::optional<Tensor>& bias, int64_t inputs,
                        ScalarType type) {
  check_dim("weight_EDH", weight, 3);
  if (weight.size(0) < 1) fail("weight_EDH: expected at least one expert, got none");
  check_size("weight_EDH", weight, 1, inputs);
  // float32 may stand beside bfloat16 rows.
  const ScalarType wide = accumulate_type(type);
  if (weight.scalar_type() != type && weight.scalar_type() != wide) {
    fail("weight_EDH: expected dtype ", type_name(wide),
         wide == type ? "" : " or " + type_name(type), " beside rows in ", type_name(type),
         ", got ", type_name(weight.scalar_type()));
  }
  if (!bias) return;
  check_dim("bias_EH", *bias, 2);
  check_type("bias_EH", *bias, weight.scalar_type());
  check_size("bias_EH", *bias, 0, weight.size(0));
  check_size("bias_EH", *bias, 1, weight.size(2));
}

inline void check_grouped_mm(const Tensor& x, const Tensor& offsets, const Tensor& weight,
                             const std::optional<Tensor>& bias, const char* x_name = "x_PD") {
  check_dim(x_name, x, 2);
  check_float(x_name, x);
  check_layer(weight, bias, x.size(1), x.scalar_type());
  check_dim("offsets_E1", offsets, 1);
  check_type("offsets_E1", offsets, ScalarType::Int);
  check_size("offsets_E1", offsets, 0, weight.size(0) + 1);
}

inline void check_offsets(const std::vector<int64_t>& offsets, int64_t rows) {
  if (offsets[0] != 0) fail("offsets_E1: expected the first offset to be 0, got ", offsets[0]);
  for (size_t e = 1; e < offsets.size(); ++e) {
    if (offsets[e] < offsets[e - 1] || offsets[e] > rows) {
      fail("offsets_E1: expected offsets that rise up to at most ", rows, " rows, got ",
           offsets[e - 1], " and then ", offsets[e], " for expert ", e - 1);
    }
  }
}

// Whether the experts' rows are one tensor [E, B, D].
inline bool is_stacked(const std::vector<Tensor>& x) { return x.size() == 1 && x[0].dim() == 3; }

// The experts' parts of one tensor.
inline std::vector<Tensor> apart(const Tensor& x_EBD) {
  std::vector<Tensor> parts;
  for (int64_t e = 0; e < x_EBD.size(0); ++e) {
    parts.push_back(torch::stable::select(x_EBD, 0, e));
  }
  return parts;
}

inline void check_dense_mm(const std::vector<Tensor>& x, const Tensor& weight,
                           const std::optional<Tensor>& bias) {
  if (x.empty()) fail("x: expected one tensor, or one per expert, got none");
  if (is_stacked(x)) {
    check_float("x", x[0]);
    check_layer(weight, bias, x[0].size(2), x[0].scalar_type());
    check_size("x", x[0], 0, weight.size(0));
    return;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const Name name("x", i);
    check_dim(name, x[i], 2);
    check_float(name, x[i]);
    check_type(name, x[i], x[0].scalar_type());
    check_size(name, x[i], 0, x[0].size(0));
    check_size(name, x[i], 1, x[0].size(1));
  }
  check_layer(weight, bias, x[0].size(1), x[0].scalar_type());
  if (x.size() != 1 && static_cast<int64_t>(x.size()) != weight.size(0)) {
    fail("x: expected one tensor or ", weight.size(0), ", one per expert, got ", x.size());
  }
}

inline void check_gate_mm(const Tensor& x, const Tensor& weight,
                          const std::optional<Tensor>& bias) {
  check_dim("x_BD", x, 2);
  check_float("x_BD", x);
  check_dim("weight_DN", weight, 2);
  check_type("weight_DN", weight, accumulate_type(x.scalar_type()));
  check_size("weight_DN", weight, 0, x.size(1));
  if (!bias) return;
  check_dim("bias_N", *bias, 1);
  check_type("bias_N", *bias, weight.scalar_type());
  check_size("bias_N", *bias, 0, weight.size(1));
}

inline void check_topk_gate(const Tensor& logits, const Tensor& visibility) {
  check_dim("logits_BGE", logits, 3);
  check_float("logits_BGE", logits);
  if (logits.size(2) == 0) fail("logits_BGE: expected at least one expert, got none");
  check_dim("visibility_GE", visibility, 2);
  check_type("visibility_GE", visibility, ScalarType::Bool);
  check_size("visibility_GE", visibility, 0, logits.size(1));
  check_size("visibility_GE", visibility, 1, logits.size(2));
}

inline void check_topk_gate_grad(const Tensor& grad, const Tensor& logits, const Tensor& experts) {
  check_dim("experts_BGK", experts, 3);
  check_type("experts_BGK", experts, ScalarType::Int);
  check_dim("grad_BGK", grad, 3);
  check_type("grad_BGK", grad, accumulate_type(logits.scalar_type()));
  for (int64_t dim = 0; dim < 3; ++dim) {
    if (dim < 2) check_size("experts_BGK", experts, dim, logits.size(dim));
    check_size("grad_BGK", grad, dim, experts.size(dim));
  }
}

inline void check_permute(const char* name, const Tensor& rows, const Tensor& rows_P,
                          const Tensor& slots_BGK) {
  check_dim(name, rows, 2);
  check_float(name, rows);
  check_dim("rows_P", rows_P, 1);
  check_type("rows_P", rows_P, ScalarType::Int);
  check_dim("slots_BGK", slots_BGK, 3);
  check_type("slots_BGK", slots_BGK, ScalarType::Int);
}

}  // namespace mmoe

// The operators' schemas, in one place. Each backend file registers its own kernels; fake kernels
// and autograd are attached in Python (mmoe/ops/), next to the public wrappers.
//
// Shapes: B samples, G gates, E experts, K picks of a gate, O output width, R routed pairs,
// P = B * min(G * K, E), D and H widths in and out of a layer. The contracts are written out in
// mmoe/ops/reference.py.

#include <Python.h>
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(mmoe, m) {
  m.def("route_plan(Tensor experts_BGK, int num_experts) -> (Tensor, Tensor, Tensor)");
  m.def("gated_combine(Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK) -> Tensor");
  m.def(
      "gated_combine_backward(Tensor grad_BGO, Tensor y_PO, Tensor slots_BGK, Tensor weights_BGK)"
      " -> (Tensor, Tensor)");
  m.def("dense_combine(Tensor[] y, Tensor weights_BGE) -> Tensor");
  m.def(
      "dense_combine_backward(Tensor grad_BGO, Tensor[] y, Tensor weights_BGE)"
      " -> (Tensor[], Tensor)");
  m.def(
      "topk_gate(Tensor logits_BGE, Tensor visibility_GE, int k, bool softmax_after)"
      " -> (Tensor, Tensor)");
  m.def(
      "topk_gate_backward(Tensor grad_BGK, Tensor logits_BGE, Tensor visibility_GE,"
      " Tensor experts_BGK, bool softmax_after) -> Tensor");
  m.def("permute(Tensor x_BD, Tensor rows_P, Tensor slots_BGK) -> Tensor");
  m.def("unpermute(Tensor y_PD, Tensor rows_P, Tensor slots_BGK) -> Tensor");
  m.def(
      "grouped_mm(Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH, Tensor? bias_EH,"
      " str activation) -> (Tensor, Tensor)");
  m.def(
      "grouped_mm_backward(Tensor grad_PH, Tensor x_PD, Tensor offsets_E1, Tensor weight_EDH,"
      " Tensor y_PH, Tensor z_PH, str activation, bool need_x, bool need_weight, bool need_bias)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "dense_mm(Tensor[] x, Tensor weight_EDH, Tensor? bias_EH, str activation)"
      " -> (Tensor[], Tensor[])");
  m.def(
      "dense_mm_backward(Tensor[] grad, Tensor[] x, Tensor weight_EDH, Tensor[] y, Tensor[] z,"
      " str activation, bool need_x, bool need_weight, bool need_bias)"
      " -> (Tensor[], Tensor, Tensor)");
  m.def("gate_mm(Tensor x_BD, Tensor weight_DN, Tensor? bias_N) -> Tensor");
  m.def(
      "gate_mm_backward(Tensor grad_BN, Tensor x_BD, Tensor weight_DN, bool need_x,"
      " bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)");
}

// Importing mmoe._C runs the registrations above; the module itself is empty.
extern "C" PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}

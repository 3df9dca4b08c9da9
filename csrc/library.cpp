// The operators' schemas, in one place. Each backend file registers its own kernels; fake kernels
// and autograd are attached in Python (mmoe/ops/), next to the public wrappers.
//
// Shapes: B samples, G gates, E experts, K picks of a gate, O output width, R routed pairs,
// P = B * min(G * K, E), D and H widths in and out of a layer; beside them those of exchange.h. The
// contracts are written out in mmoe/ops/reference.py and mmoe/ops/exchange/exchange_reference.py.

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
  m.def(
      "outbound_plan(Tensor experts_BGK, Tensor homes_E3, int num_ranks, int num_sources)"
      " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "pack_rows(Tensor[] sources, Tensor weights_BGK, Tensor rows_M, Tensor entries_Q,"
      " Tensor codes_Q, Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor");
  m.def(
      "pack_rows_backward(Tensor message, Tensor rows_M, Tensor rows_BGK, Tensor entries_Q,"
      " Tensor links_WL, int num_sources, int width, ScalarType dtype, ScalarType wire)"
      " -> (Tensor, Tensor)");
  m.def(
      "decode_picks(Tensor message, Tensor links_WL, int num_rows, int num_picks, int num_gates,"
      " int k, int num_experts, int width, ScalarType dtype, ScalarType wire)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "unpack_rows(Tensor message, Tensor rows_R, Tensor links_WL, int width, ScalarType dtype,"
      " ScalarType wire) -> Tensor");
  m.def(
      "unpack_rows_backward(Tensor grad_RD, Tensor grad_weights_NGK, Tensor slots_NGK,"
      " Tensor places_Q, Tensor links_WL, ScalarType wire, int num_bytes) -> Tensor");
  m.def(
      "return_plan(Tensor rows_R, Tensor offsets_E1, Tensor slots_NGK, Tensor links_WL)"
      " -> (Tensor, Tensor)");
  m.def(
      "pack_returns(Tensor y_RO, Tensor weights_NGK, Tensor back_R, Tensor back_NG,"
      " Tensor slots_NGK, int num_rows, ScalarType wire) -> Tensor");
  m.def(
      "pack_returns_backward(Tensor grad_ZO, Tensor y_RO, Tensor weights_NGK, Tensor back_R,"
      " Tensor back_NG, Tensor slots_NGK) -> (Tensor, Tensor)");
  m.def(
      "mix_returns(Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK, Tensor pairs_BGK,"
      " Tensor sums_BGK, Tensor links_WL, ScalarType dtype) -> Tensor");
  m.def(
      "mix_returns_backward(Tensor grad_BGO, Tensor back_ZO, Tensor weights_BGK, Tensor rows_BGK,"
      " Tensor pairs_BGK, Tensor sums_BGK, Tensor links_WL) -> (Tensor, Tensor)");
}

// Importing mmoe._C runs the registrations above; the module itself is empty.
extern "C" PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}

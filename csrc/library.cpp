// The operators' schemas, in one place. Each backend file registers its own kernels; fake kernels
// and autograd are attached in Python (mmoe/ops/), next to the public wrappers.
//
// Shapes: B samples, G gates, E experts, K picks of a gate, O output width, R routed pairs,
// P = B * min(G * K, E). The contracts are written out in mmoe/ops/reference.py.

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
}

// Importing mmoe._C runs the registrations above; the module itself is empty.
extern "C" PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}

// The module mmoe._C, which is empty: importing it runs the registrations of the kernels' files.
// What they register for is defined in Python (mmoe/ops/), each operator in its own file: schema,
// shapes and gradient; the contracts are written out in mmoe/ops/reference.py and
// mmoe/ops/exchange_reference.py.

#include <Python.h>

extern "C" PyMODINIT_FUNC PyInit__C(void) {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}

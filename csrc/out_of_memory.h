// What an allocator refuses arrives in Python as torch.OutOfMemoryError, with the operator's name
// and what was asked for. The stable ABI has no such error: its calls say that they failed, and no
// more.

#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

extern "C" {
// Of Python's limited API; here as kernels are compiled without its headers.
struct _object;
_object* PyImport_ImportModule(const char* name);
_object* PyObject_GetAttrString(_object* owner, const char* name);
void PyErr_SetString(_object* type, const char* text);
void Py_DecRef(_object* object);

// Why a call of the stable ABI failed last in this thread; null in a torch before 2.13.
__attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
}

// As pybind11 declares it, which turns C++ exceptions into Python's for PyTorch, and asks one of
// this class to set Python's error itself. Were it another class some day, RuntimeError would
// arrive, with the same words.
namespace pybind11 {
class __attribute__((visibility("default"))) builtin_exception : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual void set_error() const = 0;
};
}  // namespace pybind11

namespace mmoe {

class OutOfMemory : public pybind11::builtin_exception {
 public:
  using builtin_exception::builtin_exception;

  // Called with Python's lock held.
  void set_error() const override {
    _object* torch = PyImport_ImportModule("torch");
    if (torch == nullptr) return;  // the import's error is set
    _object* type = PyObject_GetAttrString(torch, "OutOfMemoryError");
    Py_DecRef(torch);
    if (type == nullptr) return;
    PyErr_SetString(type, what());
    Py_DecRef(type);
  }
};

inline std::string last_words() {
  if (torch_exception_get_what_without_backtrace == nullptr) return "";
  const char* words = torch_exception_get_what_without_backtrace();
  return words == nullptr ? "" : words;
}

inline bool tells_of_memory(const std::string& words) {
  for (const char* known : {"out of memory", "can't allocate memory", "not enough memory",
                            "Storage size calculation overflowed"}) {
    if (words.find(known) != std::string::npos) return true;
  }
  return false;
}

// Says of an error in a GPU's kernels, which the next call of the runtime meets whatever it is,
// that it is none of memory: throws it. Null where there are no CUDA kernels.
inline void (*check_gpu)() = nullptr;

// Throws what became of a call of PyTorch's that makes a tensor.
[[noreturn]] inline void fail_allocation(const torch::stable::Tensor& like,
                                         const std::string& asked) {
  const std::string words = last_words();
  if (!words.empty() && !tells_of_memory(words)) throw std::runtime_error(words);
  if (words.empty() && like.is_cuda() && check_gpu != nullptr) check_gpu();
  throw OutOfMemory("out of memory: " + asked + (words.empty() ? "" : ": " + words));
}

// Runs an operator's kernel, whose errors are to name it.
inline void run_named(const char* name, void (*kernel)(StableIValue*, uint64_t, uint64_t),
                      StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  try {
    kernel(stack, inputs, outputs);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(std::string(name) + ": " + error.what());
  } catch (const std::runtime_error& error) {
    // Of PyTorch's operators that a kernel calls
    const bool is_torch = std::string(error.what()).find("API call failed") != std::string::npos;
    const std::string words = is_torch ? last_words() : "";
    if (words.empty()) throw;
    if (tells_of_memory(words)) throw OutOfMemory(std::string(name) + ": out of memory: " + words);
    throw std::runtime_error(std::string(name) + ": " + words);
  }
}

}  // namespace mmoe

// TORCH_BOX for &mmoe::NAME, with errors that name it.
#define MMOE_BOX(name)                                                      \
  [](StableIValue* stack, uint64_t inputs, uint64_t outputs) {              \
    mmoe::run_named(#name, TORCH_BOX(&mmoe::name), stack, inputs, outputs); \
  }

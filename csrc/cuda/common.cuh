// What the CUDA kernels share: the current stream, packs of 16 bytes, sums over a warp.
// Nothing here waits for the device, so the operators may be captured in a CUDA graph.

#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "../checks.h"

namespace mmoe {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// An index out of range stops the kernel: like PyTorch's own, it shows up as a CUDA error later.
#define MMOE_DEVICE_CHECK(condition, text, value)               \
  do {                                                          \
    if (!(condition)) {                                         \
      printf("mmoe: " text ", got %lld\n", (long long)(value)); \
      __trap();                                                 \
    }                                                           \
  } while (0)

// Makes the tensor's device the current one, and gives its current stream.
class Launch {
 public:
  explicit Launch(const Tensor& tensor) : guard_(tensor.get_device_index()) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }
  cudaStream_t stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

// A number, where it fits in int32; else the error that `text` says.
template <typename... Text>
int32_t within_int32(int64_t number, const Text&... text) {
  if (number > std::numeric_limits<int32_t>::max()) fail(text...);
  return static_cast<int32_t>(number);
}

inline unsigned blocks_for(int64_t threads) {
  return within_int32((threads + kThreads - 1) / kThreads, "batch: too large for one CUDA launch");
}

// A kernel that was stopped leaves its error to the next call of the runtime: this one throws it.
inline void throw_gpu_error() {
  size_t free = 0, total = 0;
  STD_CUDA_CHECK(cudaMemGetInfo(&free, &total));
}
inline const bool kChecksGpu = (check_gpu = throw_gpu_error, true);

// Sets every byte. A tensor without numbers has no memory, which the runtime need not take.
inline void fill_bytes(const Tensor& tensor, int byte, cudaStream_t stream) {
  const int64_t bytes = tensor.numel() * static_cast<int64_t>(tensor.element_size());
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(bytes);
  STD_CUDA_CHECK(cudaMemsetAsync(tensor.mutable_data_ptr(), byte, size, stream));
}

inline std::string device_name(const Tensor& tensor) {
  if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
  return tensor.is_cpu() ? "cpu" : "another";
}

// Kernels read pointers: a tensor elsewhere would be an illegal access. One tensor of a call on a
// GPU is enough for PyTorch to choose these operators, so it may be any that is not.
inline void check_device(const Tensor& like, const char* like_name,
                         std::initializer_list<std::pair<Name, const Tensor*>> others) {
  if (!like.is_cuda()) {
    fail(like_name, ": expected device cuda as another argument, got ", device_name(like),
         "; move one with .to()");
  }
  for (const auto& [name, tensor] : others) {
    if (tensor->is_cuda() && tensor->get_device_index() == like.get_device_index()) continue;
    fail(name, ": expected device ", device_name(like), " as ", like_name, ", got ",
         device_name(*tensor), "; move one with .to()");
  }
}

inline void check_device(const Tensor& like, const char* like_name, const char* list,
                         const std::vector<Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_device(like, like_name, {{Name(list, i), &tensors[i]}});
  }
}

// Calls an operator of PyTorch's. The last argument of an out= variant is its result; unlike the
// others, those variants are left alone by autocast.
template <typename... Arguments>
Tensor call_aten(const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, sizeof...(Arguments)> stack{torch::stable::detail::from(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Without its history: what PyTorch's operators compute inside a kernel is not to be
// differentiated.
inline Tensor detach(const Tensor& tensor) { return call_aten("aten::detach", "", tensor); }

// Calls run with a value of the CUDA type that stands for a dtype.
template <typename Run>
void for_type(ScalarType type, const Run& run) {
  switch (type) {
    case ScalarType::Double:
      return run(double{});
    case ScalarType::BFloat16:
      return run(__nv_bfloat16{});
    default:
      return run(float{});
  }
}

template <typename T>
struct Sum {
  using type = float;
};
template <>
struct Sum<double> {
  using type = double;
};
template <typename T>
using sum_t = typename Sum<T>::type;

template <typename T>
__device__ inline sum_t<T> to_sum(T x) {
  return static_cast<sum_t<T>>(x);
}
template <>
__device__ inline float to_sum<__nv_bfloat16>(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ inline T from_sum(sum_t<T> x) {
  return static_cast<T>(x);
}
template <>
__device__ inline __nv_bfloat16 from_sum<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// V neighbours, moved by one instruction.
template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

template <typename T, int V>
__device__ inline Pack<T, V> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, V>*>(p);
}

template <typename T, int V>
__device__ inline void store_pack(T* p, const sum_t<T> (&values)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) pack.at[i] = from_sum<T>(values[i]);
  *reinterpret_cast<Pack<T, V>*>(p) = pack;
}

// Numbers in 16 bytes.
template <typename T>
constexpr int kPack = 16 / sizeof(T);

inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// The widest copy in bytes that fits rows of `width` numbers, `stride` apart.
template <typename T>
int copy_bytes(const void* data, int64_t stride, int64_t width) {
  const auto fits = [&](int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride * sizeof(T) % bytes == 0 &&
           width * sizeof(T) % bytes == 0;
  };
  for (const int bytes : {16, 8, 4}) {
    if (bytes >= static_cast<int>(sizeof(T)) && fits(bytes)) return bytes;
  }
  return sizeof(T);
}

// The order of the additions is fixed, so the result has the same bits in every run.
template <typename S>
__device__ inline S add_over_warp(S value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

}  // namespace mmoe

// Kernels that do what kernels must not, and a few that are right beside them: what the emulation
// is to notice, and what it is to let pass.

#include <cuda_bf16.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

#include "ptx.cuh"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int kNumbers = 64;  // threads of most probes, and what they write

// ---- threads that wait for each other ----

__global__ void neighbour(const float* in, float* out, bool waits) {
  __shared__ float numbers[kNumbers];
  const unsigned t = threadIdx.x;
  numbers[t] = in[t];
  if (waits) __syncthreads();
  out[t] = numbers[t == 0 ? 0 : t - 1];
}

__global__ void two_barriers(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 0;
}

__global__ void barrier_or_shuffle(float* out) {
  float value = 1;
  if (threadIdx.x == 7) {
    __syncthreads();
  } else {
    value = __shfl_xor_sync(~0u, value, 1);
  }
  out[threadIdx.x] = value;
}

__global__ void two_shuffles(float* out) {
  float value = 1;
  if (threadIdx.x % 2 == 0) {
    value = __shfl_xor_sync(~0u, value, 1);
  } else {
    value = __shfl_xor_sync(~0u, value, 2);
  }
  out[threadIdx.x] = value;
}

__global__ void leaves_before_shuffle(const float* in, float* out, unsigned who) {
  if (threadIdx.x == who) return;
  out[threadIdx.x] = __shfl_xor_sync(~0u, in[threadIdx.x], 1);
}

__global__ void leaves_before_barrier(const float* in, float* out) {
  if (threadIdx.x == 0) return;
  __syncthreads();
  out[threadIdx.x] = in[threadIdx.x];
}

// Of a block whose last warp is not whole: sums over warps, lane 3's number, who is odd, the least.
__global__ void whole_warps(const float* in, float* out) {
  const unsigned t = threadIdx.x;
  float sum = in[t];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  out[4 * t] = sum;
  out[4 * t + 1] = __shfl_sync(~0u, in[t], 3);
  out[4 * t + 2] = static_cast<float>(__popc(__ballot_sync(~0u, t % 2 == 1)));
  out[4 * t + 3] = static_cast<float>(__reduce_min_sync(~0u, 1000 - t));
}

__global__ void half_mask(const float* in, float* out) {
  out[threadIdx.x] = __shfl_xor_sync(0xffffu, in[threadIdx.x], 1);
}

// ---- asynchronous copies ----

__global__ void copies(const float* in, float* out, int waits) {
  extern __shared__ __align__(16) unsigned char shared[];
  float* numbers = reinterpret_cast<float*>(shared);
  const unsigned t = threadIdx.x;
  mmoe::copy_async<4>(numbers + t, in + t, true);
  mmoe::commit_copies();
  mmoe::copy_async<4>(numbers + kNumbers + t, in + t, t % 2 == 0);
  mmoe::commit_copies();
  if (waits == 1) mmoe::wait_copies<1>();
  if (waits == 2) mmoe::wait_copies<0>();
  __syncthreads();
  out[t] = numbers[kNumbers - 1 - t];
  out[kNumbers + t] = numbers[2 * kNumbers - 1 - t];
}

// The next copy may take the place only when all have read.
__global__ void overwrites(const float* in, float* out, bool waits) {
  extern __shared__ __align__(16) unsigned char shared[];
  float* numbers = reinterpret_cast<float*>(shared);
  const unsigned t = threadIdx.x;
  numbers[t] = in[t];
  __syncthreads();
  float value = 0;
  if (waits) {
    value = numbers[(t + 1) % kNumbers];
    __syncthreads();
  }
  mmoe::copy_async<4>(numbers + t, in + kNumbers + t, true);
  mmoe::commit_copies();
  if (!waits) value = numbers[(t + 1) % kNumbers];
  mmoe::wait_copies<0>();
  out[t] = value;
}

__global__ void copy_to(const float* in, float* out, int to, int from) {
  extern __shared__ __align__(16) unsigned char shared[];
  float* numbers = reinterpret_cast<float*>(shared);
  if (threadIdx.x == 0) mmoe::copy_async<16>(numbers + to, in + from, true);
  mmoe::wait_copies<0>();
  out[threadIdx.x] = 0;
}

// ---- memory ----

struct alignas(16) Four {
  float at[4];
};

__global__ void pack_from(const float* in, float* out, int from) {
  const Four four = *reinterpret_cast<const Four*>(in + from);
  out[threadIdx.x] = four.at[threadIdx.x % 4];
}

__global__ void pack_to(float* out, int to) {
  *reinterpret_cast<Four*>(out + to) = Four{};
  (void)threadIdx.x;
}

__global__ void write_at(float* out, int64_t at, float value) {
  if (threadIdx.x == 0) out[at] = value;
}

__global__ void read_at(const float* in, float* out, int64_t at) {
  out[threadIdx.x] = threadIdx.x == 0 ? in[at] : 0;
}

// A variable, and 64 bytes of the launch before it.
__global__ void beside_shared(float* out, int64_t to_variable, int64_t to_dynamic) {
  __shared__ float numbers[kNumbers];
  extern __shared__ __align__(16) unsigned char shared[];
  numbers[to_variable] = 1;
  reinterpret_cast<float*>(shared)[to_dynamic] = 1;
  out[threadIdx.x] = 0;
}

__global__ void unwritten(float* out) {
  __shared__ float numbers[kNumbers];
  __shared__ int whole[2][3];
  extern __shared__ __align__(16) unsigned char shared[];
  out[0] = numbers[5];
  out[1] = reinterpret_cast<const float*>(shared)[3];
  out[2] = static_cast<float>(whole[1][2]);
  whole[0][0] = 4;
  numbers[0] = 7;
  out[3] = numbers[0] * static_cast<float>(whole[0][0]);
}

__global__ void stops(const float* in, float* out) {
  if (threadIdx.x == 9) {
    printf("probe: expected nothing, got %d\n", static_cast<int>(in[9]));
    __trap();
  }
  out[threadIdx.x] = in[threadIdx.x];
}

__global__ void order_of_blocks(float* out, float* next) {
  out[blockIdx.x + gridDim.x * blockIdx.y] = atomicAdd(next, 1.0f);
}

__global__ void order_of_threads(float* out, float* next) {
  out[threadIdx.x] = atomicAdd(next, 1.0f);
}

// ---- tensor cores ----

// Four matrices of 8 x 8, one below the other; each lane writes the four words it receives.
template <bool kTransposed>
__global__ void matrices(const __nv_bfloat16* in, unsigned* out) {
  unsigned words[4];
  mmoe::load_matrices<kTransposed>(words, in + threadIdx.x * 8);
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = words[i];
}

// Each lane has four words of a, two of b, and four sums to add to.
__global__ void products(const unsigned* in, float* out) {
  const unsigned* mine = in + threadIdx.x * 6;
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = static_cast<float>(threadIdx.x * 4 + i);
  mmoe::multiply_add(sums, {mine[0], mine[1], mine[2], mine[3]}, mine[4], mine[5]);
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sums[i];
}

// ---- by name ----

template <typename T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

Tensor room(const Tensor& like, int64_t size, ScalarType type = ScalarType::Float) {
  return torch::stable::new_empty(like, std::vector<int64_t>{size}, type);
}

Tensor run_threads(const std::string& name, const Tensor& input, int64_t number) {
  const auto* in = data<const float>(input);
  const Tensor out = room(input, 4 * kNumbers);
  auto* to = data<float>(out);
  const int n = static_cast<int>(number);
  cudaStream_t stream = nullptr;
  if (name == "neighbour") neighbour<<<1, kNumbers, 0, stream>>>(in, to, n != 0);
  if (name == "two barriers") two_barriers<<<1, kNumbers, 0, stream>>>(to);
  if (name == "barrier or shuffle") barrier_or_shuffle<<<1, 32, 0, stream>>>(to);
  if (name == "two shuffles") two_shuffles<<<1, 32, 0, stream>>>(to);
  if (name == "leaves before shuffle") leaves_before_shuffle<<<1, 64, 0, stream>>>(in, to, n);
  if (name == "leaves before barrier") leaves_before_barrier<<<1, 64, 0, stream>>>(in, to);
  if (name == "whole warps") whole_warps<<<1, n, 0, stream>>>(in, to);
  if (name == "half mask") half_mask<<<1, 32, 0, stream>>>(in, to);
  if (name == "copies") copies<<<1, kNumbers, 8 * kNumbers, stream>>>(in, to, n);
  if (name == "overwrites") overwrites<<<1, kNumbers, 4 * kNumbers, stream>>>(in, to, n != 0);
  return out;
}

Tensor run_memory(const std::string& name, const Tensor& input, int64_t number) {
  const auto* in = data<const float>(input);
  const Tensor out = room(input, kNumbers);
  auto* to = data<float>(out);
  const int n = static_cast<int>(number);
  cudaStream_t stream = nullptr;
  if (name == "copy to") copy_to<<<1, 32, 64, stream>>>(in, to, n, 0);
  if (name == "copy from") copy_to<<<1, 32, 64, stream>>>(in, to, 0, n);
  if (name == "pack from") pack_from<<<1, 32, 0, stream>>>(in, to, n);
  if (name == "pack to") pack_to<<<1, 32, 0, stream>>>(to, n);
  if (name == "write out") write_at<<<1, 32, 0, stream>>>(to, number, 1);
  if (name == "write in") write_at<<<1, 32, 0, stream>>>(data<float>(input), number, -1);
  if (name == "read in") read_at<<<1, 32, 0, stream>>>(in, to, number);
  if (name == "unwritten") unwritten<<<1, 1, 64, stream>>>(to);
  if (name == "shared variable") beside_shared<<<1, 1, 64, stream>>>(to, number, 0);
  if (name == "shared of the launch") beside_shared<<<1, 1, 64, stream>>>(to, 0, number);
  if (name == "stops") stops<<<1, 32, 0, stream>>>(in, to);
  return out;
}

// `number` is what is launched too large or too small.
Tensor run_launches(const std::string& name, const Tensor& input, int64_t number) {
  const Tensor out = room(input, kNumbers);
  auto *to = data<float>(out), *next = data<float>(input);
  const auto n = static_cast<unsigned>(number);
  cudaStream_t stream = nullptr;
  if (name == "threads") order_of_threads<<<1, n, 0, stream>>>(to, next);
  if (name == "blocks") order_of_blocks<<<n, 1, 0, stream>>>(to, next);
  if (name == "plane of blocks") order_of_blocks<<<dim3(n, 3), 1, 0, stream>>>(to, next);
  if (name == "rows of blocks") write_at<<<dim3(1, n), 1, 0, stream>>>(to, 0, 1);
  if (name == "shared") write_at<<<1, 1, n, stream>>>(to, 0, 1);
  if (name == "reserved") {
    STD_CUDA_CHECK(cudaFuncSetAttribute(write_at, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(n)));
    write_at<<<1, 1, n, stream>>>(to, 0, 1);
  }
  return out;
}

Tensor run_tensor_cores(const std::string& name, const Tensor& input, int64_t) {
  const Tensor out = room(input, 128, name == "mma" ? ScalarType::Float : ScalarType::Int);
  cudaStream_t stream = nullptr;
  const auto* in = data<const __nv_bfloat16>(input);
  auto* words = data<unsigned>(out);
  if (name == "ldmatrix") matrices<false><<<1, 32, 0, stream>>>(in, words);
  if (name == "ldmatrix, transposed") matrices<true><<<1, 32, 0, stream>>>(in, words);
  if (name == "mma") {
    products<<<1, 32, 0, stream>>>(data<const unsigned>(input), data<float>(out));
  }
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(emulated_probes, m) {
  for (const char* group : {"threads", "memory", "launches", "tensor_cores"}) {
    m.def((std::string(group) + "(str name, Tensor input, int number) -> Tensor").c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(emulated_probes, CPU, m) {
  m.impl("threads", TORCH_BOX(&run_threads));
  m.impl("memory", TORCH_BOX(&run_memory));
  m.impl("launches", TORCH_BOX(&run_launches));
  m.impl("tensor_cores", TORCH_BOX(&run_tensor_cores));
}

// A block's tile of a matrix product: sums = A * B, [BM, depth] times [depth, BN], left in shared
// memory for whoever writes it out. Parts of A and B travel through a ring of stages in shared
// memory while earlier ones are multiplied: on tensor cores in bfloat16, by fused multiply-add in
// float and double (true float32, never tf32). The order of the additions depends on nothing but
// `depth`, so an element has the same bits in every run and wherever its row lies.

#pragma once

#include "../common.cuh"
#include "ptx.cuh"

namespace mmoe {

template <typename T>
struct Tiling {
  static constexpr int kColumns = 128, kDepth = 16, kStages = 3;
};
template <>
struct Tiling<double> {
  static constexpr int kColumns = 64, kDepth = 16, kStages = 3;
};
template <>
struct Tiling<__nv_bfloat16> {
  static constexpr int kColumns = 128, kDepth = 32, kStages = 4;
};

// 16 bytes in smaller pieces, for widths that are no multiple. `left` numbers exist.
template <typename T>
__device__ void copy_pieces(T* to, const T* from, const T* safe, int left, int bytes) {
  constexpr int V = kPack<T>;
  if (bytes == 8) {
#pragma unroll
    for (int i = 0; i < V; i += V / 2) copy_async<8>(to + i, i < left ? from + i : safe, i < left);
  } else if (bytes == 4) {
    if constexpr (sizeof(T) <= 4) {
#pragma unroll
      for (int i = 0; i < V; i += V / 4) {
        copy_async<4>(to + i, i < left ? from + i : safe, i < left);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = i < left ? from[i] : from_sum<T>(0);
  }
}

// Starts the copy of 16 bytes, or of the `left` numbers of them that exist, and zeros.
template <typename T>
__device__ void copy_pack(T* to, const T* from, const T* safe, int left, int bytes) {
  if (bytes == 16) {
    copy_async<16>(to, left > 0 ? from : safe, left > 0);
  } else {
    copy_pieces(to, from, safe, left, bytes);
  }
}

// A part of a factor in shared memory, Rows of Columns numbers, and who copies what: a thread one
// pack in each round. Each row is followed by 16 bytes of nothing, against bank conflicts.
template <typename T, int Rows, int Columns>
struct Part {
  static constexpr int V = kPack<T>, kRowPacks = Columns / V, kStride = Columns + V;
  static constexpr int kSize = Rows * kStride, kRounds = Rows * kRowPacks / kThreads;
  static_assert(kRounds * kThreads == Rows * kRowPacks, "every thread copies as much");

  static __device__ int row(int round) { return (round * kThreads + threadIdx.x) / kRowPacks; }
  static __device__ int column(int round) {
    return (round * kThreads + threadIdx.x) % kRowPacks * V;
  }
};

// One factor of the product in shared memory. kAlongDepth says which way it lies: numbers side by
// side belong to one row of A or column of B, or to one step of the depth.
template <typename T, int Across, bool kAlongDepth>
struct Placed {
  static constexpr bool kAlong = kAlongDepth;
  static constexpr int kDepth = Tiling<T>::kDepth;
  using Copy = Part<T, kAlongDepth ? Across : kDepth, kAlongDepth ? kDepth : Across>;
  static constexpr int kStride = Copy::kStride, kSize = Copy::kSize;
};

// A factor that lies in memory as in shared memory, from the tile's first row (A) or column (B) on.
template <typename T, int Across, bool kAlongDepth>
struct Factor : Placed<T, Across, kAlongDepth> {
  using Copy = typename Placed<T, Across, kAlongDepth>::Copy;
  const T* data;
  int64_t stride;
  int across;  // rows of A or columns of B that exist
  int bytes;   // from copy_bytes

  __device__ Factor(const T* data, int64_t stride, int across, int bytes)
      : data(data), stride(stride), across(across), bytes(bytes) {}

  // The part of the depth from `from` on.
  __device__ void copy(T* to, int from, int depth) const {
    const int rows = kAlongDepth ? across : depth - from;
    const int columns = kAlongDepth ? depth - from : across;
    const T* first = data + (kAlongDepth ? from : from * stride);
#pragma unroll
    for (int round = 0; round < Copy::kRounds; ++round) {
      const int r = Copy::row(round), c = Copy::column(round);
      copy_pack(to + r * Copy::kStride + c, first + r * stride + c, first,
                r < rows ? columns - c : 0, bytes);
    }
  }
};

// 16 x 16 threads, each with a grid of sums. A thread's rows and columns lie where its reads from
// shared memory meet no bank conflict: in packs where the numbers lie across, else 16 apart.
template <typename T, int BM, class A, class B>
struct Fma {
  static constexpr int V = kPack<T>, TM = BM / 16, TN = Tiling<T>::kColumns / 16;
  // Of the loop over a part's depth. 64 sums and the 64 numbers of a step along the depth fill the
  // registers: unrolled, the compiler fetches later steps early and keeps them in local memory.
  static constexpr int kUnrolled = A::kAlong && B::kAlong && TM * TN >= 64 ? 1 : 4;
  T sums[TM][TN] = {};

  template <class F>
  static __device__ int place(int thread, int i) {
    if constexpr (F::kAlong) return thread + 16 * i;
    return (i / V * 16 + thread) * V + i % V;
  }

  // numbers[d][i]: V steps of the depth, from `from` on.
  template <class F, int N>
  static __device__ void read(T (&numbers)[V][N], const T* part, int from, int thread) {
    if constexpr (F::kAlong) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const auto pack = load_pack<T, V>(part + place<F>(thread, i) * F::kStride + from);
#pragma unroll
        for (int d = 0; d < V; ++d) numbers[d][i] = pack.at[d];
      }
    } else {
#pragma unroll
      for (int d = 0; d < V; ++d) {
#pragma unroll
        for (int i = 0; i < N; i += V) {
          const auto pack = load_pack<T, V>(part + (from + d) * F::kStride + place<F>(thread, i));
#pragma unroll
          for (int v = 0; v < V; ++v) numbers[d][i + v] = pack.at[v];
        }
      }
    }
  }

  __device__ void step(const T* a, const T* b) {
    const int row = threadIdx.x / 16, column = threadIdx.x % 16;
#pragma unroll kUnrolled
    for (int from = 0; from < Tiling<T>::kDepth; from += V) {
      T x[V][TM], y[V][TN];
      read<A>(x, a, from, row);
      read<B>(y, b, from, column);
#pragma unroll
      for (int d = 0; d < V; ++d) {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
          for (int j = 0; j < TN; ++j) sums[i][j] += x[d][i] * y[d][j];
        }
      }
    }
  }

  __device__ void store(T* to, int stride) const {
    const int row = threadIdx.x / 16, column = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        to[place<A>(row, i) * stride + place<B>(column, j)] = sums[i][j];
      }
    }
  }
};

// 2 x 4 warps, each with BM / 2 rows and 32 columns of sums.
template <int BM, class A, class B>
struct TensorCores {
  static constexpr int kDepth = Tiling<__nv_bfloat16>::kDepth;
  static constexpr int MT = BM / 32, NT = 4;
  float sums[MT][NT][4] = {};

  static __device__ int first_row() { return threadIdx.x / kWarp / 4 * (BM / 2); }
  static __device__ int first_column() { return threadIdx.x / kWarp % 4 * 32; }

  // The 16 x 16 part of A from (row, from) on, in the order of multiply_add.
  static __device__ void read_a(unsigned (&to)[4], const __nv_bfloat16* a, int row, int from) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (A::kAlong) {
      const int r = lane % 16, d = lane / 16 * 8;
      load_matrices<false>(to, a + (row + r) * A::kStride + from + d);
    } else {
      const int r = lane / 8 % 2 * 8, d = lane % 8 + lane / 16 * 8;
      load_matrices<true>(to, a + (from + d) * A::kStride + row + r);
    }
  }

  // The 16 x 16 part of B from (from, column) on: two pairs for multiply_add.
  static __device__ void read_b(unsigned (&to)[4], const __nv_bfloat16* b, int from, int column) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (B::kAlong) {
      const int c = lane % 8 + lane / 16 * 8, d = lane / 8 % 2 * 8;
      load_matrices<false>(to, b + (column + c) * B::kStride + from + d);
    } else {
      const int c = lane / 16 * 8, d = lane % 16;
      load_matrices<true>(to, b + (from + d) * B::kStride + column + c);
    }
  }

  __device__ void step(const __nv_bfloat16* a, const __nv_bfloat16* b) {
#pragma unroll
    for (int from = 0; from < kDepth; from += 16) {
      unsigned x[MT][4], y[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) read_a(x[i], a, first_row() + i * 16, from);
#pragma unroll
      for (int j = 0; j < NT / 2; ++j) read_b(y[j], b, from, first_column() + j * 16);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          multiply_add(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  __device__ void store(float* to, int stride) const {
    const int lane = threadIdx.x % kWarp;
    to += (first_row() + lane / 4) * stride + first_column() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair = {sums[i][j][half * 2], sums[i][j][half * 2 + 1]};
          *reinterpret_cast<float2*>(to + (i * 16 + half * 8) * stride + j * 8) = pair;
        }
      }
    }
  }
};

// Two blocks lie on a multiprocessor at a time, so that one computes where the other waits. Their
// registers are bounded at the kernels: 2 blocks * 256 threads * 128 are all 65,536 of sm_80 and
// later. Of shared memory sm_80 has 164 KiB (sm_90: 228), of which CUDA takes one for each block;
// the largest tiles, bfloat16 with both factors along the depth, take 4 stages * (128 + 128) rows *
// (32 + 8) numbers * 2 bytes = 80 KiB. sm_86 and sm_89 have 100 KiB: one block of such tiles.
constexpr int kBlocks = 2;
constexpr int kSharedOfBlock = (164 << 10) / kBlocks - (1 << 10);

// A and B are called `copy(to, from, depth)` once for each part of the depth, in order; A may look
// ahead.
template <typename T, int BM_, class A_, class B_>
struct GemmOf {
  static constexpr int BM = BM_, BN = Tiling<T>::kColumns, kStages = Tiling<T>::kStages;
  using A = A_;
  using B = B_;
  using Core =
      std::conditional_t<std::is_same_v<T, __nv_bfloat16>, TensorCores<BM, A, B>, Fma<T, BM, A, B>>;
  using S = sum_t<T>;
  static constexpr int kSumStride = BN + 8;  // of the result in shared memory
  static constexpr int kStageBytes = kStages * (A::kSize + B::kSize) * sizeof(T);
  static constexpr int kSumBytes = BM * kSumStride * sizeof(S);
  static constexpr int kSharedBytes = kStageBytes > kSumBytes ? kStageBytes : kSumBytes;
  static_assert(kSharedBytes <= kSharedOfBlock, "as many blocks fit on a multiprocessor");

  // All threads of the block; the result replaces the stages in `shared`.
  static __device__ const S* run(unsigned char* shared, A a, const B& b, int depth) {
    constexpr int kDepth = Tiling<T>::kDepth;
    T* stages = reinterpret_cast<T*>(shared);
    const int steps = (depth + kDepth - 1) / kDepth;
    const auto copy = [&](int step) {
      T* to = stages + step % kStages * (A::kSize + B::kSize);
      if (step < steps) {
        a.copy(to, step * kDepth, depth);
        b.copy(to + A::kSize, step * kDepth, depth);
      }
      commit_copies();  // an empty group too, so that the count below is right to the end
    };
    for (int step = 0; step < kStages - 1; ++step) copy(step);
    Core core;
    for (int step = 0; step < steps; ++step) {
      wait_copies<kStages - 2>();
      // This step's parts are there for all, and all are done with the step before it, whose place
      // the next copy takes.
      __syncthreads();
      copy(step + kStages - 1);
      const T* from = stages + step % kStages * (A::kSize + B::kSize);
      core.step(from, from + A::kSize);
    }
    __syncthreads();  // the groups that have not landed are empty
    S* sums = reinterpret_cast<S*>(shared);
    core.store(sums, kSumStride);
    __syncthreads();
    return sums;
  }
};

// Of two factors that lie in memory as they are read.
template <typename T, int BM, bool kAAlongDepth, bool kBAlongDepth>
using Gemm =
    GemmOf<T, BM, Factor<T, BM, kAAlongDepth>, Factor<T, Tiling<T>::kColumns, kBAlongDepth>>;

// More than 48 KiB of shared memory for a block must be asked for, and room for a second block
// beside it too: what is not carved out is L1. This touches no stream, so it may happen while a
// graph is captured.
template <class Kernel>
void reserve_shared(Kernel* kernel, int bytes) {
  STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
}

}  // namespace mmoe

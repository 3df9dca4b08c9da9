// What grouped_mm does to rows besides its products: the derivative of the activation with the
// gradient of the bias, and what surrounds a product of the library. A block per tile of an
// expert's rows and of 32 lanes' columns.

#include "../rowwise.cuh"
#include "grouped_mm.h"

namespace mmoe {
namespace {

template <typename T>
struct Derivative {
  Experts experts;
  const T* grad;
  const T* kept;
  Activation activation;
  int32_t H;
  T* dz;
  int32_t dz_width;
  sum_t<T>* sums;  // [tiles, H], or null
};

template <typename T, int V>
__global__ void differentiate_rows(Derivative<T> d, int32_t column_tiles) {
  const int32_t number = blockIdx.x / column_tiles;
  const Tile tile = find_tile<kTileRows>(d.experts, number);
  if (tile.rows <= 0 || tile.expert == d.experts.E) return;
  const int64_t row = tile.first;
  const DerivativeTile<T> part = {d.grad + row * d.H,
                                  d.kept + row * d.H,
                                  d.dz == nullptr ? nullptr : d.dz + row * d.dz_width,
                                  d.dz_width,
                                  d.sums == nullptr ? nullptr : d.sums + int64_t{number} * d.H,
                                  tile.rows,
                                  d.H,
                                  d.dz_width,
                                  d.activation};
  differentiate_tile<T, V>(part, blockIdx.x % column_tiles * (kWarp * V));
}

// A block per 32 columns of an expert's bias.
template <typename S, typename To>
__global__ void add_tiles(Experts experts, const S* sums, To* bias, int32_t H) {
  const int32_t column_tiles = (H + kWarp - 1) / kWarp, e = blockIdx.x / column_tiles;
  const int32_t tiles = (rows_of(experts, e).rows + kTileRows - 1) / kTileRows;
  const int64_t first = first_tile<kTileRows>(experts, e);
  add_rows(sums + first * H, tiles, H, blockIdx.x % column_tiles * kWarp, bias + int64_t{e} * H);
}

template <typename T, int V>
void launch_derivative(const Derivative<T>& d, cudaStream_t stream) {
  const int64_t column_tiles = (std::max(d.H, d.dz_width) + kWarp * V - 1) / (kWarp * V);
  const int64_t blocks = most_tiles<kTileRows>(d.experts) * column_tiles;
  differentiate_rows<T, V><<<blocks_for(blocks * kThreads), kThreads, 0, stream>>>(
      d, static_cast<int32_t>(column_tiles));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void differentiate_as(const Differentiation& p, const Tensor* bias, const Tensor& like,
                      cudaStream_t stream) {
  using S = sum_t<T>;
  const int64_t tiles = most_tiles<kTileRows>(p.experts);
  const Tensor room =
      empty(like, {bias == nullptr ? 0 : tiles, p.H}, accumulate_type(like.scalar_type()));
  S* sums = bias == nullptr ? nullptr : static_cast<S*>(room.mutable_data_ptr());
  const Derivative<T> d = {
      p.experts, static_cast<const T*>(p.grad), static_cast<const T*>(p.kept),    p.activation,
      p.H,       static_cast<T*>(p.dz),         p.dz == nullptr ? 0 : p.dz_width, sums};
  const bool packs = p.H % kPack<T> == 0 && d.dz_width % kPack<T> == 0 && aligned(p.grad) &&
                     aligned(p.kept) && aligned(p.dz);
  if (packs) {
    launch_derivative<T, kPack<T>>(d, stream);
  } else {
    launch_derivative<T, 1>(d, stream);
  }
  if (bias == nullptr) return;
  const int64_t blocks = int64_t{p.experts.E} * ((p.H + kWarp - 1) / kWarp);
  const unsigned grid = blocks_for(blocks * kThreads);
  if (bias->scalar_type() == p.type) {
    add_tiles<<<grid, kThreads, 0, stream>>>(p.experts, sums,
                                             static_cast<T*>(bias->mutable_data_ptr()), p.H);
  } else {
    add_tiles<<<grid, kThreads, 0, stream>>>(p.experts, sums,
                                             static_cast<S*>(bias->mutable_data_ptr()), p.H);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// A thread per 16 bytes of the result.
template <typename From>
__global__ void pad(const From* from, __nv_bfloat16* to, int64_t rows, int64_t columns,
                    int64_t new_rows, int64_t row_packs, int64_t packs) {
  constexpr int V = kPack<__nv_bfloat16>;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const int64_t c = i % row_packs * V, r = i / row_packs % new_rows;
  const int64_t matrix = i / row_packs / new_rows;
  const From* source = from + (matrix * rows + r) * columns + c;
  float values[V];
#pragma unroll
  for (int v = 0; v < V; ++v) values[v] = r < rows && c + v < columns ? to_sum(source[v]) : 0.0f;
  store_pack<__nv_bfloat16, V>(to + i * V, values);
}

template <int V>
__global__ void finish_product(Experts experts, const __nv_bfloat16* product, int64_t stride,
                               Finish d, bool only_tail, int32_t column_tiles) {
  const Tile tile = find_tile<kTileRows>(experts, blockIdx.x / column_tiles);
  const bool is_tail = tile.expert == experts.E;
  if (tile.rows <= 0 || (only_tail && !is_tail)) return;
  const int32_t column = (blockIdx.x % column_tiles * kWarp + threadIdx.x % kWarp) * V;
  if (column >= d.width) return;
  for (int32_t r = threadIdx.x / kWarp; r < tile.rows; r += kWarps) {
    const int64_t row = int64_t{tile.first} + r;
    float sums[V] = {};
    if (!is_tail) {
      const auto pack = load_pack<__nv_bfloat16, V>(product + row * stride + column);
#pragma unroll
      for (int v = 0; v < V; ++v) sums[v] = to_sum(pack.at[v]);
    }
    finish<__nv_bfloat16>(d, tile.expert, is_tail, row, column, sums);
  }
}

template <int V>
void launch_finish(const Experts& experts, const Tensor& product, const Finish& d,
                   cudaStream_t stream) {
  const auto* from = static_cast<const __nv_bfloat16*>(product.const_data_ptr());
  const bool only_tail = from == d.y && d.bias == nullptr && d.activation == Activation::none;
  const int64_t column_tiles = (d.width + kWarp * V - 1) / (kWarp * V);
  const int64_t blocks = most_tiles<kTileRows>(experts) * column_tiles;
  finish_product<V><<<blocks_for(blocks * kThreads), kThreads, 0, stream>>>(
      experts, from, product.stride(0), d, only_tail, static_cast<int32_t>(column_tiles));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

constexpr int64_t kChunk = 16 * kThreads;  // numbers for a block to cut

__global__ void cut(Experts experts, const __nv_bfloat16* from, int64_t expert_stride,
                    int64_t stride, __nv_bfloat16* to, int64_t H, int64_t numbers, int64_t chunks) {
  const int64_t e = blockIdx.x / chunks, first = blockIdx.x % chunks * kChunk;
  const bool is_empty = rows_of(experts, static_cast<int32_t>(e)).rows == 0;
  if (!is_empty && from == to) return;
  for (int64_t i = first + threadIdx.x; i < min(first + kChunk, numbers); i += kThreads) {
    to[e * numbers + i] =
        is_empty ? from_sum<__nv_bfloat16>(0) : from[e * expert_stride + i / H * stride + i % H];
  }
}

}  // namespace

void differentiate(const Differentiation& d, const Tensor* bias_EH, const Tensor& like,
                   cudaStream_t stream) {
  if (d.H == 0) return;
  for_type(d.type, [&](auto type) { differentiate_as<decltype(type)>(d, bias_EH, like, stream); });
}

Tensor pad_to_bf16(const Tensor& matrices, int64_t rows, int64_t columns, cudaStream_t stream) {
  const int64_t dims = matrices.dim(), old_rows = matrices.size(dims - 2);
  const int64_t old_columns = matrices.size(dims - 1), count = dims == 3 ? matrices.size(0) : 1;
  const Tensor padded = dims == 3 ? empty(matrices, {count, rows, columns}, ScalarType::BFloat16)
                                  : empty(matrices, {rows, columns}, ScalarType::BFloat16);
  const int64_t row_packs = columns / kPack<__nv_bfloat16>, packs = count * rows * row_packs;
  if (packs == 0) return padded;
  auto* to = static_cast<__nv_bfloat16*>(padded.mutable_data_ptr());
  const auto run = [&](auto* from) {
    pad<<<blocks_for(packs), kThreads, 0, stream>>>(from, to, old_rows, old_columns, rows,
                                                    row_packs, packs);
  };
  if (matrices.scalar_type() == ScalarType::Float) {
    run(static_cast<const float*>(matrices.const_data_ptr()));
  } else {
    run(static_cast<const __nv_bfloat16*>(matrices.const_data_ptr()));
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return padded;
}

void finish_rows(const Experts& experts, const Tensor& product_PN, const Finish& finish,
                 cudaStream_t stream) {
  if (experts.P == 0 || finish.width == 0) return;
  const bool packs = finish.packs && product_PN.stride(0) % kPack<__nv_bfloat16> == 0 &&
                     aligned(product_PN.const_data_ptr());
  if (packs) {
    launch_finish<kPack<__nv_bfloat16>>(experts, product_PN, finish, stream);
  } else {
    launch_finish<1>(experts, product_PN, finish, stream);
  }
}

void finish_weights(const Experts& experts, const Tensor& product_EDH, const Tensor& weight_EDH,
                    cudaStream_t stream) {
  const int64_t H = weight_EDH.size(2), numbers = weight_EDH.size(1) * H;
  if (numbers == 0) return;
  const auto* from = static_cast<const __nv_bfloat16*>(product_EDH.const_data_ptr());
  auto* to = static_cast<__nv_bfloat16*>(weight_EDH.mutable_data_ptr());
  const int64_t chunks = (numbers + kChunk - 1) / kChunk;
  cut<<<blocks_for(experts.E * chunks * kThreads), kThreads, 0, stream>>>(
      experts, from, product_EDH.stride(0), product_EDH.stride(1), to, H, numbers, chunks);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace mmoe

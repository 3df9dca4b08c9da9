// The products of grouped_mm that give a row for a row: x @ W[e] and dz @ W[e]^T. A block per tile
// of an expert's rows and of the result's columns.

#include "pair_rows.cuh"

namespace mmoe {
namespace {

// Fewer rows than this per expert, on average: small tiles waste less.
constexpr int64_t kFewRows = 192;

template <typename T>
struct Rows {
  Experts experts;
  PairTable<T> rows;
  const T* weight;
  int64_t weight_stride, expert_stride;
  int weight_bytes;  // per copy
  int32_t depth;
  Finish finish;
};

template <typename T, int BM, bool kTransposed>
using RowsGemm = GemmOf<T, BM, RowsOfPairs<T, BM>, Factor<T, Tiling<T>::kColumns, kTransposed>>;

template <class G, typename T, bool kTransposed>
__device__ const sum_t<T>* multiply_tile(const Rows<T>& d, const Tile& tile, int32_t column,
                                         unsigned char* shared) {
  const T* weight = d.weight + tile.expert * d.expert_stride +
                    column * (kTransposed ? d.weight_stride : int64_t{1});
  const typename G::A a(d.rows, tile.first, tile.rows);
  const typename G::B b(weight, d.weight_stride, d.finish.width - column, d.weight_bytes);
  return G::run(shared, a, b, d.depth);
}

template <typename T, int BM, bool kTransposed>
__global__ void __launch_bounds__(kThreads, kBlocks)
    multiply(const __grid_constant__ Rows<T> d, int32_t column_tiles) {
  using G = RowsGemm<T, BM, kTransposed>;
  constexpr int V = kPack<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  if (blockIdx.x == 0) check_offsets(d.experts);
  // Neighbouring blocks share the rows, and soon after the expert.
  const Tile tile = find_tile<BM>(d.experts, blockIdx.x / column_tiles);
  if (tile.rows <= 0) return;
  const int32_t column = blockIdx.x % column_tiles * G::BN;
  const bool is_tail = tile.expert == d.experts.E;
  const sum_t<T>* sums = nullptr;
  if (!is_tail) sums = multiply_tile<G, T, kTransposed>(d, tile, column, shared);
  for (int i = threadIdx.x; i < tile.rows * (G::BN / V); i += kThreads) {
    const int r = i / (G::BN / V), c = i % (G::BN / V) * V;
    if (column + c >= d.finish.width) continue;
    sum_t<T> part[V] = {};
    if (!is_tail) {
#pragma unroll
      for (int v = 0; v < V; ++v) part[v] = sums[r * G::kSumStride + c + v];
    }
    finish<T>(d.finish, tile.expert, is_tail, int64_t{tile.first} + r, column + c, part);
  }
}

template <typename T, int BM, bool kTransposed>
void launch(const Rows<T>& d, cudaStream_t stream) {
  using G = RowsGemm<T, BM, kTransposed>;
  const int64_t column_tiles = (d.finish.width + G::BN - 1) / G::BN;
  const unsigned blocks =
      within_int32(most_tiles<BM>(d.experts) * column_tiles, "x_PD: too large for one CUDA launch");
  const auto kernel = multiply<T, BM, kTransposed>;
  reserve_shared(kernel, G::kSharedBytes);
  kernel<<<blocks, kThreads, G::kSharedBytes, stream>>>(d, static_cast<int32_t>(column_tiles));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T, int BM>
void launch(const Rows<T>& d, bool transposed, cudaStream_t stream) {
  if (transposed) {
    launch<T, BM, true>(d, stream);
  } else {
    launch<T, BM, false>(d, stream);
  }
}

template <typename T>
void multiply_as(const RowsProduct& product, cudaStream_t stream) {
  const int64_t width = product.finish.width, depth = product.depth;
  const int64_t weight_rows = product.transposed ? width : depth;
  const int64_t weight_columns = product.transposed ? depth : width;
  const Table& weight = product.weight;
  const Rows<T> d = {product.experts,
                     PairTable<T>(product.rows, depth),
                     static_cast<const T*>(weight.data),
                     weight.stride,
                     weight_rows * weight.stride,
                     copy_bytes<T>(weight.data, weight.stride, weight_columns),
                     product.depth,
                     product.finish};
  if constexpr (std::is_same_v<T, double>) {
    launch<T, 64>(d, product.transposed, stream);
  } else if (product.experts.P < kFewRows * product.experts.E) {
    launch<T, 64>(d, product.transposed, stream);
  } else {
    launch<T, 128>(d, product.transposed, stream);
  }
}

}  // namespace

void multiply_rows(const RowsProduct& product, cudaStream_t stream) {
  if (product.experts.P == 0 || product.finish.width == 0) return;
  for_type(product.type, [&](auto type) { multiply_as<decltype(type)>(product, stream); });
}

}  // namespace mmoe

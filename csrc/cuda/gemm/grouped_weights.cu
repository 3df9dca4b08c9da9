// The gradient of grouped_mm's weights: x^T @ dz over the rows of each expert. A block per tile of
// the [D, H] matrix goes through the expert's rows; where that gives too few blocks to fill the
// GPU, several blocks take a part of the rows each, and a second kernel adds the parts up in order.

#include "pair_rows.cuh"

namespace mmoe {
namespace {

constexpr int64_t kFewestRows = 256;  // worth a block of their own, of an expert with average rows

template <typename T>
struct Weights {
  Experts experts;
  PairTable<T> x;
  const T* dz;
  int64_t dz_stride;
  int dz_bytes;  // per copy
  int32_t D, H, parts;
  void* out;      // [parts, E, D, H]
  bool as_sums;   // `out` holds sums, not T
  bool as_packs;  // H and `out` are multiples of 16 bytes
};

template <typename T>
constexpr int kRowTile = std::is_same_v<T, double> ? 64 : 128;

template <typename T>
using WeightsGemm =
    GemmOf<T, kRowTile<T>, ColumnsOfPairs<T, kRowTile<T>>, Factor<T, Tiling<T>::kColumns, false>>;

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    multiply(const __grid_constant__ Weights<T> d) {
  using G = WeightsGemm<T>;
  using S = sum_t<T>;
  constexpr int V = kPack<T>, kDepth = Tiling<T>::kDepth;
  extern __shared__ __align__(16) unsigned char shared[];
  const int32_t row_tiles = (d.D + G::BM - 1) / G::BM, column_tiles = (d.H + G::BN - 1) / G::BN;
  // Innermost the column, then the row, the part, the expert: neighbours share what they read.
  const int32_t column = blockIdx.x % column_tiles * G::BN;
  const int32_t row = blockIdx.x / column_tiles % row_tiles * G::BM;
  const int32_t task = blockIdx.x / column_tiles / row_tiles;
  const int32_t part = task % d.parts, e = task / d.parts;
  const Tile all = rows_of(d.experts, e);
  const int64_t steps = (all.rows + kDepth - 1) / kDepth;
  const int32_t from = static_cast<int32_t>(steps * part / d.parts) * kDepth;
  const int32_t end = min(static_cast<int32_t>(steps * (part + 1) / d.parts) * kDepth, all.rows);

  const int32_t first = all.first + from, depth = end - from;
  const typename G::A a(d.x, first, depth, row, d.D - row);
  const typename G::B b(d.dz + first * d.dz_stride + column, d.dz_stride, d.H - column, d.dz_bytes);
  const S* sums = G::run(shared, a, b, depth);
  const int64_t matrix = int64_t{part} * d.experts.E + e;
  for (int i = threadIdx.x; i < G::BM * (G::BN / V); i += kThreads) {
    const int r = i / (G::BN / V), c = i % (G::BN / V) * V;
    if (row + r >= d.D || column + c >= d.H) continue;
    S values[V];
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = sums[r * G::kSumStride + c + v];
    const int count = min(V, d.H - column - c);
    const int64_t at = (matrix * d.D + row + r) * d.H + column + c;
    if (d.as_sums) {
      store_some(static_cast<S*>(d.out) + at, values, count, d.as_packs);
    } else {
      store_some(static_cast<T*>(d.out) + at, values, count, d.as_packs);
    }
  }
}

// In the order of the parts.
template <typename To>
__global__ void add_parts(const sum_t<To>* from, To* to, int32_t parts, int64_t numbers) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= numbers) return;
  sum_t<To> sum = 0;
  for (int32_t part = 0; part < parts; ++part) sum += from[part * numbers + i];
  to[i] = from_sum<To>(sum);
}

int64_t multiprocessors() {
  int device = 0, count = 0;
  STD_CUDA_CHECK(cudaGetDevice(&device));
  STD_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// Enough parts for two blocks on every multiprocessor, as long as they are worth it.
int32_t choose_parts(const Experts& experts, int64_t blocks) {
  const int64_t wanted = (2 * multiprocessors() + blocks - 1) / blocks;
  const int64_t worthwhile = experts.P / (experts.E * kFewestRows);
  return static_cast<int32_t>(std::max<int64_t>(1, std::min(wanted, worthwhile)));
}

template <typename T>
void multiply_as(const WeightProduct& p, const Tensor& weight, cudaStream_t stream) {
  using G = WeightsGemm<T>;
  using S = sum_t<T>;
  const int64_t tiles = int64_t{(p.D + G::BM - 1) / G::BM} * ((p.H + G::BN - 1) / G::BN);
  const int32_t parts = choose_parts(p.experts, tiles * p.experts.E);
  const int64_t numbers = weight.numel();
  const unsigned blocks =
      within_int32(tiles * p.experts.E * parts, "weight_EDH: too large for one launch");
  const ScalarType sums = accumulate_type(p.type);
  const Tensor out = parts == 1 ? weight : empty(weight, {parts, numbers}, sums);
  const bool as_sums = parts > 1 || p.wide;
  const Weights<T> d = {p.experts,
                        PairTable<T>(p.x, p.D),
                        static_cast<const T*>(p.dz.data),
                        p.dz.stride,
                        copy_bytes<T>(p.dz.data, p.dz.stride, p.H),
                        p.D,
                        p.H,
                        parts,
                        out.mutable_data_ptr(),
                        as_sums,
                        p.H % kPack<T> == 0 && aligned(out.mutable_data_ptr())};
  reserve_shared(multiply<T>, G::kSharedBytes);
  multiply<T><<<blocks, kThreads, G::kSharedBytes, stream>>>(d);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  if (parts == 1) return;
  const S* from = static_cast<const S*>(out.const_data_ptr());
  if (p.wide) {
    add_parts<<<blocks_for(numbers), kThreads, 0, stream>>>(
        from, static_cast<S*>(weight.mutable_data_ptr()), parts, numbers);
  } else {
    add_parts<<<blocks_for(numbers), kThreads, 0, stream>>>(
        from, static_cast<T*>(weight.mutable_data_ptr()), parts, numbers);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

void multiply_weights(const WeightProduct& product, const Tensor& weight_EDH, cudaStream_t stream) {
  if (weight_EDH.numel() == 0) return;
  for_type(product.type,
           [&](auto type) { multiply_as<decltype(type)>(product, weight_EDH, stream); });
}

}  // namespace mmoe

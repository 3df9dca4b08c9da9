// gate_mm on CUDA: the product that gates decide by, in float whatever the rows are in, and out of
// reach of PyTorch's switch for TF32. bfloat16 rows stay what they are: beside them the weights (or
// the gradient of y) are three parts in bfloat16, side by side as columns of one product on tensor
// cores. Rows in float and double are multiplied by fused multiply-add.
//
// There are few outputs and many rows, so the outputs are the 64 rows of a block's tile, and the
// batch (for the weights' gradient: x's columns) its 128 columns. A sum's order depends on nothing
// but the sizes: a row's result has the same bits wherever it lies, and on every GPU.

#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>

#include "../rowwise.cuh"
#include "bf16_parts.cuh"
#include "gemm.cuh"

namespace mmoe {
namespace {

constexpr int kTile = 64;

template <typename T>
constexpr bool kSplits = std::is_same_v<T, __nv_bfloat16>;
// Outputs in a tile: of three parts each, of which one row of the tile is left over, or whole.
template <typename T>
constexpr int kOutputs = kSplits<T> ? kTile / kParts : kTile;

// The outputs' side of a product, [depth, columns], in tiles of 64 columns.
template <typename T>
struct Outputs {
  const T* data;
  int64_t columns;
  int32_t count, tiles;  // N outputs
  int bytes;             // per copy

  __device__ int32_t first(int32_t tile) const { return tile * kOutputs<T>; }
  __device__ int32_t in(int32_t tile) const { return min(kOutputs<T>, count - first(tile)); }
  template <class Factor>
  __device__ Factor factor(int64_t from, int32_t tile) const {
    const int64_t column = int64_t{tile} * kTile;
    const auto left = static_cast<int>(min(int64_t{kTile}, columns - column));
    return {data + from * columns + column, columns, left, bytes};
  }
};

// The sum of an output of the tile, in one of its columns.
template <typename T>
__device__ sum_t<T> sum_at(const sum_t<T>* sums, int stride, int output, int column) {
  const sum_t<T>* at = sums + output * stride + column;
  if constexpr (kSplits<T>) {
    constexpr int kNext = kOutputs<T>;
    return join_parts(at[0], at[kNext * stride], at[2 * kNext * stride]);
  } else {
    return at[0];
  }
}

template <typename T>
struct Scores {
  const T* x;
  Outputs<T> weight;
  const sum_t<T>* bias;  // or null
  sum_t<T>* y;
  int64_t B;
  int32_t D;
  int x_bytes;  // per copy
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) score(const __grid_constant__ Scores<T> d) {
  using G = Gemm<T, kTile, false, true>;
  extern __shared__ __align__(16) unsigned char shared[];
  // Neighbouring blocks share the rows.
  const int32_t tile = blockIdx.x % d.weight.tiles;
  const int64_t row = int64_t{blockIdx.x / d.weight.tiles} * G::BN;
  const auto rows = static_cast<int>(min(int64_t{G::BN}, d.B - row));
  const auto a = d.weight.template factor<typename G::A>(0, tile);
  const typename G::B b = {d.x + row * d.D, d.D, rows, d.x_bytes};
  const sum_t<T>* sums = G::run(shared, a, b, d.D);
  const int32_t first = d.weight.first(tile), outputs = d.weight.in(tile);
  for (int i = threadIdx.x; i < rows * outputs; i += kThreads) {
    const int r = i / outputs, n = i % outputs;
    sum_t<T> sum = sum_at<T>(sums, G::kSumStride, n, r);
    if (d.bias != nullptr) sum += d.bias[first + n];
    d.y[(row + r) * d.weight.count + first + n] = sum;
  }
}

template <typename T>
struct WeightSums {
  const T* x;
  Outputs<T> grad;
  sum_t<T>* out;  // [chunks, D, N]
  int64_t B, chunk;
  int32_t D, column_tiles;
  int x_bytes;  // per copy
};

// x^T @ grad over a chunk of the rows.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    sum_weights(const __grid_constant__ WeightSums<T> d) {
  using G = Gemm<T, kTile, false, false>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int32_t tile = blockIdx.x % d.grad.tiles, task = blockIdx.x / d.grad.tiles;
  const int32_t column = task % d.column_tiles * G::BN;
  const int64_t number = task / d.column_tiles, row = number * d.chunk;
  const auto a = d.grad.template factor<typename G::A>(row, tile);
  const typename G::B b = {d.x + row * d.D + column, d.D, d.D - column, d.x_bytes};
  const auto rows = static_cast<int>(min(d.chunk, d.B - row));
  const sum_t<T>* sums = G::run(shared, a, b, rows);
  const int32_t first = d.grad.first(tile), outputs = d.grad.in(tile);
  const int columns = min(G::BN, d.D - column);
  for (int i = threadIdx.x; i < columns * outputs; i += kThreads) {
    const int c = i / outputs, n = i % outputs;
    const int64_t at = (number * d.D + column + c) * d.grad.count + first + n;
    d.out[at] = sum_at<T>(sums, G::kSumStride, n, c);
  }
}

template <typename T>
struct RowGradients {
  const sum_t<T>* grad;
  const sum_t<T>* weight;
  T* out;
  int64_t B;
  int32_t D, N, column_tiles;
  int grad_bytes, weight_bytes;  // per copy
  bool packs;                    // D and `out` are multiples of 16 bytes
};

template <typename S>
constexpr int kRowTile = std::is_same_v<S, double> ? 64 : 128;

// grad @ W^T: two factors in float, so by fused multiply-add whatever the rows are in. The depth is
// N, so that up to some 64 outputs writing the result takes about as long as multiplying.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    differentiate_x(const __grid_constant__ RowGradients<T> d) {
  using S = sum_t<T>;
  using G = Gemm<S, kRowTile<S>, true, true>;
  constexpr int V = kPack<S>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int32_t column = blockIdx.x % d.column_tiles * G::BN;
  const int64_t row = int64_t{blockIdx.x / d.column_tiles} * G::BM;
  const auto rows = static_cast<int>(min(int64_t{G::BM}, d.B - row));
  const typename G::A a = {d.grad + row * d.N, d.N, rows, d.grad_bytes};
  const typename G::B b = {d.weight + int64_t{column} * d.N, d.N, d.D - column, d.weight_bytes};
  const S* sums = G::run(shared, a, b, d.N);
  for (int i = threadIdx.x; i < rows * (G::BN / V); i += kThreads) {
    const int r = i / (G::BN / V), c = i % (G::BN / V) * V;
    if (column + c >= d.D) continue;
    S values[V];
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = sums[r * G::kSumStride + c + v];
    const int count = min(V, d.D - column - c);
    store_some(d.out + (row + r) * d.D + column + c, values, count, d.packs);
  }
}

// A thread per number of the result, [rows, tiles * 64]: a tile's first parts, then its second
// ones.
__global__ void split(const float* from, __nv_bfloat16* to, int64_t numbers, int32_t columns,
                      int32_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= numbers) return;
  constexpr int kIn = kOutputs<__nv_bfloat16>;
  const int64_t row = i / columns;
  const int32_t column = i % columns, number = column % kTile / kIn;
  const int32_t n = column / kTile * kIn + column % kTile % kIn;
  const bool exists = number < kParts && n < count;
  to[i] = part_of(exists ? from[row * count + n] : 0.0f, exists ? number : 0);
}

// A block per chunk of rows and 32 columns: a row of the result per chunk.
template <typename S>
__global__ void add_chunks(const S* from, S* to, int64_t rows, int64_t chunk, int32_t width,
                           int32_t column_tiles) {
  const int64_t number = blockIdx.x / column_tiles, first = number * chunk;
  add_rows(from + first * width, static_cast<int32_t>(min(chunk, rows - first)), width,
           static_cast<int32_t>(blockIdx.x % column_tiles) * kWarp, to + number * width);
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

unsigned grid_of(int64_t blocks) { return blocks_for(blocks * kThreads); }

void check(const Tensor& x_BD, const Tensor& weight_DN, const std::optional<Tensor>& bias_N) {
  check_gate_mm(x_BD, weight_DN, bias_N);
  check_device(x_BD, "x_BD", {{"weight_DN", &weight_DN}});
  if (bias_N) check_device(x_BD, "x_BD", {{"bias_N", &*bias_N}});
}

// The inputs that both directions share, contiguous; checked before.
struct Gate {
  Tensor x, weight;
  int64_t B, D, N;

  Gate(const Tensor& x_BD, const Tensor& weight_DN)
      : x(dense(x_BD)), weight(dense(weight_DN)), B(x.size(0)), D(x.size(1)), N(weight.size(1)) {
    // Room to count past the end in whole tiles, of three parts.
    const int64_t columns = divide_up(N, kTile / kParts) * kTile;
    within_int32(std::max({D, columns, D * N}) + 1024, "weight_DN: ", D, " by ", N,
                 " is too large for one CUDA launch");
  }

  ScalarType sums() const { return weight.scalar_type(); }
  Tensor room(std::initializer_list<int64_t> sizes) const { return empty(x, sizes, sums()); }
};

// Rows that belong to the outputs, [rows, N], as tiles read them; `kept` owns what they point to.
template <typename T>
Outputs<T> outputs_of(const Tensor& rows_RN, Tensor& kept, cudaStream_t stream) {
  const int64_t N = rows_RN.size(1), tiles = divide_up(N, kOutputs<T>);
  int64_t columns = N;
  kept = rows_RN;
  if constexpr (kSplits<T>) {
    columns = tiles * kTile;
    kept = empty(rows_RN, {rows_RN.size(0), columns}, ScalarType::BFloat16);
    if (kept.numel() > 0) {
      split<<<blocks_for(kept.numel()), kThreads, 0, stream>>>(
          static_cast<const float*>(rows_RN.const_data_ptr()),
          static_cast<__nv_bfloat16*>(kept.mutable_data_ptr()), kept.numel(),
          static_cast<int32_t>(columns), static_cast<int32_t>(N));
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
  }
  const void* data = kept.const_data_ptr();
  return {static_cast<const T*>(data), columns, static_cast<int32_t>(N),
          static_cast<int32_t>(tiles), copy_bytes<T>(data, columns, columns)};
}

template <typename T>
void score_as(const Gate& gate, const std::optional<Tensor>& bias, const Tensor& y,
              cudaStream_t stream) {
  using G = Gemm<T, kTile, false, true>;
  using S = sum_t<T>;
  Tensor kept = gate.weight;
  const Outputs<T> weight = outputs_of<T>(gate.weight, kept, stream);
  const void* x = gate.x.const_data_ptr();
  const Scores<T> d = {static_cast<const T*>(x),
                       weight,
                       bias ? static_cast<const S*>(bias->const_data_ptr()) : nullptr,
                       static_cast<S*>(y.mutable_data_ptr()),
                       gate.B,
                       static_cast<int32_t>(gate.D),
                       copy_bytes<T>(x, gate.D, gate.D)};
  const int64_t blocks = divide_up(gate.B, G::BN) * weight.tiles;
  reserve_shared(score<T>, G::kSharedBytes);
  score<T><<<grid_of(blocks), kThreads, G::kSharedBytes, stream>>>(d);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void differentiate_x_as(const Gate& gate, const Tensor& grad, const Tensor& out,
                        cudaStream_t stream) {
  using S = sum_t<T>;
  using G = Gemm<S, kRowTile<S>, true, true>;
  const void *from = grad.const_data_ptr(), *weight = gate.weight.const_data_ptr();
  const int64_t column_tiles = divide_up(gate.D, G::BN);
  const RowGradients<T> d = {static_cast<const S*>(from),
                             static_cast<const S*>(weight),
                             static_cast<T*>(out.mutable_data_ptr()),
                             gate.B,
                             static_cast<int32_t>(gate.D),
                             static_cast<int32_t>(gate.N),
                             static_cast<int32_t>(column_tiles),
                             copy_bytes<S>(from, gate.N, gate.N),
                             copy_bytes<S>(weight, gate.N, gate.N),
                             gate.D % kPack<T> == 0 && aligned(out.const_data_ptr())};
  const int64_t blocks = divide_up(gate.B, G::BM) * column_tiles;
  reserve_shared(differentiate_x<T>, G::kSharedBytes);
  differentiate_x<T><<<grid_of(blocks), kThreads, G::kSharedBytes, stream>>>(d);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// Adds up the rows of [rows, width], by chunks where there are several.
template <typename S>
void add(const S* from, S* to, int64_t rows, int64_t chunk, int64_t width, cudaStream_t stream) {
  const int64_t column_tiles = divide_up(width, kWarp);
  const int64_t chunks = std::max<int64_t>(1, divide_up(rows, chunk));
  add_chunks<S><<<grid_of(chunks * column_tiles), kThreads, 0, stream>>>(
      from, to, rows, chunk, static_cast<int32_t>(width), static_cast<int32_t>(column_tiles));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// Rows for a block of the weights' gradient: few enough to give each multiprocessor of a large GPU
// some blocks, and to keep short the sums that tensor cores cut off; enough that the chunks' own
// sums, [chunks, D, N], stay small beside x.
int64_t chunk_rows(int64_t rows, int64_t tiles) {
  constexpr int64_t kBlocks = 512, kFewest = 256, kMost = 2048, kStep = 32;
  const int64_t even = divide_up(rows * tiles, kBlocks);
  return divide_up(std::min(std::max(even, kFewest), kMost), kStep) * kStep;
}

template <typename T>
void differentiate_weight_as(const Gate& gate, const Tensor& grad, const Tensor& out,
                             cudaStream_t stream) {
  using G = Gemm<T, kTile, false, false>;
  using S = sum_t<T>;
  Tensor kept = grad;
  const Outputs<T> columns = outputs_of<T>(grad, kept, stream);
  const int64_t column_tiles = divide_up(gate.D, G::BN), tiles = columns.tiles * column_tiles;
  const int64_t chunk = chunk_rows(gate.B, tiles);
  const int64_t chunks = std::max<int64_t>(1, divide_up(gate.B, chunk));
  const Tensor sums = chunks == 1 ? out : gate.room({chunks, gate.D, gate.N});
  const void* x = gate.x.const_data_ptr();
  const WeightSums<T> d = {static_cast<const T*>(x),
                           columns,
                           static_cast<S*>(sums.mutable_data_ptr()),
                           gate.B,
                           chunk,
                           static_cast<int32_t>(gate.D),
                           static_cast<int32_t>(column_tiles),
                           copy_bytes<T>(x, gate.D, gate.D)};
  reserve_shared(sum_weights<T>, G::kSharedBytes);
  sum_weights<T><<<grid_of(chunks * tiles), kThreads, G::kSharedBytes, stream>>>(d);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  if (chunks == 1) return;
  add(static_cast<const S*>(sums.const_data_ptr()), static_cast<S*>(out.mutable_data_ptr()), chunks,
      chunks, gate.D * gate.N, stream);
}

template <typename S>
void differentiate_bias_as(const Gate& gate, const Tensor& grad, const Tensor& out,
                           cudaStream_t stream) {
  constexpr int64_t kChunk = 512;
  const int64_t chunks = divide_up(gate.B, kChunk);
  const Tensor room = gate.room({chunks > 1 ? chunks : 0, gate.N});
  const S* from = static_cast<const S*>(grad.const_data_ptr());
  S* to = static_cast<S*>(out.mutable_data_ptr());
  S* sums = chunks > 1 ? static_cast<S*>(room.mutable_data_ptr()) : to;
  add(from, sums, gate.B, kChunk, gate.N, stream);
  if (chunks > 1) add<S>(sums, to, chunks, chunks, gate.N, stream);
}

Tensor gate_mm(const Tensor& x_BD, const Tensor& weight_DN, std::optional<Tensor> bias_N) {
  check(x_BD, weight_DN, bias_N);
  const Launch launch(x_BD);
  const Gate gate(x_BD, weight_DN);
  const std::optional<Tensor> bias = bias_N ? std::optional(dense(*bias_N)) : std::nullopt;
  const Tensor y = gate.room({gate.B, gate.N});
  if (y.numel() > 0) {
    for_type(gate.x.scalar_type(),
             [&](auto type) { score_as<decltype(type)>(gate, bias, y, launch.stream()); });
  }
  return y;
}

std::tuple<Tensor, Tensor, Tensor> gate_mm_backward(const Tensor& grad_BN, const Tensor& x_BD,
                                                    const Tensor& weight_DN, bool need_x,
                                                    bool need_weight, bool need_bias) {
  check(x_BD, weight_DN, std::nullopt);
  check_dim("grad_BN", grad_BN, 2);
  check_type("grad_BN", grad_BN, weight_DN.scalar_type());
  check_size("grad_BN", grad_BN, 0, x_BD.size(0));
  check_size("grad_BN", grad_BN, 1, weight_DN.size(1));
  check_device(x_BD, "x_BD", {{"grad_BN", &grad_BN}});
  const Launch launch(x_BD);
  const Gate gate(x_BD, weight_DN);
  const cudaStream_t stream = launch.stream();
  const Tensor grad = dense(grad_BN);
  const ScalarType type = gate.x.scalar_type();
  const Tensor grad_x = need_x ? empty(gate.x, {gate.B, gate.D}, type) : empty(gate.x, {0}, type);
  const Tensor grad_weight = need_weight ? gate.room({gate.D, gate.N}) : gate.room({0});
  const Tensor grad_bias = need_bias ? gate.room({gate.N}) : gate.room({0});
  for_type(type, [&](auto of) {
    using T = decltype(of);
    if (grad_x.numel() > 0) differentiate_x_as<T>(gate, grad, grad_x, stream);
    if (grad_weight.numel() > 0) differentiate_weight_as<T>(gate, grad, grad_weight, stream);
    if (grad_bias.numel() > 0) differentiate_bias_as<sum_t<T>>(gate, grad, grad_bias, stream);
  });
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace
}  // namespace mmoe

STABLE_TORCH_LIBRARY_IMPL(mmoe, CUDA, m) {
  m.impl("gate_mm", MMOE_BOX(gate_mm));
  m.impl("gate_mm_backward", MMOE_BOX(gate_mm_backward));
}

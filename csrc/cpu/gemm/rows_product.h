// C = A * B for the rows of every expert: a layer's forward pass, and the gradient of its rows.

#pragma once

#include "../jobs.h"

namespace mmoe {

// Sizes of the pieces, for caches of 32 KiB (L1) and 1 MiB (L2) and up. On an AMD EPYC (Zen 4) half
// or twice of any of them was no faster in either dtype.
constexpr int64_t kJobRows = 240;  // rows of one job: B is packed once for them
constexpr int64_t kTileRows = 48;  // rows whose sums wait for bias and activation

// C = A_e * B_e for the rows of every expert, with what follows it.
struct RowsProduct {
  const ExpertLayer* layer;
  Source a;
  int64_t K, N;
  bool transposed;  // B_e is the transpose of the weight
  bool bias;
  Activation activation;
  ExpertRows y, z;
  bool sums = false;  // y is in their type
  // Where not empty, a row for each of an expert's rows, by its number, that is added to its sums.
  ExpertRows added = {};

  gemm::Matrix b(int64_t e, int64_t n) const {
    const gemm::Kernels& k = *layer->kernels;
    const int64_t size = layer->wide ? k.sum_size : k.size;
    const int64_t from = transposed ? n * K : n;
    return {layer->weight + (e * K * N + from) * size, transposed ? K : N, transposed, layer->wide,
            !layer->exact};
  }
};

// One piece of it, of B and bias as they are packed and widened. `next` is fetched meanwhile.
void run_piece(const RowsProduct& p, const Job& job, const char* b, const char* bias,
               const Reads& next);

// The bias of a job in the type of the sums, written to `sums`, which has room for whole vectors;
// null where there is none.
const char* widened_bias(const RowsProduct& p, const Job& job, char* sums);

// The pieces of the product, those of one expert after the other.
std::vector<Job> jobs_of(const RowsProduct& p);

// Runs jobs one after the other on this thread. Jobs of one expert follow each other: its weight is
// packed once for them.
class RowsRunner {
 public:
  explicit RowsRunner(const RowsProduct& product) : p_(product) {}

  void run(const Job& job, const Reads& next);

  // What a job would read first, run after the ones so far and `before`.
  Reads reads(const Job& job, const Job* before) const;

 private:
  const RowsProduct& p_;
  int64_t expert_ = -1, n_ = -1;
  char* b_ = nullptr;
  const char* bias_ = nullptr;

  bool needs_weight(const Job& job) const { return job.expert != expert_ || job.n != n_; }
};

// The whole product, on all threads.
void run(const RowsProduct& p);

// grad_x of rows that all experts read: the sum over the experts, in order, of dz_e W_e^T.
void run_shared(const RowsProduct& p);

}  // namespace mmoe

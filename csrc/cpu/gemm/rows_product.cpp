#include "rows_product.h"

#include <algorithm>

namespace mmoe {
namespace {

using gemm::Activation;
using gemm::Kernels;
using gemm::Parts;

// Of the size of pieces, as kJobRows and kTileRows.
constexpr int64_t kPanelBytes = 384 << 10;  // B, packed, of one job
constexpr int64_t kSharedRows = 192;  // of a job of a gradient that is summed over the experts

// Columns of B that are packed at once.
Parts column_parts(const Kernels& k, int64_t K, int64_t N) {
  const int64_t panels =
      std::max<int64_t>(1, kPanelBytes / std::max<int64_t>(1, k.words(K) * k.word * k.nr));
  return Parts((N + k.nr - 1) / k.nr, panels);
}

struct Words {
  const char* data;
  int64_t step;  // bytes
};

// Rows of an expert as A of a product: where they are, or copied into words.
Words words_of(const RowsProduct& p, int64_t e, int64_t row, int64_t count) {
  const Kernels& k = *p.layer->kernels;
  const Source::Piece rows = p.a.piece(e, row, count, 0, p.K);
  if (p.a.sums || (k.direct && p.K % k.depth == 0)) return {rows.data, rows.step * p.a.size()};
  const int64_t step = k.words(p.K) * k.word;
  char* copy = scratch().a.get(count * step + 64);
  k.copy_rows(rows.data, rows.step, count, p.K, copy, step);
  return {copy, step};
}

}  // namespace

void run_piece(const RowsProduct& p, const Job& job, const char* b, const char* bias,
               const Reads& next) {
  const Kernels& k = *p.layer->kernels;
  const int64_t c_step = k.padded(job.columns);
  char* c = scratch().c.get(kTileRows * c_step * k.sum_size);
  const Parts tiles(job.rows, kTileRows);
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t row = job.row + tiles.begin(t), rows = tiles.begin(t + 1) - tiles.begin(t);
    const Words a = words_of(p, job.expert, row, rows);
    const auto at = [&](const ExpertRows& table) -> char* {
      const int64_t size = p.sums ? k.sum_size : k.size;
      return table.empty() ? nullptr : table.data[job.expert] + (row * table.step + job.n) * size;
    };
    gemm::Finish finish = {c,       c_step,   rows,    job.columns, bias, p.activation,
                           at(p.y), p.y.step, at(p.z), p.sums};
    if (!p.added.empty()) {
      finish.added = p.added.data[job.expert] + job.n * k.size;
      finish.added_step = p.added.step;
      finish.numbers = p.added.numbers[job.expert] + row;
    }
    const bool quick = finish.is_quick();
    gemm::Product product = {a.data,
                             a.step,
                             true,
                             b,
                             rows,
                             job.columns,
                             k.words(p.K),
                             c,
                             c_step,
                             false,
                             quick ? &finish : nullptr,
                             {}};
    next.copy_part(t, tiles.count, &product);
    k.multiply(product);
    if (!quick) k.finish(finish);
  }
}

const char* widened_bias(const RowsProduct& p, const Job& job, char* sums) {
  if (!p.bias) return nullptr;
  const Kernels& k = *p.layer->kernels;
  const int64_t size = p.layer->wide ? k.sum_size : k.size;
  k.widen(p.layer->bias + (job.expert * p.N + job.n) * size, p.layer->wide, job.columns, sums);
  return sums;
}

std::vector<Job> jobs_of(const RowsProduct& p) {
  const Kernels& k = *p.layer->kernels;
  const Parts columns = column_parts(k, p.K, p.N);
  std::vector<Job> jobs;
  for (int64_t e = 0; e < p.layer->experts; ++e) {
    for (int64_t c = 0; c < columns.count; ++c) {
      const int64_t n = columns.begin(c) * k.nr;
      const int64_t end = std::min(columns.begin(c + 1) * k.nr, p.N);
      const Parts rows(p.layer->rows[e], kJobRows);
      for (int64_t r = 0; r < rows.count; ++r) {
        jobs.push_back({e, n, end - n, rows.begin(r), rows.begin(r + 1) - rows.begin(r), p.K});
      }
    }
  }
  return jobs;
}

void RowsRunner::run(const Job& job, const Reads& next) {
  const Kernels& k = *p_.layer->kernels;
  if (needs_weight(job)) {
    b_ = scratch().packed.get(k.words(p_.K) * k.padded(job.columns) * k.word + 64);
    k.pack_b(p_.b(job.expert, job.n), p_.K, job.columns, b_);
    bias_ = widened_bias(p_, job, scratch().bias.get(k.padded(job.columns) * k.sum_size));
    expert_ = job.expert;
    n_ = job.n;
  }
  run_piece(p_, job, b_, bias_, next);
}

Reads RowsRunner::reads(const Job& job, const Job* before) const {
  const Kernels& k = *p_.layer->kernels;
  Reads reads;
  p_.a.add_to(reads, job.expert, job.row, std::min(job.rows, kTileRows), 0, p_.K);
  const bool same =
      before != nullptr ? before->expert == job.expert && before->n == job.n : !needs_weight(job);
  if (same) return reads;
  const gemm::Matrix b = p_.b(job.expert, job.n);
  const int64_t size = b.wide ? k.sum_size : k.size;
  reads.add(static_cast<const char*>(b.data), b.step * size,
            (b.transposed ? p_.K : job.columns) * size, b.transposed ? job.columns : p_.K);
  return reads;
}

void run(const RowsProduct& p) {
  const std::vector<Job> jobs = jobs_of(p);
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    RowsRunner runner(p);
    for (int64_t i = begin; i < end; ++i) {
      runner.run(jobs[i], i + 1 < end ? runner.reads(jobs[i + 1], &jobs[i]) : Reads{});
    }
  });
}

void run_shared(const RowsProduct& p) {
  const Kernels& k = *p.layer->kernels;
  const int64_t experts = p.layer->experts, rows = p.layer->rows[0];
  const int64_t packed = k.words(p.K) * k.padded(p.N) * k.word;
  // Of the calling thread; the workers fill it together.
  thread_local Buffer all_weights;
  char* b = all_weights.get(experts * packed + 64);
  std::vector<Job> panels;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t n = 0; n < p.N; n += k.nr) {
      panels.push_back({e, n, std::min(k.nr, p.N - n), 0, 0, p.K});
    }
  }
  const auto panel = [&](int64_t e, int64_t n) {
    return b + e * packed + n * k.words(p.K) * k.word;
  };
  for_jobs(panels, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Job& job = panels[i];
      k.pack_b(p.b(job.expert, job.n), p.K, job.columns, panel(job.expert, job.n));
    }
  });

  const Parts columns = column_parts(k, p.K, p.N), blocks(rows, kSharedRows);
  std::vector<Job> jobs;
  for (int64_t r = 0; r < blocks.count; ++r) {
    for (int64_t c = 0; c < columns.count; ++c) {
      const int64_t n = columns.begin(c) * k.nr;
      const int64_t end = std::min(columns.begin(c + 1) * k.nr, p.N);
      jobs.push_back({0, n, end - n, blocks.begin(r), blocks.begin(r + 1) - blocks.begin(r), p.K});
    }
  }
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Job& job = jobs[i];
      const int64_t c_step = k.padded(job.columns);
      char* c = scratch().c.get(job.rows * c_step * k.sum_size);
      for (int64_t e = 0; e < experts; ++e) {
        const Words a = words_of(p, e, job.row, job.rows);
        gemm::Product product = {a.data,   a.step,      true,         panel(e, job.n),
                                 job.rows, job.columns, k.words(p.K), c,
                                 c_step,   e > 0,       nullptr,      {}};
        Reads next;
        if (e + 1 < experts) p.a.add_to(next, e + 1, job.row, job.rows, 0, p.K);
        next.copy_part(0, 1, &product);
        k.multiply(product);
      }
      char* to = p.y.data[0] + (job.row * p.y.step + job.n) * k.size;
      k.finish({c, c_step, job.rows, job.columns, nullptr, Activation::none, to, p.y.step, nullptr,
                false});
    }
  });
}

}  // namespace mmoe

#include "weight_gradient.h"

#include <algorithm>
#include <cstring>

namespace mmoe {
namespace {

using gemm::Activation;
using gemm::Kernels;
using gemm::Parts;

// Sizes of the pieces, as in rows_product.cpp. On an AMD EPYC (Zen 4) pieces of 192 inputs were
// slower, and so were 128 and 512 rows.
constexpr int64_t kWeightRows = 352;     // most inputs of a piece of [D, H]
constexpr int64_t kWeightColumns = 256;  // and outputs
constexpr int64_t kSummedRows = 256;     // rows that are packed at once

// Columns, and rows, of the pieces of a weight gradient [D, H]; lower ones where there would be too
// few to keep the threads busy.
Parts weight_columns(const ExpertLayer& l) {
  const Kernels& k = *l.kernels;
  return Parts((l.outputs + k.nr - 1) / k.nr, kWeightColumns / k.nr);
}

Parts weight_heights(const ExpertLayer& l) {
  const int64_t wanted = 2 * torch::stable::get_num_threads();
  const int64_t others = std::max<int64_t>(1, l.experts * weight_columns(l).count);
  const int64_t parts = (wanted + others - 1) / others;
  const int64_t most = std::max((l.inputs + parts - 1) / parts, l.kernels->mr);
  return Parts(l.inputs, std::min(kWeightRows, most));
}

}  // namespace

const char* Columns::get(const Job& job, int64_t r, int64_t count) const {
  const Kernels& k = *l_.kernels;
  if (shared_ != nullptr) return shared_ + place(r, job.row);
  char* own = scratch().a.get((k.words(kSummedRows) * job.rows + k.lanes) * k.word);
  pack(job.expert, r, count, job.row, job.rows, own);
  return own;
}

void Columns::add_to(Reads& reads, const Job& job, int64_t r, int64_t count) const {
  if (shared_ != nullptr) return;
  const int64_t size = l_.kernels->size;
  reads.add(at(job.expert, r, job.row), x_.step * size, job.rows * size, count);
}

const char* Columns::at(int64_t e, int64_t r, int64_t column) const {
  return x_.data[e] + (r * x_.step + column) * l_.kernels->size;
}

int64_t Columns::place(int64_t r, int64_t column) const {
  const Kernels& k = *l_.kernels;
  return (r / kSummedRows * l_.inputs + column) * k.words(kSummedRows) * k.word;
}

void Columns::pack(int64_t e, int64_t r, int64_t count, int64_t column, int64_t width,
                   char* to) const {
  l_.kernels->pack_columns(at(e, r, column), x_.step, count, width, to);
}

void Columns::pack_shared() {
  // Of the calling thread; the workers fill it together.
  thread_local Buffer all_columns;
  const int64_t rows = l_.rows[0], blocks = (rows + kSummedRows - 1) / kSummedRows;
  shared_ = all_columns.get(place(blocks * kSummedRows, 0) + 64);
  const Parts heights = weight_heights(l_);
  std::vector<Job> jobs;
  for (int64_t r = 0; r < rows; r += kSummedRows) {
    for (int64_t i = 0; i < heights.count; ++i) {
      const int64_t from = heights.begin(i);
      jobs.push_back(
          {0, 0, 0, from, heights.begin(i + 1) - from, std::min(kSummedRows, rows - r), r});
    }
  }
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Job& job = jobs[i];
      pack(0, job.first, job.depth, job.row, job.rows, shared_ + place(job.first, job.row));
    }
  });
}

Reads weight_reads(const ExpertLayer& l, const Columns& x, const Source& dz, const Job& job,
                   int64_t r) {
  const int64_t count = std::min(kSummedRows, l.rows[job.expert] - r);
  Reads reads;
  dz.add_to(reads, job.expert, r, count, job.n, job.columns);
  x.add_to(reads, job, r, count);
  return reads;
}

void weight_piece(const ExpertLayer& l, const Columns& x, const Source& dz, const Job& job,
                  const LayerGradients& gradients, const Reads& next) {
  const Kernels& k = *l.kernels;
  const int64_t c_step = k.padded(job.columns), e = job.expert;
  const int64_t size = l.wide ? k.sum_size : k.size;
  char* c = scratch().c.get(job.rows * c_step * k.sum_size);
  char* b = scratch().b.get(k.words(kSummedRows) * c_step * k.word + 64);
  char* sums =
      job.row == 0 && gradients.bias != nullptr ? scratch().bias.get(c_step * k.sum_size) : nullptr;
  if (sums != nullptr) std::memset(sums, 0, static_cast<size_t>(c_step * k.sum_size));
  for (int64_t r = 0; r < l.rows[e]; r += kSummedRows) {
    const int64_t count = std::min(kSummedRows, l.rows[e] - r);
    const Source::Piece piece = dz.piece(e, r, count, job.n, job.columns);
    if (sums != nullptr) {
      const Kernels& of_dz = dz.size() == k.size ? k : *kernels_for(ScalarType::Float);
      of_dz.add_rows(piece.data, piece.step, count, job.columns, sums);
    }
    if (job.rows == 0) continue;
    k.pack_b({piece.data, piece.step, false, dz.sums, false}, count, job.columns, b);
    const char* a = x.get(job, r, count);
    gemm::Product product = {a, 0,      false, b,       job.rows, job.columns, k.words(count),
                             c, c_step, r > 0, nullptr, {}};
    const bool last = r + count == l.rows[e];
    (last ? next : weight_reads(l, x, dz, job, r + count)).copy_part(0, 1, &product);
    k.multiply(product);
  }
  if (l.rows[e] == 0) std::memset(c, 0, static_cast<size_t>(job.rows * c_step * k.sum_size));
  const auto write = [&](const char* from, int64_t rows, char* to) {
    k.finish({from, c_step, rows, job.columns, nullptr, Activation::none, to, l.outputs, nullptr,
              l.wide});
  };
  if (job.rows > 0)
    write(c, job.rows, gradients.weight + ((e * l.inputs + job.row) * l.outputs + job.n) * size);
  if (sums != nullptr) write(sums, 1, gradients.bias + (e * l.outputs + job.n) * size);
}

std::vector<Job> weight_jobs(const ExpertLayer& l, const LayerGradients& gradients) {
  const Kernels& k = *l.kernels;
  std::vector<Job> jobs;
  if (gradients.weight == nullptr && gradients.bias == nullptr) return jobs;
  // Where only the bias is wanted, or nothing comes in, pieces of no height stand for the weight.
  const int64_t inputs = gradients.weight == nullptr ? 0 : l.inputs;
  const Parts heights = weight_heights(l), panels = weight_columns(l);
  for (int64_t e = 0; e < l.experts; ++e) {
    for (int64_t i = 0; i < (inputs == 0 ? 1 : heights.count); ++i) {
      const int64_t row = inputs == 0 ? 0 : heights.begin(i);
      const int64_t rows = inputs == 0 ? 0 : heights.begin(i + 1) - row;
      for (int64_t c = 0; c < panels.count; ++c) {
        const int64_t n = panels.begin(c) * k.nr;
        const int64_t end = std::min(panels.begin(c + 1) * k.nr, l.outputs);
        jobs.push_back({e, n, end - n, row, rows, l.rows[e]});
      }
    }
  }
  return jobs;
}

}  // namespace mmoe

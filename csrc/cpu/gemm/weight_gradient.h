// The gradients of the experts' weights and biases: x^T dz, over each expert's rows in order.

#pragma once

#include "../jobs.h"

namespace mmoe {

// The transposed rows of weight gradients. Every piece packs its own; where all experts read the
// same rows, they are packed once for all.
class Columns {
 public:
  Columns(const ExpertLayer& layer, const ExpertRows& x) : l_(layer), x_(x) {}

  void pack_shared();

  // Columns [job.row, job.row + job.rows) of `count` rows of the job's expert from row `r` on.
  const char* get(const Job& job, int64_t r, int64_t count) const;

  void add_to(Reads& reads, const Job& job, int64_t r, int64_t count) const;

 private:
  const ExpertLayer& l_;
  const ExpertRows& x_;
  char* shared_ = nullptr;

  const char* at(int64_t e, int64_t r, int64_t column) const;
  // Blocks of kSummedRows rows one after the other, and in each the columns.
  int64_t place(int64_t r, int64_t column) const;
  void pack(int64_t e, int64_t r, int64_t count, int64_t column, int64_t width, char* to) const;
};

// What a piece reads from row `r` of its expert on.
Reads weight_reads(const ExpertLayer& l, const Columns& x, const Source& dz, const Job& job,
                   int64_t r);

// A piece of one expert's weight gradient: x^T dz, over the expert's rows in order. The pieces of
// the first inputs add up the bias gradient as well.
void weight_piece(const ExpertLayer& l, const Columns& x, const Source& dz, const Job& job,
                  const LayerGradients& gradients, const Reads& next);

// The pieces of the gradients that are wanted, those of one expert after the other.
std::vector<Job> weight_jobs(const ExpertLayer& l, const LayerGradients& gradients);

}  // namespace mmoe

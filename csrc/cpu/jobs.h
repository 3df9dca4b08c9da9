// Pieces of an expert's products, what they read, and the threads that run them: what the products
// of rows and the weight gradients share.

#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "gemm/expert_layer.h"

namespace mmoe {

// Memory that outlives the call, so that a training step does not ask the kernel for fresh pages.
class Buffer {
 public:
  char* get(int64_t bytes) {
    if (bytes > size_) {
      const int64_t rounded = (bytes + 4095) / 4096 * 4096;
      void* fresh = std::aligned_alloc(4096, static_cast<size_t>(rounded));
      if (fresh == nullptr) throw std::bad_alloc();
      data_.reset(static_cast<char*>(fresh));
      size_ = rounded;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t size_ = 0;
};

struct Scratch {
  Buffer a, b, c, dz, bias, packed, rows, hidden;
};

inline Scratch& scratch() {
  thread_local Scratch own;
  return own;
}

// Runs jobs [begin, end) of a list on each thread, consecutive ones of about the same cost in all.
// Which thread runs a job changes nothing about its result.
template <typename J, typename F>
void for_jobs(const std::vector<J>& jobs, const F& run) {
  double total = 0;
  for (const J& job : jobs) total += job.cost();
  const int64_t threads = torch::stable::get_num_threads();
  std::vector<int64_t> first(threads + 1, static_cast<int64_t>(jobs.size()));
  double before = 0;
  int64_t thread = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    // A job belongs to the thread in whose share its middle lies.
    const double middle = before + jobs[i].cost() / 2;
    while (thread < threads && middle * threads >= total * thread) {
      first[thread++] = static_cast<int64_t>(i);
    }
    before += jobs[i].cost();
  }
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    if (first[begin] < first[end]) run(first[begin], first[end]);
  });
}

// A piece of one expert's product: `rows` times `columns` sums of `depth` numbers each.
struct Job {
  int64_t expert, n, columns, row, rows, depth;
  int64_t first = 0;  // of the numbers that are summed

  // Of the products alone, with something for reading what they need.
  double cost() const { return (rows + 16.0) * (columns + 16.0) * (depth + 16.0); }
};

// What a product reads as A: rows of every expert or, with an activation, the gradient of what went
// into it, made from that of what came out where it is needed. A pass of its own would move more
// memory than the product's pieces, which find both in the cache.
struct Source {
  const ExpertLayer* layer;
  Activation activation;
  ExpertRows rows, y, z;
  bool sums = false;  // rows are in the type of the sums; without an activation only

  int64_t size() const { return sums ? layer->kernels->sum_size : layer->kernels->size; }

  struct Piece {
    const char* data;
    int64_t step;  // numbers
  };

  // `count` rows of an expert from `row` on, of them `width` columns from `column` on.
  Piece piece(int64_t e, int64_t row, int64_t count, int64_t column, int64_t width) const {
    const gemm::Kernels& k = *layer->kernels;
    const auto at = [&](const ExpertRows& t, int64_t i) -> const char* {
      return t.empty() ? nullptr : t.data[e] + ((row + i) * t.step + column) * size();
    };
    if (activation == Activation::none) return {at(rows, 0), rows.step};
    char* dz = scratch().dz.get(count * width * k.size);
    for (int64_t i = 0; i < count; ++i) {
      k.derive(at(rows, i), at(y, i), at(z, i), activation, width, dz + i * width * k.size);
    }
    return {dz, width};
  }

  // What `piece` reads.
  void add_to(struct Reads& reads, int64_t e, int64_t row, int64_t count, int64_t column,
              int64_t width) const;
};

// What a job reads first, to be fetched during the one before.
struct Reads {
  gemm::Ahead rows[gemm::kMostAhead] = {};
  int count = 0;

  void add(const char* data, int64_t step, int64_t bytes, int64_t rows_of_it) {
    rows[count++] = {data, step, bytes, rows_of_it};
  }

  // The share of tile `part` of `parts`.
  void copy_part(int64_t part, int64_t parts, gemm::Product* product) const {
    for (int i = 0; i < count; ++i) product->ahead[i] = rows[i].part(part, parts);
  }
};

inline void Source::add_to(Reads& reads, int64_t e, int64_t row, int64_t count, int64_t column,
                           int64_t width) const {
  for (const ExpertRows* t : {&rows, &y, &z}) {
    // Of y and z only one is read.
    if (t->empty() || (t == &y && activation != Activation::relu) ||
        (t == &z && activation == Activation::relu)) {
      continue;
    }
    if (t != &rows && activation == Activation::none) continue;
    reads.add(t->data[e] + (row * t->step + column) * size(), t->step * size(), width * size(),
              count);
  }
}

}  // namespace mmoe

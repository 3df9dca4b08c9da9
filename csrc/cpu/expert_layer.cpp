#include "expert_layer.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "processor.h"

namespace mmoe {
namespace {

using gemm::Activation;
using gemm::Kernels;
using gemm::Parts;

// Sizes of the pieces, for caches of 32 KiB (L1) and 1 MiB (L2) and up. On an AMD EPYC (Zen 4) half
// or twice of any of them was no faster in either dtype.
constexpr int64_t kPanelBytes = 384 << 10;  // B, packed, of one job
constexpr int64_t kJobRows = 240;           // rows of one job: B is packed once for them
constexpr int64_t kTileRows = 48;           // rows whose sums wait for bias and activation
constexpr int64_t kWeightRows = 352;        // of a job's piece of a weight gradient [D, H]
constexpr int64_t kWeightColumns = 256;
constexpr int64_t kSummedRows = 256;  // rows that are packed at once for a weight gradient
constexpr int64_t kSharedRows = 192;  // of a job of a gradient that is summed over the experts

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
  Buffer a, b, c, dz, bias, packed;
};

Scratch& scratch() {
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
    const Kernels& k = *layer->kernels;
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

void Source::add_to(Reads& reads, int64_t e, int64_t row, int64_t count, int64_t column,
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

  gemm::Matrix b(int64_t e, int64_t n) const {
    const Kernels& k = *layer->kernels;
    const int64_t size = layer->wide ? k.sum_size : k.size;
    const int64_t from = transposed ? n * K : n;
    return {layer->weight + (e * K * N + from) * size, transposed ? K : N, transposed, layer->wide,
            !layer->exact};
  }
};

// A piece of one expert's product: `rows` times `columns` sums of `depth` numbers each.
struct Job {
  int64_t expert, n, columns, row, rows, depth;
  int64_t first = 0;  // of the numbers that are summed

  // Of the products alone, with something for reading what they need.
  double cost() const { return (rows + 16.0) * (columns + 16.0) * (depth + 16.0); }
};

// Columns of B that are packed at once.
Parts column_parts(const Kernels& k, int64_t K, int64_t N) {
  const int64_t panels =
      std::max<int64_t>(1, kPanelBytes / std::max<int64_t>(1, k.words(K) * k.word * k.nr));
  return Parts((N + k.nr - 1) / k.nr, panels);
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

void run_job(const RowsProduct& p, const Job& job, const char* b, const char* bias,
             const Reads& next) {
  const Kernels& k = *p.layer->kernels;
  const int64_t c_step = k.padded(job.columns);
  char* c = scratch().c.get(kTileRows * c_step * k.sum_size);
  const Parts tiles(job.rows, kTileRows);
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t row = job.row + tiles.begin(t), rows = tiles.begin(t + 1) - tiles.begin(t);
    const Words a = words_of(p, job.expert, row, rows);
    gemm::Product product = {a.data,       a.step, true,   b,     rows, job.columns,
                             k.words(p.K), c,      c_step, false, {}};
    next.copy_part(t, tiles.count, &product);
    k.multiply(product);
    const auto at = [&](const ExpertRows& table) -> char* {
      const int64_t size = p.sums ? k.sum_size : k.size;
      return table.empty() ? nullptr : table.data[job.expert] + (row * table.step + job.n) * size;
    };
    k.finish(
        {c, c_step, rows, job.columns, bias, p.activation, at(p.y), p.y.step, at(p.z), p.sums});
  }
}

// The bias of a job in the type of the sums, with room for a whole vector.
const char* bias_of(const RowsProduct& p, const Job& job) {
  if (!p.bias) return nullptr;
  const Kernels& k = *p.layer->kernels;
  const int64_t size = p.layer->wide ? k.sum_size : k.size;
  char* sums = scratch().bias.get(k.padded(job.columns) * k.sum_size);
  k.widen(p.layer->bias + (job.expert * p.N + job.n) * size, p.layer->wide, job.columns, sums);
  return sums;
}

// Runs jobs one after the other on this thread. Jobs of one expert follow each other: its weight is
// packed once for them.
class RowsRunner {
 public:
  explicit RowsRunner(const RowsProduct& product) : p_(product) {}

  void run(const Job& job, const Reads& next) {
    const Kernels& k = *p_.layer->kernels;
    if (needs_weight(job)) {
      b_ = scratch().packed.get(k.words(p_.K) * k.padded(job.columns) * k.word + 64);
      k.pack_b(p_.b(job.expert, job.n), p_.K, job.columns, b_);
      bias_ = bias_of(p_, job);
      expert_ = job.expert;
      n_ = job.n;
    }
    run_job(p_, job, b_, bias_, next);
  }

  // What a job would read first, run after the ones so far and `before`.
  Reads reads(const Job& job, const Job* before) const {
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

 private:
  const RowsProduct& p_;
  int64_t expert_ = -1, n_ = -1;
  char* b_ = nullptr;
  const char* bias_ = nullptr;

  bool needs_weight(const Job& job) const { return job.expert != expert_ || job.n != n_; }
};

void run(const RowsProduct& p) {
  const std::vector<Job> jobs = jobs_of(p);
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    RowsRunner runner(p);
    for (int64_t i = begin; i < end; ++i) {
      runner.run(jobs[i], i + 1 < end ? runner.reads(jobs[i + 1], &jobs[i]) : Reads{});
    }
  });
}

// grad_x of rows that all experts read: the sum over the experts, in order, of dz_e W_e^T.
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
        gemm::Product product = {a.data,      a.step,       true, panel(e, job.n), job.rows,
                                 job.columns, k.words(p.K), c,    c_step,          e > 0,
                                 {}};
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

// The transposed rows of weight gradients. Every piece packs its own; where all experts read the
// same rows, they are packed once for all.
class Columns {
 public:
  Columns(const ExpertLayer& layer, const ExpertRows& x) : l_(layer), x_(x) {}

  void pack_shared();

  // Columns [job.row, job.row + job.rows) of `count` rows of the job's expert from row `r` on.
  const char* get(const Job& job, int64_t r, int64_t count) const {
    const Kernels& k = *l_.kernels;
    if (shared_ != nullptr) return shared_ + place(r, job.row);
    char* own = scratch().a.get((k.words(kSummedRows) * job.rows + k.lanes) * k.word);
    pack(job.expert, r, count, job.row, job.rows, own);
    return own;
  }

  void add_to(Reads& reads, const Job& job, int64_t r, int64_t count) const {
    if (shared_ != nullptr) return;
    const int64_t size = l_.kernels->size;
    reads.add(at(job.expert, r, job.row), x_.step * size, job.rows * size, count);
  }

 private:
  const ExpertLayer& l_;
  const ExpertRows& x_;
  char* shared_ = nullptr;

  const char* at(int64_t e, int64_t r, int64_t column) const {
    return x_.data[e] + (r * x_.step + column) * l_.kernels->size;
  }
  // Blocks of kSummedRows rows one after the other, and in each the columns.
  int64_t place(int64_t r, int64_t column) const {
    const Kernels& k = *l_.kernels;
    return (r / kSummedRows * l_.inputs + column) * k.words(kSummedRows) * k.word;
  }
  void pack(int64_t e, int64_t r, int64_t count, int64_t column, int64_t width, char* to) const {
    l_.kernels->pack_columns(at(e, r, column), x_.step, count, width, to);
  }
};

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

// What a piece reads from row `r` of its expert on.
Reads weight_reads(const ExpertLayer& l, const Columns& x, const Source& dz, const Job& job,
                   int64_t r) {
  const int64_t count = std::min(kSummedRows, l.rows[job.expert] - r);
  Reads reads;
  dz.add_to(reads, job.expert, r, count, job.n, job.columns);
  x.add_to(reads, job, r, count);
  return reads;
}

// A piece of one expert's weight gradient: x^T dz, over the expert's rows in order. The pieces of
// the first inputs add up the bias gradient as well.
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
    gemm::Product product = {a, 0,      false, b, job.rows, job.columns, k.words(count),
                             c, c_step, r > 0, {}};
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

// Either kind of job of a backward pass.
struct BackwardJob : Job {
  bool weight;
};

// Both kinds for one expert follow each other, so that the second finds the rows in the cache.
std::vector<BackwardJob> by_expert(const std::vector<Job>& rows, const std::vector<Job>& weights) {
  std::vector<BackwardJob> jobs;
  size_t r = 0, w = 0;
  while (r < rows.size() || w < weights.size()) {
    if (w == weights.size() || (r < rows.size() && rows[r].expert <= weights[w].expert)) {
      jobs.push_back({rows[r++], false});
    } else {
      jobs.push_back({weights[w++], true});
    }
  }
  return jobs;
}

}  // namespace

void layer_forward(const ExpertLayer& layer, const ExpertRows& x, const ExpertRows& y,
                   const ExpertRows& z) {
  const Source rows = {&layer, Activation::none, x, {}, {}};
  run({&layer, rows, layer.inputs, layer.outputs, false, layer.bias != nullptr, layer.activation, y,
       z, layer.exact});
}

void layer_backward(const ExpertLayer& layer, const ExpertRows& grad, const ExpertRows& x,
                    const ExpertRows& y, const ExpertRows& z, const LayerGradients& gradients) {
  const Source dz = {&layer, layer.activation, grad, y, z, layer.exact};
  const RowsProduct product = {
      &layer, dz, layer.outputs, layer.inputs, true, false, Activation::none, gradients.x, {}};
  const bool wanted = !gradients.x.empty();
  if (wanted && gradients.shared) run_shared(product);
  const std::vector<BackwardJob> jobs =
      by_expert(wanted && !gradients.shared ? jobs_of(product) : std::vector<Job>{},
                weight_jobs(layer, gradients));
  Columns columns(layer, x);
  if (gradients.shared && gradients.weight != nullptr && layer.experts > 1) columns.pack_shared();
  for_jobs(jobs, [&](int64_t begin, int64_t end) {
    RowsRunner runner(product);
    for (int64_t i = begin; i < end; ++i) {
      const BackwardJob& job = jobs[i];
      Reads next;
      if (i + 1 < end && jobs[i + 1].weight) {
        next = weight_reads(layer, columns, dz, jobs[i + 1], 0);
      } else if (i + 1 < end) {
        next = runner.reads(jobs[i + 1], job.weight ? nullptr : &job);
      }
      if (job.weight) {
        weight_piece(layer, columns, dz, job, gradients, next);
      } else {
        runner.run(job, next);
      }
    }
  });
}

const Kernels* kernels_for(ScalarType type, bool exact) {
#ifdef MMOE_X86_KERNELS
  if (has_avx512()) {
    if (type == ScalarType::Float) return &gemm::avx512_f32;
    if (type == ScalarType::Double) return &gemm::avx512_f64;
    return !exact && has_avx512bf16() ? &gemm::avx512bf16_bf16 : &gemm::avx512_bf16;
  }
  if (has_avx2()) {
    if (type == ScalarType::Float) return &gemm::avx2_f32;
    return type == ScalarType::Double ? &gemm::avx2_f64 : &gemm::avx2_bf16;
  }
#endif
  if (type == ScalarType::Float) return &gemm::generic_f32;
  return type == ScalarType::Double ? &gemm::generic_f64 : &gemm::generic_bf16;
}

}  // namespace mmoe

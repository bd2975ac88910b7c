// What the operators on structures share: the scores of a batch, the oracle of a kind, and items dealt out to threads.
#pragma once
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>

#include "tasks.h"
#include "structured_oracles.h"

namespace parsimax::structured {
enum Kind : int64_t { BITS, CHAIN, EACH, ASSIGNMENT, TREE, TABLE };  // structured/kernel.py has the same

// unary (items, parts) for bits, else (items, positions, labels); extra (items or 1, positions - 1 or 1, labels,
// labels), of a table (items or 1, 2^bits).
struct Problem {
  int64_t items, size, extra_size = 0, extra_step = 0;
  Tensor unary_tensor;
  std::optional<Tensor> extra_tensor;

  Problem(const Tensor& unary_, const std::optional<Tensor>& extra_) : unary_tensor(torch::stable::contiguous(unary_)) {
    STD_TORCH_CHECK(unary_.dim() >= 2 && unary_.scalar_type() == ScalarType::Double,
                    "parsimax structured: scores are float64 with a dimension of items");
    items = unary_.size(0), size = 1;
    for (int64_t d = 1; d < unary_.dim(); d++) size *= unary_.size(d);
    if (!extra_) return;
    if (unary_.dim() == 2) {
      STD_TORCH_CHECK(size > 0 && size <= 16 && extra_->dim() == 2 && extra_->scalar_type() == ScalarType::Double &&
                          (extra_->size(0) == items || extra_->size(0) == 1) && extra_->size(1) == int64_t(1) << size,
                      "parsimax structured: a table has a score for every vector of 1 to 16 bits");
      extra_tensor = torch::stable::contiguous(*extra_);
      extra_size = extra_->size(1), extra_step = extra_->size(0) == 1 ? 0 : extra_size;
      return;
    }
    STD_TORCH_CHECK(unary_.dim() == 3 && extra_->dim() == 4 && extra_->scalar_type() == ScalarType::Double &&
                        (extra_->size(0) == items || extra_->size(0) == 1) &&
                        (extra_->size(1) == unary_.size(1) - 1 || extra_->size(1) == 1) &&
                        extra_->size(2) == unary_.size(2) && extra_->size(3) == unary_.size(2),
                    "parsimax structured: the transitions do not fit the scores");
    extra_tensor = torch::stable::contiguous(*extra_);
    extra_size = extra_->size(1) * extra_->size(2) * extra_->size(3);
    extra_step = extra_->size(0) == 1 ? 0 : extra_size;
  }
  const double* unary(int64_t b) const { return (const double*)unary_tensor.const_data_ptr() + b * size; }
  const double* extra(int64_t b) const {
    return extra_tensor ? (const double*)extra_tensor->const_data_ptr() + b * extra_step : nullptr;
  }
  bool is_clean(int64_t b) const {  // neither NaN nor +inf
    const auto clean = [](const double* x, int64_t n) {
      for (int64_t i = 0; i < n; i++)
        if (!(x[i] < INF)) return false;
      return true;
    };
    return clean(unary(b), size) && clean(extra(b), extra_size);
  }
};

// f(oracle) with the oracle of this kind; each thread makes its own copy of it.
template <class F> auto with_oracle(const Problem& problem, int64_t kind, int64_t low, int64_t high, const F& f) {
  const Tensor& x = problem.unary_tensor;
  if (kind == BITS) {
    STD_TORCH_CHECK(x.dim() == 2, "parsimax structured: scores of bits are (items, bits)");
    return f(Bits(x.size(1), low, high));
  }
  if (kind == TABLE) {
    STD_TORCH_CHECK(x.dim() == 2 && problem.extra_tensor.has_value(), "parsimax structured: a table has its scores");
    return f(Table(x.size(1)));
  }
  STD_TORCH_CHECK(x.dim() == 3 && x.size(1) > 0 && x.size(2) > 0 && x.size(2) < (int64_t(1) << 31),
                  "parsimax structured: scores of labels are (items, positions, labels)");
  STD_TORCH_CHECK((kind == CHAIN) == problem.extra_tensor.has_value(), "parsimax structured: chains have transitions");
  if (kind == CHAIN) return f(Chain(x.size(1), x.size(2), problem.extra_tensor->size(1) == 1));
  if (kind == EACH) return f(Each(x.size(1), x.size(2)));
  if (kind == ASSIGNMENT) {
    STD_TORCH_CHECK(x.size(1) <= x.size(2), "parsimax structured: an assignment has at least as many columns as rows");
    return f(Assignment(x.size(1), x.size(2)));
  }
  STD_TORCH_CHECK(kind == TREE && x.size(2) == x.size(1) + 1, "parsimax structured: heads are (items, n, n + 1)");
  return f(Tree(x.size(1), low == 1));
}

// work(next) on each thread, where next(b) gives the next item that is left. Memory that runs out inside must not
// cross the threads' C boundary as an exception, so it is carried over.
template <class Work> void each_item(int64_t items, const Work& work) {
  if (items == 0) return;
  std::atomic<int64_t> counter{0};
  std::exception_ptr failure;
  std::mutex guard;
  const auto next = [&](int64_t& b) { return (b = counter++) < items; };
  torch::stable::parallel_for(0, std::min<int64_t>(items, torch::stable::get_num_threads()), 1, [&](int64_t, int64_t) {
    try {
      work(next);
    } catch (...) {
      const std::lock_guard<std::mutex> hold(guard);
      failure = std::current_exception();
      counter = items;
    }
  });
  if (failure) std::rethrow_exception(failure);
}
}  // namespace parsimax::structured

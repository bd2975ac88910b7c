// The operators of SparseMAP. Results are ragged: one row a pair of an item and one of its active vertices.
#include <optional>
#include <tuple>
#include <vector>

#include "tasks.h"
#include "active_set.h"
#include "structured_items.h"

using namespace parsimax;
using namespace parsimax::structured;
using std::optional;

namespace {
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

template <class Unit> struct Answer {
  std::vector<Unit> vertices;
  std::vector<double> weights;
  double gap = 0;
  int64_t iterations = 0;
};

template <class Oracle>
Four solve(const Problem& problem, const Oracle& like, const Limits& limits, const optional<Tensor>& start,
           const optional<Tensor>& start_weights, const optional<Tensor>& start_counts) {
  using Unit = typename Oracle::Unit;
  std::vector<Answer<Unit>> answers(problem.items);
  std::vector<int64_t> first(problem.items + 1, 0);
  if (start_counts)
    for (int64_t b = 0; b < problem.items; b++)
      first[b + 1] = first[b] + ((const int64_t*)start_counts->const_data_ptr())[b];
  each_item(problem.items, [&](const auto& next) {
    Oracle oracle = like;
    ActiveSet<Oracle> active(oracle);
    for (int64_t b; next(b);) {
      Answer<Unit>& answer = answers[b];
      if (!problem.is_clean(b)) {
        answer = {std::vector<Unit>(oracle.len, 0), {std::nan("")}, std::nan(""), 0};
        continue;
      }
      oracle.set(problem.extra(b));
      const auto* vertices = start ? (const Unit*)start->const_data_ptr() + first[b] * oracle.len : nullptr;
      const auto* weights = start ? (const double*)start_weights->const_data_ptr() + first[b] : nullptr;
      if (!active.run(problem.unary(b), limits, vertices, weights, first[b + 1] - first[b])) continue;
      answer = {active.vertices, active.y, active.gap, active.iterations};
    }
  });
  int64_t total = 0;
  for (const auto& answer : answers) total += (int64_t)answer.weights.size();
  const Tensor& on = problem.unary_tensor;
  Tensor codes = new_tensor(on, {total, like.len}, sizeof(Unit) == 8 ? ScalarType::Long : ScalarType::Int);
  Tensor weights = new_tensor(on, {total}, ScalarType::Double),
         facts = new_tensor(on, {problem.items, 2}, ScalarType::Double);
  Tensor counts = new_tensor(on, {problem.items}, ScalarType::Long);
  auto* code = (Unit*)codes.mutable_data_ptr();
  auto *weight = (double*)weights.mutable_data_ptr(), *fact = (double*)facts.mutable_data_ptr();
  for (int64_t b = 0; b < problem.items; b++) {
    const auto& answer = answers[b];
    code = std::copy(answer.vertices.begin(), answer.vertices.end(), code);
    weight = std::copy(answer.weights.begin(), answer.weights.end(), weight);
    ((int64_t*)counts.mutable_data_ptr())[b] = (int64_t)answer.weights.size();
    fact[2 * b] = answer.gap, fact[2 * b + 1] = (double)answer.iterations;
  }
  return {codes, weights, counts, facts};
}

Four sparsemap(Tensor unary, optional<Tensor> extra, int64_t kind, int64_t low, int64_t high, optional<Tensor> start,
               optional<Tensor> start_weights, optional<Tensor> start_counts, int64_t iterations, int64_t support,
               double tolerance) {
  const Problem problem(unary, extra);
  const Limits limits{iterations, support, tolerance};
  if (start) {
    STD_TORCH_CHECK(start_weights && start_counts, "parsimax sparsemap: a start has vertices, weights and counts");
    start = torch::stable::contiguous(*start), start_weights = torch::stable::contiguous(*start_weights);
    start_counts = torch::stable::contiguous(*start_counts);
    STD_TORCH_CHECK(start_counts->dim() == 1 && start_counts->size(0) == problem.items &&
                        start_weights->size(0) == start->size(0) && start_counts->scalar_type() == ScalarType::Long &&
                        start_weights->scalar_type() == ScalarType::Double,
                    "parsimax sparsemap: the start does not fit the scores");
    const auto* count = (const int64_t*)start_counts->const_data_ptr();
    int64_t sum = 0;
    for (int64_t b = 0; b < problem.items; b++) sum += std::max<int64_t>(0, count[b]);
    STD_TORCH_CHECK(sum == start->size(0), "parsimax sparsemap: the counts of the start do not add up");
  }
  return with_oracle(problem, kind, low, high, [&](const auto& oracle) {
    using Unit = typename std::decay_t<decltype(oracle)>::Unit;
    if (start) {
      const auto type = sizeof(Unit) == 8 ? ScalarType::Long : ScalarType::Int;
      STD_TORCH_CHECK(start->dim() == 2 && start->size(1) == oracle.len && start->scalar_type() == type,
                      "parsimax sparsemap: the start does not fit the scores");
      if constexpr (sizeof(Unit) == 4)
        for (int64_t i = 0; i < start->size(0) * oracle.len; i++) {
          const Unit label = ((const Unit*)start->const_data_ptr())[i];
          STD_TORCH_CHECK(label >= 0 && label < oracle.labels,
                          "parsimax sparsemap: a label of the start is out of range");
        }
    }
    return solve(problem, oracle, limits, start, start_weights, start_counts);
  });
}

// d weights / d scores of the vertices, applied to g: Q g with Q = Z - Z 1 1' Z / 1' Z 1, Z = (M'M)^-1. A vertex that
// depends on those before it up to rounding gets 0: without it they span the same.
template <class Oracle>
Tensor project(const Oracle& oracle, const Tensor& codes, const Tensor& counts, const Tensor& g) {
  using Unit = typename Oracle::Unit;
  const int64_t items = counts.size(0);
  Tensor out = torch::stable::empty_like(g);
  std::fill_n((double*)out.mutable_data_ptr(), g.size(0), 0.0);
  const auto* count = (const int64_t*)counts.const_data_ptr();
  std::vector<int64_t> first(items + 1, 0);
  for (int64_t b = 0; b < items; b++) first[b + 1] = first[b] + count[b];
  STD_TORCH_CHECK(first[items] == codes.size(0), "parsimax sparsemap: the counts do not add up to the vertices");
  const auto* vertices = (const Unit*)codes.const_data_ptr();
  each_item(items, [&](const auto& next) {
    Cholesky factor;
    std::vector<double> products, x;
    std::vector<int64_t> kept;
    std::vector<Unit> own;
    for (int64_t b; next(b);) {
      factor.size = 0;
      kept.clear(), own.clear();
      for (int64_t i = first[b]; i < first[b + 1]; i++) {
        const Unit* a = vertices + i * oracle.len;
        const double self = bordered(oracle, own.data(), factor.size, a, products);
        const double pivot = factor.try_append(products.data(), self);
        if (!(pivot > 1e-9 * self)) continue;
        factor.append(pivot, ((const double*)g.const_data_ptr())[i]);
        kept.push_back(i), own.insert(own.end(), a, a + oracle.len);
      }
      if (kept.empty()) continue;
      factor.solve(x, 0);
      for (int64_t i = 0; i < factor.size; i++) ((double*)out.mutable_data_ptr())[kept[i]] = x[i];
    }
  });
  return out;
}

Tensor sparsemap_grad(Tensor codes, Tensor counts, Tensor g) {
  const bool words = codes.scalar_type() == ScalarType::Long;
  STD_TORCH_CHECK(codes.dim() == 2 && (words || codes.scalar_type() == ScalarType::Int) && g.dim() == 1 &&
                      g.size(0) == codes.size(0) && g.scalar_type() == ScalarType::Double && counts.dim() == 1 &&
                      counts.scalar_type() == ScalarType::Long,
                  "parsimax sparsemap: vertices (pairs, length), counts (items) and gradients (pairs) do not fit");
  codes = torch::stable::contiguous(codes), counts = torch::stable::contiguous(counts);
  g = torch::stable::contiguous(g);
  if (words) return project(Bits(codes.size(1) * 64, 0, 0), codes, counts, g);
  return project(Labels(codes.size(1), 1), codes, counts, g);
}
}  // namespace

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_sparsemap", TORCH_BOX(&sparsemap));
  m.impl("_sparsemap_grad", TORCH_BOX(&sparsemap_grad));
}

// The operators of the linear loss: hidden (N, d), weight (V, d), bias (V), target (N) with -1 for rows to leave out,
// alpha one number or one per row. The loss of a row is Omega*(z) - z_target.
#include <optional>
#include <tuple>
#include <vector>

#include "level.h"
#include "tasks.h"

using namespace parsimax;
using std::optional;

namespace {
constexpr int64_t CHUNK_BYTES = 24 << 20;
constexpr int64_t COLUMNS = 128;  // rows of dweight that one task owns

const LinearLossKernels& kernels() { return level().linear_loss; }

bool bf16_pairs() {
#if defined(__x86_64__)
  static const bool can = level().number == 2 && __builtin_cpu_supports("avx512bf16");
  return can;
#else
  return false;
#endif
}

struct Problem {
  LinearLoss p{};
  ScalarType type, compute;
  int wide, kind;  // wide: float64; kind: which of the kernels' types
  int64_t dim, chunk;
  Tensor hidden, weight, target;
  optional<Tensor> bias, alpha;

  Problem(const Tensor& hidden_, const Tensor& weight_, optional<Tensor> bias_, const Tensor& target_,
          optional<Tensor> alpha_, double alpha_value, double softcap) {
    STD_TORCH_CHECK(hidden_.dim() == 2 && weight_.dim() == 2 && hidden_.size(1) == weight_.size(1) &&
                        hidden_.scalar_type() == weight_.scalar_type(),
                    "parsimax linear loss: hidden (N, d) and weight (V, d) do not fit, or differ in type");
    type = hidden_.scalar_type();
    compute = compute_type(hidden_);
    wide = compute == ScalarType::Double;
    kind = wide ? 1 : type == ScalarType::BFloat16 ? 2 : type == ScalarType::Half ? 3 : 0;
    p.rows = hidden_.size(0), p.classes = weight_.size(0), dim = hidden_.size(1), p.dim = padded(dim);
    STD_TORCH_CHECK(p.classes > 0 && p.classes < (int64_t(1) << 31) - 256,
                    "parsimax linear loss: too few or too many classes");
    STD_TORCH_CHECK(p.rows < int64_t(1) << 31, "parsimax linear loss: too many rows");
    STD_TORCH_CHECK(target_.dim() == 1 && target_.size(0) == p.rows && target_.scalar_type() == ScalarType::Long,
                    "parsimax linear loss: target is int64 of shape (N)");
    hidden = features(hidden_, type), weight = features(weight_, type), target = torch::stable::contiguous(target_);
    p.hidden = hidden.const_data_ptr(), p.weight = weight.const_data_ptr(),
    p.target = (const int64_t*)target.const_data_ptr();
    p.hidden_stride = hidden.stride(0), p.weight_stride = weight.stride(0);
    p.pairs = kind == 2 && bf16_pairs() && p.dim % 32 == 0 && p.weight_stride % 2 == 0 && uintptr_t(p.weight) % 4 == 0;
    for (int64_t i = 0; i < p.rows; i++)
      STD_TORCH_CHECK(p.target[i] >= -1 && p.target[i] < p.classes, "parsimax linear loss: target out of range");
    if (bias_) {
      STD_TORCH_CHECK(bias_->dim() == 1 && bias_->size(0) == p.classes, "parsimax linear loss: bias has shape (V)");
      bias = torch::stable::contiguous(as_type(*bias_, compute));
      p.bias = bias->const_data_ptr();
    }
    if (alpha_) {
      STD_TORCH_CHECK(alpha_->numel() == 1 || alpha_->numel() == p.rows,
                      "parsimax linear loss: alpha is one number or one per row");
      alpha = torch::stable::contiguous(as_type(*alpha_, ScalarType::Double));
      p.alpha = (const double*)alpha->const_data_ptr();
      p.alpha_step = alpha->numel() == 1 ? 0 : 1;
    }
    p.alpha_value = alpha_value, p.softcap = softcap;
    chunk = std::clamp<int64_t>(CHUNK_BYTES / (logit_stride(p.classes) * size()) / 12 * 12, 12, 384);
    chunk = std::min(chunk, std::max<int64_t>(1, p.rows));
  }
  int64_t size() const { return wide ? 8 : 4; }
  int64_t row_scratch() const { return (p.classes + 128) * 20; }

  // f(chunk) for every chunk of these rows, with the logits of the chunk computed. Rows that are not neighbours are
  // copied together first.
  template <class F> void each_chunk(const std::vector<int64_t>& rows, const F& f) {
    if (rows.empty()) return;
    const int64_t most = std::min<int64_t>(chunk, rows.size());
    Tensor logits = new_tensor(hidden, {most, logit_stride(p.classes)}, compute);
    Tensor copy = new_tensor(hidden, {most, p.dim}, compute);
    for (size_t first = 0; first < rows.size(); first += most) {
      Chunk c{std::min<int64_t>(most, rows.size() - first),
              logit_stride(p.classes),
              rows.data() + first,
              nullptr,
              p.dim,
              logits.mutable_data_ptr(),
              nullptr};
      c.hidden = copy.mutable_data_ptr();
      kernels().gather_hidden[kind](p, c);
      const int64_t group = kernels().group[wide];
      run_tasks(hidden, (p.classes + group - 1) / group, group * p.dim * size(),
                [&](int64_t task, void* scratch) { kernels().score[kind](p, c, task, scratch); });
      f(c);
    }
  }
};

using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// loss per row (float64 or float32), and for the backward: (maximum, edge, d loss / d alpha) per row, the indices and
// weights of the support, its size.
Five linear_loss_forward(Tensor hidden, Tensor weight, optional<Tensor> bias, Tensor target, optional<Tensor> alpha,
                         double alpha_value, double softcap, bool need_state) {
  Problem problem(hidden, weight, bias, target, alpha, alpha_value, softcap);
  LinearLoss& p = problem.p;
  p.cap = need_state ? std::min(CAP, p.classes) : 0;
  const Tensor& like = problem.hidden;
  Tensor loss = new_tensor(like, {p.rows}, problem.compute), state = new_tensor(like, {p.rows, 3}, ScalarType::Double);
  Tensor index = new_tensor(like, {p.rows, p.cap}, ScalarType::Int),
         support = new_tensor(like, {p.rows, p.cap}, problem.compute);
  Tensor count = new_tensor(like, {p.rows}, ScalarType::Int);
  p.loss = loss.mutable_data_ptr(), p.state = (double*)state.mutable_data_ptr();
  p.index = (int32_t*)index.mutable_data_ptr(), p.support = support.mutable_data_ptr();
  p.count = (int32_t*)count.mutable_data_ptr();
  std::vector<int64_t> rows(p.rows);
  for (int64_t i = 0; i < p.rows; i++) rows[i] = i;
  problem.each_chunk(rows, [&](const Chunk& c) {
    run_tasks(like, c.count, problem.row_scratch(),
              [&](int64_t i, void* scratch) { kernels().forward[problem.kind](p, c, i, scratch); });
  });
  return {loss, state, index, support, count};
}

// dhidden, dweight, dbias (empty without bias), for a gradient per row.
std::tuple<Tensor, Tensor, Tensor> linear_loss_backward(Tensor grad, Tensor hidden, Tensor weight,
                                                        optional<Tensor> bias, Tensor target, optional<Tensor> alpha,
                                                        double alpha_value, double softcap, Tensor state, Tensor index,
                                                        Tensor support, Tensor count) {
  Problem problem(hidden, weight, bias, target, alpha, alpha_value, softcap);
  LinearLoss& p = problem.p;
  const int k = problem.kind;
  STD_TORCH_CHECK(grad.numel() == p.rows && count.numel() == p.rows && state.numel() == 3 * p.rows &&
                      index.numel() == support.numel(),
                  "parsimax linear loss: the gradient or the state does not fit");
  const Tensor g = torch::stable::contiguous(as_type(grad, ScalarType::Double)), &like = problem.hidden;
  p.cap = index.size(1);
  p.grad = (const double*)g.const_data_ptr(), p.state = (double*)state.const_data_ptr();
  p.index = (int32_t*)index.const_data_ptr(), p.support = (void*)support.const_data_ptr();
  p.count = (int32_t*)count.const_data_ptr();
  Tensor column = new_tensor(like, {p.rows, p.cap + 1}, ScalarType::Int),
         entries = new_tensor(like, {p.rows}, ScalarType::Int);
  Tensor coefficient = new_tensor(like, {p.rows, p.cap + 1}, problem.compute);
  std::vector<int64_t> wide;
  for (int64_t i = 0; i < p.rows; i++)
    if (p.target[i] >= 0 && (p.count[i] > p.cap || p.count[i] < 0)) wide.push_back(i);
  p.narrow = wide.empty();
  Tensor dhidden = new_tensor(like, {p.rows, p.dim}, problem.type);
  Tensor dweight = new_tensor(like, {p.classes, p.dim}, p.narrow ? problem.type : problem.compute);
  Tensor dbias = new_tensor(like, {bias ? p.classes : 0}, problem.compute);
  p.column = (int32_t*)column.mutable_data_ptr(), p.entries = (int32_t*)entries.mutable_data_ptr();
  p.coefficient = coefficient.mutable_data_ptr(), p.dhidden = dhidden.mutable_data_ptr();
  p.dweight = dweight.mutable_data_ptr(), p.dbias = bias ? dbias.mutable_data_ptr() : nullptr;

  const int64_t bytes = p.dim * problem.size();
  run_tasks(like, p.rows, bytes, [&](int64_t row, void* scratch) { kernels().sparse_row[k](p, row, scratch); });
  {
    int64_t total = 0;
    for (int64_t i = 0; i < p.rows; i++) total += p.entries[i];
    Tensor start = new_tensor(like, {p.classes + 2}, ScalarType::Long),
           row_of = new_tensor(like, {total}, ScalarType::Int);
    Tensor sorted = new_tensor(like, {total}, problem.compute);
    p.start = (int64_t*)start.mutable_data_ptr(), p.row_of = (int32_t*)row_of.mutable_data_ptr(),
    p.sorted = sorted.mutable_data_ptr();
    kernels().sort_columns[k](p);
    run_tasks(like, (p.classes + COLUMNS - 1) / COLUMNS, bytes, [&](int64_t task, void* scratch) {
      kernels().sparse_columns[k](p, task * COLUMNS, std::min(p.classes, (task + 1) * COLUMNS), scratch);
    });
  }
  Tensor part =
      new_tensor(like, {wide.empty() ? 0 : std::min<int64_t>(problem.chunk, wide.size()), p.dim}, problem.compute);
  problem.each_chunk(wide, [&](Chunk c) {
    c.dhidden = part.mutable_data_ptr();
    run_tasks(like, c.count, problem.row_scratch(),
              [&](int64_t i, void* scratch) { kernels().wide_row[k](p, c, i, scratch); });
    const int64_t rows = std::max<int64_t>(12, (c.count / 4 + 11) / 12 * 12), classes = 192;
    run_tasks(like, (c.count + rows - 1) / rows, 0, [&](int64_t task, void*) {
      kernels().wide_hidden[k](p, c, task * rows, std::min(c.count, (task + 1) * rows));
    });
    run_tasks(like, (p.classes + classes - 1) / classes, 0, [&](int64_t task, void*) {
      kernels().wide_weight[k](p, c, task * classes, std::min(p.classes, (task + 1) * classes));
    });
    kernels().wide_done[k](p, c);
  });
  return {restore(dhidden, problem.dim, problem.type), restore(dweight, problem.dim, weight.scalar_type()),
          bias ? as_type(dbias, bias->scalar_type()) : dbias};
}
}  // namespace

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_linear_loss_fwd", TORCH_BOX(&linear_loss_forward));
  m.impl("_linear_loss_bwd", TORCH_BOX(&linear_loss_backward));
}

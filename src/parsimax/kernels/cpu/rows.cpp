// Row operators over libtorch's stable ABI. No Python symbol is used: the library is loaded by torch.ops.load_library.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>

#include "level.h"

using namespace parsimax;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

static const RowKernels& kernels() { return level().rows; }

static int type_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return 0;
    case ScalarType::Double:
      return 1;
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Half:
      return 3;
    default:
      STD_TORCH_CHECK(false, "parsimax: scores must be float32, float64, bfloat16 or float16");
      return 0;
  }
}
struct Rows {
  int64_t n, rows;
};
static Rows rows_of(const Tensor& x) {
  STD_TORCH_CHECK(x.dim() > 0, "parsimax: the row kernels need at least one dimension");
  const int64_t n = x.size(x.dim() - 1);
  STD_TORCH_CHECK(n < (int64_t(1) << 31) - 256, "parsimax: rows of 2^31 numbers or more are not supported, got ", n);
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); d++) rows *= x.size(d);
  return {n, rows};
}
// Each thread keeps the scratch of ordinary rows; that of very long ones is given back with the next shorter call.
static void* scratch_for(int64_t n) {
  struct Buffer {
    std::unique_ptr<char[]> data;
    int64_t size = 0;
  };
  static thread_local Buffer buffer;
  const int64_t bytes = scratch_bytes(n) + 64;
  if (bytes > buffer.size || buffer.size > (int64_t(16) << 20)) {
    buffer.size = 0;
    buffer.data.reset(new char[bytes]);
    buffer.size = bytes;
  }
  return (void*)(((uintptr_t)buffer.data.get() + 63) & ~uintptr_t(63));
}
static Tensor packed(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }
static void run(Work work, const void* args, Rows r) {
  if (r.rows == 0 || r.n == 0) return;
  const int64_t blocks = (r.rows + BLOCK - 1) / BLOCK, grain = std::max<int64_t>(1, 32768 / (r.n * BLOCK));
  auto part = [&](int64_t b, int64_t e) { work(args, b * BLOCK, std::min(e * BLOCK, r.rows), scratch_for(r.n)); };
  if (blocks <= grain) part(0, blocks);
  else torch::stable::parallel_for(0, blocks, grain, part);
}
// A parameter: a float, or a tensor with one number, or one per row. `hold` keeps a contiguous copy alive.
static Param param(const std::optional<Tensor>& t, double value, int64_t rows, Tensor& hold) {
  if (!t.has_value()) return {nullptr, true, 0, value};
  const auto type = t->scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::Double,
                  "parsimax: a parameter must be float32 or float64");
  const int64_t count = t->numel();
  STD_TORCH_CHECK(count == 1 || count == rows, "parsimax: a parameter needs 1 number or one per row (", rows, "), got ",
                  count);
  hold = packed(*t);
  return {hold.const_data_ptr(), type == ScalarType::Double, count == 1 ? 0 : 1, 0};
}
// Whether a last-level cache is too small for what an operator reads and writes, `tensors` of the size of x: then its
// result will not be found there anyway, and writing past the cache spares reading the lines first. 32 MB is what a
// group of cores shares; sysconf says 320 MB in a virtual machine that has 32.
static bool streams(const Tensor& x, int64_t tensors) {
  return int64_t(x.numel() * x.element_size()) * tensors > int64_t(32) << 20;
}
// Zeros, so that rows of length 0, which no kernel visits, have a value.
static Tensor one_per_row(const Tensor& x, int64_t rows, bool wanted, ScalarType type = ScalarType::Double) {
  if (!wanted) return torch::stable::new_empty(x, {0}, type);
  return torch::stable::new_zeros(x, {rows}, type);
}

Tensor entmax_fwd(Tensor x, std::optional<Tensor> alpha, double alpha_value) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  x = packed(x);
  Tensor p = torch::stable::empty_like(x), hold = x;
  const MapArgs args{x.const_data_ptr(), p.mutable_data_ptr(), param(alpha, alpha_value, r.rows, hold), r.n,
                     streams(x, 2)};
  run(kernels().map[t], &args, r);
  return p;
}

// From p alone: s = p^(2 - alpha), and the derivative by alpha is a function of p too.
std::tuple<Tensor, Tensor> entmax_bwd(Tensor p, Tensor g, std::optional<Tensor> alpha, double alpha_value,
                                      bool need_alpha) {
  const int t = type_of(p);
  const Rows r = rows_of(p);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == p.numel(), "parsimax: p and its gradient differ in type or size");
  p = packed(p);
  g = packed(g);
  Tensor dx = torch::stable::empty_like(p), dalpha = one_per_row(p, r.rows, need_alpha), hold = p;
  const GradArgs args{p.const_data_ptr(),
                      g.const_data_ptr(),
                      dx.mutable_data_ptr(),
                      need_alpha ? (double*)dalpha.mutable_data_ptr() : nullptr,
                      param(alpha, alpha_value, r.rows, hold),
                      r.n,
                      streams(p, 3)};
  run(kernels().grad[t], &args, r);
  return {dx, dalpha};
}

// The same with what the backward needs of nearly dense rows (2 numbers each); without any such row the state is empty.
std::tuple<Tensor, Tensor> entmax_learned_fwd(Tensor x, Tensor alpha) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  x = packed(x);
  Tensor p = torch::stable::empty_like(x), state = torch::stable::new_empty(x, {r.rows, 2}, ScalarType::Double),
         hold = x;
  static_assert(sizeof(DenseRow) == 2 * sizeof(double));
  bool any = false;
  const MapArgs args{x.const_data_ptr(),
                     p.mutable_data_ptr(),
                     param(alpha, 0, r.rows, hold),
                     r.n,
                     streams(x, 2),
                     (DenseRow*)state.mutable_data_ptr(),
                     &any};
  run(kernels().map[t], &args, r);
  return {p, any ? state : torch::stable::new_empty(x, {0, 2}, ScalarType::Double)};
}
std::tuple<Tensor, Tensor> entmax_learned_bwd(Tensor p, Tensor x, Tensor g, Tensor alpha, Tensor state,
                                              bool need_alpha) {
  const int t = type_of(p);
  const Rows r = rows_of(p);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == p.numel() && type_of(x) == t && x.numel() == p.numel(),
                  "parsimax: p, the scores and the gradient differ in type or size");
  STD_TORCH_CHECK(state.numel() == 2 * r.rows && state.scalar_type() == ScalarType::Double,
                  "parsimax: the state is not that of the forward");
  p = packed(p);
  x = packed(x);
  g = packed(g);
  Tensor dx = torch::stable::empty_like(p), dalpha = one_per_row(p, r.rows, need_alpha), hold = p;
  const GradArgs args{p.const_data_ptr(),
                      g.const_data_ptr(),
                      dx.mutable_data_ptr(),
                      need_alpha ? (double*)dalpha.mutable_data_ptr() : nullptr,
                      param(alpha, 0, r.rows, hold),
                      r.n,
                      streams(p, 3),
                      x.const_data_ptr(),
                      (const DenseRow*)state.const_data_ptr()};
  run(kernels().grad[t], &args, r);
  return {dx, dalpha};
}

// The non-zeros of a row, and how many there are; NaN counts as one. W: the unsigned integer of the size of a number.
template <class W> static int64_t compact(const void* row, int64_t n, int64_t cap, int64_t* index, void* out) {
  const W* p = (const W*)row;
  W* value = (W*)out;
  int64_t count = 0, i = 0;
  const auto take = [&](int64_t at) {
    if (!W(p[at] << 1)) return;  // without the sign
    if (count < cap) index[count] = at, value[count] = p[at];
    count++;
  };
  for (; i + 8 <= n; i += 8) {
    W any = 0;
    for (int64_t k = 0; k < 8; k++) any |= p[i + k];
    if (W(any << 1))
      for (int64_t k = 0; k < 8; k++) take(i + k);
  }
  for (; i < n; i++) take(i);
  for (int64_t k = count; k < cap; k++) index[k] = 0, value[k] = 0;
  return count;
}
// A few rows of p at a time are in memory: short rows by the block, which the kernels solve together, others one by
// one.
std::tuple<Tensor, Tensor, Tensor> support_fwd(Tensor x, std::optional<Tensor> alpha, double alpha_value, int64_t cap) {
  STD_TORCH_CHECK(cap >= 0, "parsimax: the support needs a capacity of 0 or more, got ", cap);
  const int t = type_of(x);
  const Rows r = rows_of(x);
  x = packed(x);
  Tensor index = torch::stable::new_zeros(x, {r.rows, cap}, ScalarType::Long),
         value = torch::stable::new_zeros(x, {r.rows, cap});
  Tensor count = one_per_row(x, r.rows, true, ScalarType::Long), hold = x;
  const Param a = param(alpha, alpha_value, r.rows, hold);
  const int64_t size = x.element_size(), together = r.n <= SHORT ? BLOCK : 1;
  if (r.rows == 0 || r.n == 0) return {index, value, count};
  const auto find = size == 8 ? compact<uint64_t> : size == 4 ? compact<uint32_t> : compact<uint16_t>;
  auto ends = (int64_t*)count.mutable_data_ptr(), columns = (int64_t*)index.mutable_data_ptr();
  auto numbers = (char*)value.mutable_data_ptr();
  const auto part = [&](int64_t first, int64_t last) {
    std::unique_ptr<char[]> p(new char[together * r.n * size + 64]);
    for (int64_t b = first * together; b < std::min(last * together, r.rows); b += together) {
      const int64_t rows = std::min(together, r.rows - b);
      Param own = a;
      if (a.data) own.data = (const char*)a.data + b * a.stride * (a.wide ? 8 : 4);
      const MapArgs args{(const char*)x.const_data_ptr() + b * r.n * size, p.get(), own, r.n, false};
      kernels().map[t](&args, 0, rows, scratch_for(r.n));
      for (int64_t k = 0; k < rows; k++)
        ends[b + k] = find(p.get() + k * r.n * size, r.n, cap, columns + (b + k) * cap, numbers + (b + k) * cap * size);
    }
  };
  const int64_t blocks = (r.rows + together - 1) / together, grain = std::max<int64_t>(1, 32768 / (r.n * together));
  if (blocks <= grain) part(0, blocks);
  else torch::stable::parallel_for(0, blocks, grain, part);
  return {index, value, count};
}

std::tuple<Tensor, Tensor> topk_fwd(Tensor x, int64_t k) {
  STD_TORCH_CHECK(k >= 1, "parsimax: topk_sparsemax needs k >= 1, got ", k);
  const int t = type_of(x);
  const Rows r = rows_of(x);
  x = packed(x);
  Tensor p = torch::stable::empty_like(x), certain = one_per_row(x, r.rows, true, ScalarType::Bool);
  const TopkArgs args{x.const_data_ptr(), p.mutable_data_ptr(), (bool*)certain.mutable_data_ptr(), r.n, k};
  run(kernels().topk[t], &args, r);
  return {p, certain};
}

static void set_smoothing(LossArgs& args, double smoothing, const std::optional<Tensor>& weight, Tensor& hold) {
  args.smoothing = smoothing;
  args.weight = nullptr;
  args.weight_sum = double(args.n);
  if (!weight.has_value()) return;
  STD_TORCH_CHECK(weight->scalar_type() == ScalarType::Double && weight->numel() == args.n,
                  "parsimax: the loss needs one float64 weight per class");
  hold = packed(*weight);
  args.weight = (const double*)hold.const_data_ptr();
  args.weight_sum = 0;
  for (int64_t k = 0; k < args.n; k++) args.weight_sum += args.weight[k];
}
// The four tensors of state: one LossRow per row, and the support of each row, if it fits into `cap`.
std::tuple<Tensor, Tensor, Tensor, Tensor> loss_fwd(Tensor x, Tensor target, std::optional<Tensor> alpha,
                                                    double alpha_value, double smoothing,
                                                    std::optional<Tensor> weight) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  STD_TORCH_CHECK(target.scalar_type() == ScalarType::Long && target.numel() == r.rows,
                  "parsimax: the loss needs one int64 target per row (", r.rows, "), got ", target.numel());
  x = packed(x);
  target = packed(target);
  auto c = (const int64_t*)target.const_data_ptr();
  for (int64_t i = 0; i < r.rows; i++)
    STD_TORCH_CHECK(c[i] >= -1 && c[i] < r.n, "parsimax: target ", c[i], " is out of range for ", r.n, " classes");
  const ScalarType out = t == 1 ? ScalarType::Double : ScalarType::Float;
  const int64_t cap = std::min(r.n, std::max<int64_t>(64, r.n / 64));
  Tensor loss = one_per_row(x, r.rows, true, out), hold = x;
  Tensor rows = torch::stable::new_empty(x, {r.rows, int64_t(sizeof(LossRow) / 8)}, ScalarType::Double);
  Tensor index = torch::stable::new_empty(x, {r.rows, cap}, ScalarType::Int),
         value = torch::stable::new_empty(x, {r.rows, cap}, out);
  LossArgs args{x.const_data_ptr(),
                c,
                param(alpha, alpha_value, r.rows, hold),
                r.n,
                cap,
                loss.mutable_data_ptr(),
                (LossRow*)rows.mutable_data_ptr(),
                (int32_t*)index.mutable_data_ptr(),
                value.mutable_data_ptr(),
                {},
                nullptr};
  Tensor hold_weight = x;
  set_smoothing(args, smoothing, weight, hold_weight);
  run(kernels().loss[t], &args, r);
  return {loss, rows, index, value};
}
std::tuple<Tensor, Tensor> loss_bwd(Tensor x, Tensor target, Tensor g, std::optional<Tensor> alpha, double alpha_value,
                                    double smoothing, std::optional<Tensor> weight, Tensor rows, Tensor index,
                                    Tensor value) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  STD_TORCH_CHECK(g.numel() == r.rows && target.numel() == r.rows,
                  "parsimax: the loss needs one gradient and target per row");
  x = packed(x);
  target = packed(target);
  Tensor dx = torch::stable::empty_like(x), dalpha = one_per_row(x, r.rows, alpha.has_value()), hold = x, hold_g = x;
  Param scale = param(g, 0, r.rows, hold_g);
  const int64_t cap = index.size(1);
  LossArgs args{x.const_data_ptr(),
                (const int64_t*)target.const_data_ptr(),
                param(alpha, alpha_value, r.rows, hold),
                r.n,
                cap,
                nullptr,
                (LossRow*)rows.const_data_ptr(),
                (int32_t*)index.const_data_ptr(),
                (void*)value.const_data_ptr(),
                scale,
                dx.mutable_data_ptr()};
  Tensor hold_weight = x;
  set_smoothing(args, smoothing, weight, hold_weight);
  run(kernels().loss_grad[t], &args, r);
  if (alpha.has_value()) {
    auto out = (double*)dalpha.mutable_data_ptr();
    for (int64_t i = 0; i < r.rows; i++) {
      const double slope = args.rows[i].dalpha;
      out[i] = slope == 0 ? 0
                          : slope * (scale.wide ? ((const double*)scale.data)[i * scale.stride]
                                                : ((const float*)scale.data)[i * scale.stride]);
    }
  }
  return {dx, dalpha};
}

Tensor rsoftmax_fwd(Tensor x, std::optional<Tensor> rate, double rate_value) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  x = packed(x);
  Tensor p = torch::stable::empty_like(x), hold = x;
  const ThresholdArgs args{x.const_data_ptr(),
                           nullptr,
                           nullptr,
                           p.mutable_data_ptr(),
                           nullptr,
                           param(rate, rate_value, r.rows, hold),
                           r.n,
                           false};
  run(kernels().rsoftmax[t], &args, r);
  return p;
}
std::tuple<Tensor, Tensor> rsoftmax_bwd(Tensor x, Tensor g, std::optional<Tensor> rate, double rate_value, bool detach,
                                        bool need_rate) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == x.numel(),
                  "parsimax: the scores and the gradient differ in type or size");
  x = packed(x);
  g = packed(g);
  Tensor dx = torch::stable::empty_like(x), drate = one_per_row(x, r.rows, need_rate), hold = x;
  const ThresholdArgs args{x.const_data_ptr(),
                           nullptr,
                           g.const_data_ptr(),
                           dx.mutable_data_ptr(),
                           need_rate ? (double*)drate.mutable_data_ptr() : nullptr,
                           param(rate, rate_value, r.rows, hold),
                           r.n,
                           detach};
  run(kernels().rsoftmax_grad[t], &args, r);
  return {dx, drate};
}

Tensor budget_fwd(Tensor x, std::optional<Tensor> budget, double budget_value) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  x = packed(x);
  Tensor p = torch::stable::empty_like(x), hold = x;
  const ThresholdArgs args{x.const_data_ptr(),
                           nullptr,
                           nullptr,
                           p.mutable_data_ptr(),
                           nullptr,
                           param(budget, budget_value, r.rows, hold),
                           r.n,
                           false};
  run(kernels().budget[t], &args, r);
  return p;
}
std::tuple<Tensor, Tensor> budget_bwd(Tensor p, Tensor g, bool need_budget) {
  const int t = type_of(p);
  const Rows r = rows_of(p);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == p.numel(), "parsimax: p and its gradient differ in type or size");
  p = packed(p);
  g = packed(g);
  Tensor dx = torch::stable::empty_like(p), dbudget = one_per_row(p, r.rows, need_budget);
  const ThresholdArgs args{nullptr,
                           p.const_data_ptr(),
                           g.const_data_ptr(),
                           dx.mutable_data_ptr(),
                           need_budget ? (double*)dbudget.mutable_data_ptr() : nullptr,
                           {},
                           r.n,
                           false};
  run(kernels().budget_grad[t], &args, r);
  return {dx, dbudget};
}

int64_t isa() { return level().number; }

// The schemas are in kernels/schemas.py, with what each operator gives and saves.
STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_entmax_fwd", TORCH_BOX(&entmax_fwd));
  m.impl("_entmax_bwd", TORCH_BOX(&entmax_bwd));
  m.impl("_entmax_learned_fwd", TORCH_BOX(&entmax_learned_fwd));
  m.impl("_entmax_learned_bwd", TORCH_BOX(&entmax_learned_bwd));
  m.impl("_support_fwd", TORCH_BOX(&support_fwd));
  m.impl("_topk_sparsemax_fwd", TORCH_BOX(&topk_fwd));
  m.impl("_loss_fwd", TORCH_BOX(&loss_fwd));
  m.impl("_loss_bwd", TORCH_BOX(&loss_bwd));
  m.impl("_rsoftmax_fwd", TORCH_BOX(&rsoftmax_fwd));
  m.impl("_rsoftmax_bwd", TORCH_BOX(&rsoftmax_bwd));
  m.impl("_budget_fwd", TORCH_BOX(&budget_fwd));
  m.impl("_budget_bwd", TORCH_BOX(&budget_bwd));
}
STABLE_TORCH_LIBRARY_IMPL(parsimax, CompositeExplicitAutograd, m) { m.impl("_isa", TORCH_BOX(&isa)); }

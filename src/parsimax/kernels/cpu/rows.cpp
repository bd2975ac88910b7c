// The mappings' operators over libtorch's stable ABI. No Python symbol is used: torch.ops.load_library loads them.
#include "run.h"

using namespace parsimax;

Tensor entmax_fwd(Tensor x, std::optional<Tensor> alpha, double alpha_value) {
  const int t = type_of(x);
  const Rows r = aligned({&x});
  Tensor p = torch::stable::empty_like(x), hold = x;
  const MapArgs args{x.const_data_ptr(), p.mutable_data_ptr(), param(alpha, alpha_value, r.rows, hold), r.n,
                     r.apart == 1 && streams(x, 2)};
  run(kernels().map[t], args, r, t, {&MapArgs::x}, &MapArgs::p);
  return p;
}

// From p alone: s = p^(2 - alpha), and the derivative by alpha is a function of p too.
std::tuple<Tensor, Tensor> entmax_bwd(Tensor p, Tensor g, std::optional<Tensor> alpha, double alpha_value,
                                      bool need_alpha) {
  const int t = type_of(p);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == p.numel(), "parsimax: p and its gradient differ in type or size");
  const Rows r = aligned({&p, &g});
  Tensor dx = torch::stable::empty_like(p), dalpha = one_per_row(p, r.rows, need_alpha), hold = p;
  const GradArgs args{p.const_data_ptr(),
                      g.const_data_ptr(),
                      dx.mutable_data_ptr(),
                      need_alpha ? (double*)dalpha.mutable_data_ptr() : nullptr,
                      param(alpha, alpha_value, r.rows, hold),
                      r.n,
                      r.apart == 1 && streams(p, 3)};
  run(kernels().grad[t], args, r, t, {&GradArgs::p, &GradArgs::g}, &GradArgs::dx);
  return {dx, dalpha};
}

Tensor entmax_dx(Tensor p, Tensor g, double alpha) {
  const int t = type_of(p);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == p.numel(), "parsimax: p and its gradient differ in type or size");
  const Rows r = aligned({&p, &g});
  Tensor dx = torch::stable::empty_like(p);
  const GradArgs args{
      p.const_data_ptr(),           g.const_data_ptr(), dx.mutable_data_ptr(), nullptr, {nullptr, true, 0, alpha}, r.n,
      r.apart == 1 && streams(p, 3)};
  run(kernels().grad[t], args, r, t, {&GradArgs::p, &GradArgs::g}, &GradArgs::dx);
  return dx;
}

// The same with what the backward needs of nearly dense rows (2 numbers each); without any such row the state is empty.
std::tuple<Tensor, Tensor> entmax_learned_fwd(Tensor x, Tensor alpha) {
  const int t = type_of(x);
  const Rows r = aligned({&x});
  Tensor p = torch::stable::empty_like(x), state = torch::stable::new_empty(x, {r.rows, 2}, ScalarType::Double),
         hold = x;
  static_assert(sizeof(DenseRow) == 2 * sizeof(double));
  bool any = false;
  const MapArgs args{x.const_data_ptr(),
                     p.mutable_data_ptr(),
                     param(alpha, 0, r.rows, hold),
                     r.n,
                     r.apart == 1 && streams(x, 2),
                     (DenseRow*)state.mutable_data_ptr(),
                     &any};
  run(kernels().map[t], args, r, t, {&MapArgs::x}, &MapArgs::p);
  return {p, any ? state : torch::stable::new_empty(x, {0, 2}, ScalarType::Double)};
}
std::tuple<Tensor, Tensor> entmax_learned_bwd(Tensor p, Tensor x, Tensor g, Tensor alpha, Tensor state,
                                              bool need_alpha) {
  const int t = type_of(p);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == p.numel() && type_of(x) == t && x.numel() == p.numel(),
                  "parsimax: p, the scores and the gradient differ in type or size");
  const Rows r = aligned({&p, &x, &g});
  STD_TORCH_CHECK(state.numel() == 2 * r.rows && state.scalar_type() == ScalarType::Double,
                  "parsimax: the state is not that of the forward");
  Tensor dx = torch::stable::empty_like(p), dalpha = one_per_row(p, r.rows, need_alpha), hold = p;
  const GradArgs args{p.const_data_ptr(),
                      g.const_data_ptr(),
                      dx.mutable_data_ptr(),
                      need_alpha ? (double*)dalpha.mutable_data_ptr() : nullptr,
                      param(alpha, 0, r.rows, hold),
                      r.n,
                      r.apart == 1 && streams(p, 3),
                      x.const_data_ptr(),
                      (const DenseRow*)state.const_data_ptr()};
  run(kernels().grad[t], args, r, t, {&GradArgs::p, &GradArgs::x, &GradArgs::g}, &GradArgs::dx);
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

// What the mappings with a threshold of their own share: one parameter, or none, and p alone.
static Tensor mapped(const Work (&work)[4], Tensor x, const std::optional<Tensor>& parameter, double value,
                     Cut* cuts = nullptr) {
  const int t = type_of(x);
  const Rows r = aligned({&x});
  Tensor p = torch::stable::empty_like(x), hold = x;
  const ThresholdArgs args{x.const_data_ptr(),
                           nullptr,
                           nullptr,
                           p.mutable_data_ptr(),
                           nullptr,
                           param(parameter, value, r.rows, hold),
                           r.n,
                           cuts};
  run(work[t], args, r, t, {&ThresholdArgs::x}, &ThresholdArgs::out);
  return p;
}
// Their backward from x, or from p, or from both.
static std::tuple<Tensor, Tensor> unmapped(const Work (&work)[4], std::optional<Tensor> x, std::optional<Tensor> p,
                                           Tensor g, const std::optional<Tensor>& parameter, double value, bool need,
                                           Cut* cuts = nullptr) {
  const int t = type_of(g);
  for (auto* saved : {&x, &p})
    STD_TORCH_CHECK(!saved->has_value() || (type_of(**saved) == t && (*saved)->numel() == g.numel()),
                    "parsimax: what was saved and the gradient differ in type or size");
  const Rows r = x && p ? aligned({&*x, &*p, &g}) : aligned({x ? &*x : &*p, &g});
  Tensor dx = torch::stable::empty_like(g), change = one_per_row(g, r.rows, need), hold = g;
  const ThresholdArgs args{x.has_value() ? x->const_data_ptr() : nullptr,
                           p.has_value() ? p->const_data_ptr() : nullptr,
                           g.const_data_ptr(),
                           dx.mutable_data_ptr(),
                           need ? (double*)change.mutable_data_ptr() : nullptr,
                           param(parameter, value, r.rows, hold),
                           r.n,
                           cuts};
  using A = ThresholdArgs;
  if (x && p) run(work[t], args, r, t, {&A::x, &A::p, &A::g}, &A::out);
  else run(work[t], args, r, t, {x ? &A::x : &A::p, &A::g}, &A::out);
  return {dx, change};
}

Tensor rsoftmax_fwd(Tensor x, std::optional<Tensor> rate, double value) {
  return mapped(kernels().rsoftmax, x, rate, value);
}
// The same with the cut of each row, which spares the backward the selection.
static_assert(sizeof(Cut) == 7 * sizeof(double));
std::tuple<Tensor, Tensor> rsoftmax_keep(Tensor x, std::optional<Tensor> rate, double value) {
  const Rows r = rows_of(x);
  Tensor cuts = torch::stable::new_empty(x, {r.rows, 7}, ScalarType::Double);
  return {mapped(kernels().rsoftmax, x, rate, value, (Cut*)cuts.mutable_data_ptr()), cuts};
}
std::tuple<Tensor, Tensor> rsoftmax_bwd(Tensor x, Tensor g, std::optional<Tensor> rate, double value,
                                        std::optional<Tensor> cuts, bool need) {
  STD_TORCH_CHECK(!cuts || (cuts->scalar_type() == ScalarType::Double && cuts->numel() == 7 * rows_of(x).rows),
                  "parsimax: the cuts are not those of the forward");
  Cut* kept = cuts ? (Cut*)cuts->const_data_ptr() : nullptr;
  return unmapped(kernels().rsoftmax_grad, x, {}, g, rate, value, need, kept);
}
Tensor tsoftmax_fwd(Tensor x, std::optional<Tensor> t, double value) { return mapped(kernels().tsoftmax, x, t, value); }
std::tuple<Tensor, Tensor> tsoftmax_bwd(Tensor x, Tensor g, std::optional<Tensor> t, double value, bool need) {
  return unmapped(kernels().tsoftmax_grad, x, {}, g, t, value, need);
}
Tensor sigsoftmax_fwd(Tensor x) { return mapped(kernels().sigsoftmax, x, {}, 0); }
Tensor sigsoftmax_bwd(Tensor x, Tensor g) {
  return std::get<0>(unmapped(kernels().sigsoftmax_grad, x, {}, g, {}, 0, false));
}
Tensor budget_fwd(Tensor x, std::optional<Tensor> budget, double value) {
  return mapped(kernels().budget, x, budget, value);
}
std::tuple<Tensor, Tensor> budget_bwd(Tensor p, Tensor g, bool need) {
  return unmapped(kernels().budget_grad, {}, p, g, {}, 0, need);
}
Tensor sparsegen_fwd(Tensor x, std::optional<Tensor> lambda, double value) {
  return mapped(kernels().sparsegen, x, lambda, value);
}
std::tuple<Tensor, Tensor> sparsegen_bwd(Tensor p, Tensor g, std::optional<Tensor> lambda, double value, bool need) {
  return unmapped(kernels().sparsegen_grad, {}, p, g, lambda, value, need);
}
Tensor hourglass_fwd(Tensor x, std::optional<Tensor> q, double value) {
  return mapped(kernels().hourglass, x, q, value);
}
std::tuple<Tensor, Tensor> hourglass_bwd(Tensor x, Tensor p, Tensor g, std::optional<Tensor> q, double value,
                                         bool need) {
  return unmapped(kernels().hourglass_grad, x, p, g, q, value, need);
}
Tensor normmax_fwd(Tensor x, std::optional<Tensor> alpha, double value) {
  return mapped(kernels().normmax, x, alpha, value);
}
std::tuple<Tensor, Tensor> normmax_bwd(Tensor p, Tensor g, std::optional<Tensor> alpha, double value, bool need) {
  return unmapped(kernels().normmax_grad, {}, p, g, alpha, value, need);
}

int64_t isa() { return level().number; }

// The schemas are in kernels/schemas.py, with what each operator gives and saves.
STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_entmax_fwd", TORCH_BOX(&entmax_fwd));
  m.impl("_entmax_bwd", TORCH_BOX(&entmax_bwd));
  m.impl("_entmax_dx", TORCH_BOX(&entmax_dx));
  m.impl("_entmax_learned_fwd", TORCH_BOX(&entmax_learned_fwd));
  m.impl("_entmax_learned_bwd", TORCH_BOX(&entmax_learned_bwd));
  m.impl("_support_fwd", TORCH_BOX(&support_fwd));
  m.impl("_topk_sparsemax_fwd", TORCH_BOX(&topk_fwd));
  m.impl("_rsoftmax_fwd", TORCH_BOX(&rsoftmax_fwd));
  m.impl("_rsoftmax_keep", TORCH_BOX(&rsoftmax_keep));
  m.impl("_rsoftmax_bwd", TORCH_BOX(&rsoftmax_bwd));
  m.impl("_budget_fwd", TORCH_BOX(&budget_fwd));
  m.impl("_budget_bwd", TORCH_BOX(&budget_bwd));
  m.impl("_tsoftmax_fwd", TORCH_BOX(&tsoftmax_fwd));
  m.impl("_tsoftmax_bwd", TORCH_BOX(&tsoftmax_bwd));
  m.impl("_sigsoftmax_fwd", TORCH_BOX(&sigsoftmax_fwd));
  m.impl("_sigsoftmax_bwd", TORCH_BOX(&sigsoftmax_bwd));
  m.impl("_sparsegen_fwd", TORCH_BOX(&sparsegen_fwd));
  m.impl("_sparsegen_bwd", TORCH_BOX(&sparsegen_bwd));
  m.impl("_hourglass_fwd", TORCH_BOX(&hourglass_fwd));
  m.impl("_hourglass_bwd", TORCH_BOX(&hourglass_bwd));
  m.impl("_normmax_fwd", TORCH_BOX(&normmax_fwd));
  m.impl("_normmax_bwd", TORCH_BOX(&normmax_bwd));
}
STABLE_TORCH_LIBRARY_IMPL(parsimax, CompositeExplicitAutograd, m) { m.impl("_isa", TORCH_BOX(&isa)); }

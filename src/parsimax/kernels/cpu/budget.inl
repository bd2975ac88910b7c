// Budget sparsemax: p = clip(x - tau, 0, 1) with sum p = budget. The sum falls piecewise linearly in tau: Newton inside
// a bracket ends on the exact piece. In double throughout, and relative to the entry at place ceil(budget) from the
// top: it lies above tau by at most 1, so that differences near the threshold are exact however large the scores are.
#pragma once
#include "map.inl"
#include "proof.inl"
#include "topk.inl"
namespace {
template <class S> inline void budget_row(const S* x, S* p, i64 n, double budget, const Scratch& sc) {
  using T = double;
  T *z = sc.numbers<T>(0), *copy = sc.numbers<T>(1);
  const Peak<T> k = peak<T>(x, n);
  if (k.bad || !(budget >= 0)) return fill_row(p, n, __builtin_nan(""));
  i64 allowed = 0;
  for (i64 i = 0; i < n; i++) {
    z[i] = scalar_float(x[i]);
    if (z[i] > -INF<T>) copy[allowed++] = z[i];
  }
  if (budget == 0 || allowed == 0) return fill_row(p, n, 0);
  if (budget >= double(allowed)) {
    for (i64 i = 0; i < n; i++) p[i] = from_float<S>(z[i] > -INF<T>);
    return;
  }
  const i64 whole = i64(budget), place = whole + (double(whole) < budget);
  const double pivot = select(copy, allowed, allowed - place);
  for (i64 i = 0; i < n; i++) z[i] -= pivot;
  store<T, T>(z + n, all<T>(-INF<T>));
  const V<T> one = all<T>(1);
  auto clip = [&](V<T> v) {
    v = positive<T>(v);
    return v < one ? v : one;
  };
  double low = -1, high = 0, tau = -0.5;
  for (int it = 0; it < 2000; it++) {
    V<T> total{}, inside{}, full{};  // the whole ones are counted apart: a large budget must not drown the rest
    for (i64 i = 0; i < n; i += W<T>) {
      const V<T> d = load<T>(z + i) - tau, v = d < one ? positive<T>(d) : V<T>{};
      total += v;
      full += d < one ? V<T>{} : one;
      inside += v > 0 ? one : V<T>{};
    }
    const double f = (sum<T>(full) - budget) + sum<T>(total), count = sum<T>(inside);
    if (f == 0) break;
    (f > 0 ? low : high) = tau;
    double next = count > 0 ? tau + f / count : low;
    if (!(next > low && next < high)) next = (low + high) / 2;
    const double step = next - tau, size = step < 0 ? -step : step;
    tau = next;
    if (size <= tolerance(parsimax::BUDGET_ROW, 2e-16) * (tau < 0 ? -tau : tau) || !(low < high)) break;
  }
  for (i64 i = 0; i < n; i += W<T>) store<S, T>(p + i, clip(load<T>(z + i) - tau), n - i);
}
// Only entries strictly between 0 and 1 move: dx = g - mean g over them, d budget = that mean.
template <class S> inline void budget_grad_row(const S* p, const S* g, S* dx, double* dbudget, i64 n) {
  double total = 0, count = 0;
  bool bad = false;
  for (i64 i = 0; i < n; i++) {
    const double v = scalar_float(p[i]);
    bad |= v != v;
    if (v > 0 && v < 1) total += scalar_float(g[i]), count++;
  }
  const double mean = count > 0 ? total / count : 0;
  if (dbudget) *dbudget = bad ? __builtin_nan("") : mean;
  if (bad) return fill_row(dx, n, __builtin_nan(""));
  for (i64 i = 0; i < n; i++) {
    const double v = scalar_float(p[i]);
    dx[i] = from_float<S>(v > 0 && v < 1 ? scalar_float(g[i]) - mean : 0);
  }
}
template <class S> void budget_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    budget_row((const S*)args.x + r * n, (S*)args.out + r * n, n, at(args.param, r), Scratch{(char*)scratch, n});
}
template <class S> void budget_grad_rows(const void* args_, i64 first, i64 last, void*) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    budget_grad_row((const S*)args.p + r * n, (const S*)args.g + r * n, (S*)args.out + r * n,
                    args.dparam ? args.dparam + r : nullptr, n);
}
}  // namespace

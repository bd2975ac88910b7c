// Budget sparsemax: p = clip(x - tau, 0, 1) with sum p = budget. The sum falls piecewise linearly in tau: Newton inside
// a bracket ends on the exact piece. Relative to the entry at place ceil(budget) from the top, the pivot: it lies above
// tau by at most 1, so that only scores above the pivot less 1 count, and differences near the threshold are exact
// however large the scores are. Those few are computed in double. The lane maxima, which are some of the scores, have
// their own entry at that place, and it is not above that of the row.
#pragma once
#include "map.inl"
#include "proof.inl"
#include "scaled.inl"
#include "select.inl"
namespace {
// A number that the score at `place` from the top is not below; -inf if the lane maxima cannot tell.
template <class T> inline double below_place(const Peak<T>& k, i64 place) {
  constexpr i64 L = W<T>;
  if (place > 16) return -INF<double>;
  V<T> most = all<T>(k.max);
  for (i64 found = 0;;) {  // the next largest, and how many there are
    V<T> next = all<T>(-INF<T>);
    for (const V<T>& v : k.lanes) {
      next = v < most ? vmax<T>(v, next) : next;
      found += L - __builtin_popcount(ne_bits<T>(v, most));
    }
    const T largest = max<T>(next);
    if (found >= place || largest == -INF<T>) return found >= place ? double(most[0]) : -INF<double>;
    most = all<T>(largest);
  }
}
template <class S> inline void budget_row(const S* x, S* p, i64 n, double budget, const Scratch& sc) {
  using T = Compute<S>;
  using D = double;
  const Peak<T> k = peak<T>(x, n);
  if (k.bad || !(budget >= 0)) return fill_row(p, n, __builtin_nan(""));
  if (budget == 0 || k.max == -INF<T>) return fill_row(p, n, 0);
  const i64 whole = budget < double(n) ? i64(budget) : n, place = whole + (double(whole) < budget);
  const double sure = below_place<T>(k, place + 1);  // one more: then there are more scores than the budget asks for
  if (sure == -INF<double>) {
    const i64 allowed = count_allowed<T>(x, n);
    if (budget >= double(allowed)) {
      const V<T> none = all<T>(-INF<T>);
      for (i64 i = 0; i < n; i += W<T>)
        store<S, T>(p + i, load<T>(x + i, n - i, -INF<T>) > none ? all<T>(1) : V<T>{}, n - i);
      return;
    }
  }
  T* some = sc.numbers<T>(1);
  const double least = sure - 1 - (sure < 0 ? -sure : sure) * 1e-6;  // a little low: rounding must not lose an entry
  const Gathered g = gather<T>(x, n, T(0), least, some, sc.index());
  const i64 count = g.count;
  T* room = sc.numbers<T>(0);
  for (i64 i = 0; i < count; i += W<T>) store<T, T>(room + i, load<T>(some + i));
  const double pivot = select_parted<T>(room, sc.numbers<T>(2), count, count - place).at;
  D* z = sc.numbers<D>(0);
  const V<D> one = all<D>(1);
  for (i64 i = 0; i < count; i += W<D>) store<D, D>(z + i, load<D>(some + i, count - i, -INF<T>) - pivot);
  store<D, D>(z + count, all<D>(-INF<D>));
  double low = -1, high = 0, tau = -1;  // from below: where whole ones fill the budget that is the root, to the bit
  for (int it = 0; it < 2000; it++) {
    V<D> total{}, inside{}, full{};  // the whole ones are counted apart: a large budget must not drown the rest
    for (i64 i = 0; i < count; i += W<D>) {
      const V<D> d = load<D>(z + i) - tau, v = d < one ? positive<D>(d) : V<D>{};
      total += v;
      full += d < one ? V<D>{} : one;
      inside += v > 0 ? one : V<D>{};
    }
    const double f = (sum<D>(full) - budget) + sum<D>(total), held = sum<D>(inside);
    if (f == 0) break;
    (f > 0 ? low : high) = tau;
    double next = held > 0 ? tau + f / held : low;
    if (!(next > low && next < high)) next = (low + high) / 2;
    const double step = next - tau, size = step < 0 ? -step : step;
    tau = next;
    if (size <= tolerance(parsimax::BUDGET_ROW, 2e-16) * (tau < 0 ? -tau : tau) || !(low < high)) break;
  }
  for (i64 i = 0; i < count; i += W<D>) {
    const V<D> v = positive<D>(load<D>(z + i) - tau), share = v < one ? v : one;
    if (g.dense) store<S, D>(p + i, share, n - i);
    else store<D, D>(z + i, share);
  }
  if (!g.dense) scatter(p, n, z, sc.index(), count);
}
// Only entries strictly between 0 and 1 move: dx = g - mean g over them, d budget = that mean.
template <class S>
inline void budget_grad_row(const S* p, const S* g, S* dx, double* dbudget, i64 n, const Scratch& sc) {
  using T = Compute<S>;
  if (!dbudget && n < GRAD_PLAIN)
    return grad_plain<false, T>(p, g, dx, n, sc.numbers<T>(0), [](V<T> v) { return v != 1 ? v * 0 + 1 : V<T>{}; });
  grad_support<T>(p, g, dx, n, sc, [&](T* pv, const T* gv, i64 count) {
    const V<T> one = all<T>(1);
    Total<T> total, size;
    for (i64 i = 0; i < count; i += W<T>) {
      const V<T> v = load<T>(pv + i), each = v == v ? one : v, on = v != 0 ? (v != one ? each : V<T>{}) : V<T>{};
      size.add(on);
      total.add(on != 0 ? load<T>(gv + i) : V<T>{});
    }
    const double held = size.get(), mean = held == 0 ? 0 : total.get() / held;
    for (i64 i = 0; i < count; i += W<T>) {
      const V<T> v = load<T>(pv + i), h = load<T>(gv + i) - T(mean);
      store<T, T>(pv + i, v != 0 ? (v != one ? h : V<T>{}) : V<T>{});
    }
    if (dbudget) *dbudget = mean;
  });
}
template <class S> void budget_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    budget_row((const S*)args.x + r * n, (S*)args.out + r * n, n, at(args.param, r), Scratch{(char*)scratch, n});
}
template <class S> void budget_grad_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    budget_grad_row((const S*)args.p + r * n, (const S*)args.g + r * n, (S*)args.out + r * n,
                    args.dparam ? args.dparam + r : nullptr, n, Scratch{(char*)scratch, n});
}
}  // namespace

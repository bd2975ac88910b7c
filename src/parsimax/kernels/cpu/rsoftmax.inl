// r-softmax: weights (1 + z/t)_+ e^z with t = max - q, q the quantile of the allowed scores at `rate`. Up to a factor
// the weight is (x - q)_+ e^x, so with c = 1 / (x - q) on the support and gbar = <p, g>:
//   dx = p (g - gbar)(1 + c),  dq = -sum p (g - gbar) c,  and dq goes to the two order statistics that q lies between.
// In double throughout. t = 0 is uniform over the maxima, whose derivative is 0.
#pragma once
#include "topk.inl"
namespace {
// q, low and high are taken from z = x - max, so that an offset of the scores costs no digits.
struct Quantile {
  double q = 0, low = 0, high = 0, part = 0;
  i64 allowed = 0;
  double max = -INF<double>;
  bool bad = false;
};
// scratch 0: z in double; scratch 1: the allowed ones, in some order.
template <class S> inline Quantile quantile(const S* x, i64 n, double rate, const Scratch& sc) {
  double *v = sc.numbers<double>(0), *kept = sc.numbers<double>(1);
  Quantile k;
  for (i64 i = 0; i < n; i++) {
    v[i] = scalar_float(x[i]);
    k.allowed += v[i] > -INF<double>;
    if (v[i] > k.max) k.max = v[i];
    k.bad |= !(v[i] < INF<double>);
  }
  k.bad |= !(rate >= 0 && rate <= 1);
  if (k.bad || k.allowed == 0) return k;
  for (i64 i = 0, j = 0; i < n; i++) {
    const bool allowed = v[i] > -INF<double>;
    v[i] -= k.max;
    if (allowed) kept[j++] = v[i] = v[i] > -1e300 ? v[i] : -1e300;  // a difference of doubles can overflow
  }
  const double place = rate * double(k.allowed - 1);
  const i64 first = i64(place);
  k.part = place - double(first);
  k.low = k.high = select(kept, k.allowed, first);
  if (first + 1 < k.allowed) {  // the next order statistic is the least of what selection left to the right
    k.high = INF<double>;
    for (i64 i = first + 1; i < k.allowed; i++) k.high = kept[i] < k.high ? kept[i] : k.high;
  }
  k.q = k.low + k.part * (k.high - k.low);
  return k;
}
// scratch 0: scores -> weights e^z (x - q)_+ / t, and in scratch 1 e^z / t on the support; returns the sum of weights
inline double weights(const Quantile& k, i64 n, const Scratch& sc) {
  using T = double;
  T *v = sc.numbers<T>(0), *e = sc.numbers<T>(1);
  const double t = -k.q;
  const V<T> largest = all<T>(1e308);
  Total<T> total;
  for (i64 i = n; i < n + W<T>; i++) v[i] = -INF<T>;
  for (i64 i = 0; i < n; i += W<T>) {
    const V<T> x = load<T>(v + i), d = x - k.q, e_z = exp2<T>(x * 1.4426950408889634), w = d > 0 ? d / t * e_z : V<T>{};
    total.add(w);
    store<T, T>(v + i, w);
    const V<T> slope = e_z / t;  // overflows where t is subnormal, and 0 times infinity must not follow
    store<T, T>(e + i, d > 0 ? (slope < largest ? slope : largest) : V<T>{});
  }
  return total.get();
}
template <class S> inline void rsoftmax_row(const S* x, S* p, i64 n, double rate, const Scratch& sc) {
  using T = double;
  const Quantile k = quantile(x, n, rate, sc);
  if (k.bad) return fill_row(p, n, __builtin_nan(""));
  if (k.allowed == 0) return fill_row(p, n, 0);
  T* v = sc.numbers<T>(0);
  if (k.q == 0) {
    i64 ties = 0;
    for (i64 i = 0; i < n; i++) ties += v[i] == 0;
    for (i64 i = 0; i < n; i++) p[i] = from_float<S>(v[i] == 0 ? 1.0 / double(ties) : 0);
    return;
  }
  const double scale = 1 / weights(k, n, sc);
  for (i64 i = 0; i < n; i += W<T>) store<S, T>(p + i, load<T>(v + i) * scale, n - i);
}
template <class S>
inline void rsoftmax_grad_row(const S* x, const S* g, S* dx, double* drate, i64 n, double rate, bool detach,
                              const Scratch& sc) {
  using T = double;
  const Quantile k = quantile(x, n, rate, sc);
  if (drate) *drate = k.bad ? __builtin_nan("") : 0;
  if (k.bad) return fill_row(dx, n, __builtin_nan(""));
  if (k.allowed == 0 || k.q == 0) return fill_row(dx, n, 0);
  T *v = sc.numbers<T>(0), *e = sc.numbers<T>(1), *out = sc.numbers<T>(2);
  const double scale = 1 / weights(k, n, sc);
  double mean = 0, dq = 0;
  for (i64 i = 0; i < n; i++)
    if (v[i] > 0) mean += v[i] * scale * scalar_float(g[i]);
  for (i64 i = 0; i < n; i++) {
    const double h = e[i] > 0 ? scalar_float(g[i]) - mean : 0;
    out[i] = h * scale * (v[i] + e[i]);
    dq -= h * scale * e[i];
  }
  if (!detach) {
    bool low = true, high = true;  // of equal scores, the first
    for (i64 i = 0; i < n && (low || high); i++) {
      const double z = double(scalar_float(x[i])) - k.max, kept = z > -1e300 ? z : -1e300;
      if (scalar_float(x[i]) == -INF<float>) continue;
      if (low && kept == k.low) out[i] += (1 - k.part) * dq, low = false;
      if (high && kept == k.high) out[i] += k.part * dq, high = false;
    }
    if (drate) *drate = dq * (k.high - k.low) * double(k.allowed - 1);
  }
  for (i64 i = 0; i < n; i++) dx[i] = from_float<S>(out[i]);
}
template <class S> void rsoftmax_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    rsoftmax_row((const S*)args.x + r * n, (S*)args.out + r * n, n, at(args.param, r), Scratch{(char*)scratch, n});
}
template <class S> void rsoftmax_grad_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    rsoftmax_grad_row((const S*)args.x + r * n, (const S*)args.g + r * n, (S*)args.out + r * n,
                      args.dparam ? args.dparam + r : nullptr, n, at(args.param, r), args.detach,
                      Scratch{(char*)scratch, n});
}
}  // namespace

// Rows of the backward, from p alone. With s = p^(2 - alpha) on the support: dx = s (g - <s, g> / sum s).
// By alpha, with L = log p and t = (alpha - 1) L: d log p / d alpha at a fixed threshold is q = L^2 phi(t),
// phi(t) = (1 - t - e^-t) / t^2, smooth through t = 0. With rho = p q / s = q e^t, d p = s (rho - mean of rho under s),
// so d alpha = sum dx (rho - mean): no difference of large sums in flat rows.
#pragma once
#include "map.inl"
namespace {
template <class T> inline V<T> phi(V<T> t, V<T> decay) {  // decay = e^-t
  const V<T> direct = (1 - t - decay) * recip<T, 1>(t * t), size = t < 0 ? -t : t;
  if constexpr (same<T, float>) {
    const V<T> series = horner<T>(t, all<T>(2.7557319e-06), -2.4801587e-05, 1.9841270e-04, -1.3888889e-03,
                                  8.3333333e-03, -4.1666667e-02, 1.6666667e-01, -0.5);
    return size < T(0.6) ? series : direct;
  } else {
    const V<T> series = horner<T>(t, all<T>(1 / 355687428096000.), -1 / 20922789888000., 1 / 1307674368000.,
                                  -1 / 87178291200., 1 / 6227020800., -1 / 479001600., 1 / 39916800., -1 / 3628800.,
                                  1 / 362880., -1 / 40320., 1 / 5040., -1 / 720., 1 / 120., -1 / 24., 1 / 6., -0.5);
    return size < T(1) ? series : direct;
  }
}
template <class T> struct Sums {
  Total<T> s, sg, sr;
};
// s of a vector of p, and the sums; p = 0 and g = 0 beyond the support. NaN in p stays NaN.
template <class T, bool BY_ALPHA> inline V<T> weigh(const Alpha& a, V<T> p, V<T> g, T* rho, Sums<T>& sums) {
  V<T> s;
  if (!BY_ALPHA && a.kind == SPARSEMAX) s = all<T>(1);
  else if (!BY_ALPHA && a.kind == ENTMAX15) s = vroot<T>(p);
  else if (!BY_ALPHA && a.b == 0) s = p;
  else {
    const V<T> l2 = log2<T>(p), rise = l2 * T(-a.b), most = all<T>(same<T, float> ? 126 : 1000),
               decay = exp2<T>(rise < most ? rise : most);
    s = p * decay;
    if constexpr (BY_ALPHA) {
      const V<T> l = l2 * T(0.69314718055994530942);
      V<T> r = l * l * phi<T>(l * T(a.b), decay) * recip<T, 1>(decay);
      r = p != 0 ? r : V<T>{};
      store<T, T>(rho, r);
      sums.sr.add(p != 0 ? s * r : V<T>{});
    }
  }
  s = p == p ? (p != 0 ? s : V<T>{}) : p;
  sums.s.add(s);
  sums.sg.add(s != 0 ? s * g : V<T>{});
  return s;
}
// alpha = 2, 1.5 or 1 in rows too short for skipping to pay. STREAM: past the cache.
template <bool STREAM, class T, class S, class F>
inline void grad_plain(const S* p, const S* g, S* dx, i64 n, T* kept, F weight) {
  constexpr i64 L = W<T>;
  V<T> total{}, sg{}, total1{}, sg1{};
  auto add = [&](i64 i, V<T>& sum, V<T>& dot) {
    const V<T> v = load<T>(p + i, n - i, T(0)), w = weight(v), s = v != 0 ? w : V<T>{};
    sum += s;
    dot += v != 0 ? s * load<T>(g + i, n - i, T(0)) : V<T>{};
    store<T, T>(kept + i, s);
  };
  i64 i = 0;
  for (; i + L < n; i += 2 * L) add(i, total, sg), add(i + L, total1, sg1);
  if (i < n) add(i, total, sg);
  const T sum_s = sum<T>(total + total1);
  const V<T> shift = all<T>(sum_s == 0 ? T(0) : sum<T>(sg + sg1) / sum_s);
  auto result = [&](i64 i) {
    const V<T> s = load<T>(kept + i), d = s * (load<T>(g + i, n - i, T(0)) - shift);
    return s != 0 ? d : V<T>{};
  };
  i = 0;
  if constexpr (STREAM) {
    if ((i = head(dx))) store<S, T>(dx, result(0), i);
    for (; i + L <= n; i += L) stream<S, T>(dx + i, result(i));
  }
  for (; i < n; i += L) store<S, T>(dx + i, result(i), n - i);
}
constexpr i64 GRAD_PLAIN = 2048;  // shorter rows: looking for the support costs more than it spares
template <class T, class S>
inline void grad_plain(Kind kind, const S* p, const S* g, S* dx, i64 n, i64 rows, bool stream, T* kept) {
  auto run = [&](auto weight) {
    if (stream)
      for (i64 o = 0; o < rows * n; o += n) grad_plain<true, T>(p + o, g + o, dx + o, n, kept, weight);
    else
      for (i64 o = 0; o < rows * n; o += n) grad_plain<false, T>(p + o, g + o, dx + o, n, kept, weight);
  };
  if (kind == SPARSEMAX) run([](V<T> v) { return v * 0 + 1; });  // NaN stays NaN
  else if (kind == ENTMAX15) run([](V<T> v) { return vroot_quick<T>(v); });
  else run([](V<T> v) { return v; });
}
template <class T, class S, bool BY_ALPHA>
inline void grad_row(const S* p, const S* g, S* dx, double* dalpha, i64 n, const Alpha& a, const Scratch& sc) {
  constexpr i64 L = W<T>;
  T *pv = sc.numbers<T>(0), *gv = sc.numbers<T>(1), *rho = sc.numbers<T>(2);
  int32_t* index = sc.index();
  if (a.kind == ARGMAX || a.kind == INVALID) {  // constant almost everywhere
    for (i64 i = 0; i < n; i++) dx[i] = scalar_float(p[i]) == scalar_float(p[i]) ? from_float<S>(0) : p[i];
    if (BY_ALPHA) *dalpha = n && scalar_float(p[0]) != scalar_float(p[0]) ? __builtin_nan("") : 0;
    return;
  }
  if (!BY_ALPHA && n < GRAD_PLAIN && (a.kind != GENERAL || a.b == 0))
    return grad_plain<T>(a.kind, p, g, dx, n, 1, false, pv);
  i64 c = 0;
  const i64 most = n / 3;
  for (i64 i = 0; i < n && c <= most; i += 4 * L) {
    V<T> v[4];
    for (int u = 0; u < 4; u++) v[u] = load<T>(p + i + u * L, n - i - u * L, T(0));
    if (ne_bits<T>((v[0] + v[1]) + (v[2] + v[3]), V<T>{}))  // p >= 0: the sum is 0 only if all are
      for (int u = 0; u < 4; u++) {
        const unsigned b = ne_bits<T>(v[u], V<T>{});
        if (!b) continue;
        push<T>(pv + c, v[u], b);
        push<T>(gv + c, load<T>(g + i + u * L, n - i - u * L, T(0)), b);
        push_index<T>(index + c, i + u * L, b);
        c += __builtin_popcount(b);
      }
  }
  const bool sparse = c <= most;
  const i64 count = sparse ? c : n;
  if (sparse) {
    store<T, T>(pv + c, V<T>{});
    store<T, T>(gv + c, V<T>{});
  }
  Sums<T> sums;
  for (i64 i = 0; i < count; i += L) {
    const V<T> v = sparse ? load<T>(pv + i) : load<T>(p + i, n - i, T(0)),
               h = sparse ? load<T>(gv + i) : load<T>(g + i, n - i, T(0));
    store<T, T>(pv + i, weigh<T, BY_ALPHA>(a, v, h, rho + i, sums));
  }
  const double total = sums.s.get(), shift = total == 0 ? 0 : sums.sg.get() / total,
               mean = BY_ALPHA && total != 0 ? sums.sr.get() / total : 0;
  const V<T> hi = all<T>(shift), low = all<T>(mean);
  Total<T> slope;
  for (i64 i = 0; i < count; i += L) {
    const V<T> s = load<T>(pv + i), h = sparse ? load<T>(gv + i) : load<T>(g + i, n - i, T(0));
    const V<T> d = s != 0 ? s * (h - hi) : V<T>{};
    if constexpr (BY_ALPHA) slope.add(d * (load<T>(rho + i) - low));
    if (sparse) store<T, T>(pv + i, d);
    else store<S, T>(dx + i, d, n - i);
  }
  if (BY_ALPHA) *dalpha = total == 0 ? 0 : slope.get();
  if (sparse) scatter(dx, n, pv, index, c);
}
}  // namespace

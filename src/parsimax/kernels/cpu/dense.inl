// Nearly dense rows of alpha-entmax, 1 < alpha <= 2, in float. Around a centre c with p(c) = p_c, u = v (x - c):
//   p = p_c (1 + u)_+^(1/b),  p_c^b = b / v,  s = p^(2 - alpha) ~ (1 + u)^(1/b - 1)
//   rho - rho(c) = -((1/b)((1 + u) log(1 + u) - u) + u log p_c) / v     (rho: see grad.inl)
// Derivatives by alpha are sums of these differences, so they are taken from x - c, which is exact, and not from p.
//
// Narrow rows (|u| <= 1/4): powers of 1 + u are short binomial series, sums over the row are sums of its power sums,
// and the threshold is the root of a polynomial: two reads of the row, no exponential, no logarithm. Wide rows: c = max
// x; a start from four moments, then one pass with exp and log; p follows from that pass by the second order of the
// last step in the threshold, except close to the edge, where it is computed again. Both are models of the row: what
// they return is summed, and if the sum is not 1, they did not serve (proof.inl). Included by support.inl, whose
// find_support is the last that needs it.
#pragma once
#include "proof.inl"
#include "rows.h"
namespace {
using parsimax::DenseRow;
constexpr int ORDER = 8, SUMS = 7;
constexpr double NARROW = 0.25, LEAST_B = 0.05;
inline bool dense_alpha(const Alpha& a) { return a.kind == GENERAL && a.b >= LEAST_B && a.b < 1; }

struct Binomials {  // of 1/b and 1/b - 1, and n^b
  double b = 0, n = 0, power, c[ORDER + 2], less[ORDER + 2];
  void set(double b_, i64 n_) {
    if (b == b_ && n == double(n_)) return;
    b = b_, n = double(n_), power = exp(b * log(n));
    c[0] = less[0] = 1;
    for (int k = 1; k < ORDER + 2; k++) c[k] = c[k - 1] * (1 / b - k + 1) / k, less[k] = less[k - 1] * (1 / b - k) / k;
  }
  double grown(double d) const {  // (1 + d)^(1/b)
    const double d3 = d * d * d, left_out = c[ORDER + 1] * d3 * d3 * d3;
    if (!(left_out < 1e-10 && left_out > -1e-10)) return exp(log(1 + d) / b);
    double g = c[ORDER];
    for (int k = ORDER - 1; k >= 0; k--) g = g * d + c[k];
    return g;
  }
};
inline const Binomials& binomials(const Alpha& a, i64 n) {  // most calls have one alpha and one length
  static thread_local Binomials kept;
  kept.set(a.b, n);
  return kept;
}
inline double size_of(double x) { return x < 0 ? -x : x; }

// omega with mean (1 + omega u)^(1/b) = omega^(1/b), from the means of u^k; 0 if the series do not serve.
inline double narrow_root(const Binomials& c, const double* mean) {
  double a[SUMS + 1], d = 0;
  for (int k = 1; k <= SUMS; k++) a[k] = c.c[k] * mean[k];
  for (int it = 0; it < 8; it++) {
    double f = a[SUMS], df = 0, g = c.c[ORDER], dg = 0;
    const double w = 1 + d;
    for (int k = SUMS - 1; k >= 1; k--) df = df * w + f, f = f * w + a[k];
    for (int k = ORDER - 1; k >= 1; k--) dg = dg * d + g, g = g * d + c.c[k];
    df = df * w + f, dg = dg * d + g;
    const double step = (f * w - g * d) / (df - dg);
    d -= step;
    if (!(d > -0.5 && d < 0.4)) return 0;
    // The next step would be about the square of this one; the sum has the last word.
    if (size_of(step) < tolerance(parsimax::NARROW_ROW, 1e-4)) return 1 + d;
  }
  return 0;
}
// A look at the first numbers of a row, which spares most sparse rows the attempt.
template <class S> inline bool maybe_narrow(const S* x, i64 n, const Alpha& a) {
  using T = float;
  if (!dense_alpha(a)) return false;
  const T any = scalar_float(x[0]);
  const V<T> d = load<T>(x, n, any) - any, size = d < 0 ? -d : d;
  return !gt_bits<T>(size * T(a.b), all<T>(2 * NARROW));
}
template <class S> __attribute__((noinline)) bool map_narrow(const S* x, S* p, i64 n, const Alpha& a, DenseRow* keep) {
  using T = float;
  constexpr i64 L = W<T>;
  const T any = scalar_float(x[0]);
  V<T> low = all<T>(any), high = low, worst{};
  const Binomials& c = binomials(a, n);
  const double unit = a.b * c.power, widest = 2 * NARROW / unit;
  i64 i = 0;
  for (; i + 4 * L <= n; i += 4 * L) {
    for (int u = 0; u < 4; u++) {
      const V<T> v = load<T>(x + i + u * L);
      low = v < low ? v : low;
      high = v > high ? v : high;
      worst = v == v ? worst : v;
    }
    if (i == 0 && !(max<T>(high) + max<T>(-low) <= widest)) return false;
  }
  for (; i < n; i += L) {
    const V<T> v = load<T>(x + i, n - i, any);
    low = v < low ? v : low;
    high = v > high ? v : high;
    worst = v == v ? worst : v;
  }
  const T top = max<T>(high), bottom = -max<T>(-low);
  if (ne_bits<T>(worst, worst) || !(double(top) - double(bottom) <= widest)) return false;
  const S centre_s = from_float<S>(bottom + (double(top) - double(bottom)) / 2);
  const T centre = scalar_float(centre_s);
  const V<T> m = all<T>(centre), v0 = all<T>(unit);
  double mean[SUMS + 1] = {};
  for (i = 0; i < n;) {
    V<T> s[SUMS + 1] = {};
    for (int k = 0; k < 32 && i < n; k++, i += L) {
      const V<T> u = (load<T>(x + i, n - i, centre) - m) * v0, u2 = u * u, u3 = u2 * u, u4 = u2 * u2;
      s[1] += u, s[2] += u2, s[3] += u3, s[4] += u4;
      s[5] = fma<T>(u4, u, s[5]), s[6] = fma<T>(u4, u2, s[6]), s[7] = fma<T>(u4, u3, s[7]);
    }
    for (int k = 1; k <= SUMS; k++) mean[k] += double(sum<T>(s[k]));
  }
  const double each = 1 / double(n);
  for (int k = 1; k <= SUMS; k++) mean[k] *= each;
  const double omega = narrow_root(c, mean), v = unit * omega;
  const double above = double(top) - double(centre), below = double(centre) - double(bottom),
               kappa = v * (above > below ? above : below);
  double k8 = kappa * kappa;
  k8 = k8 * k8 * k8 * k8;
  if (!(omega > 0) || !(kappa <= NARROW) || !(size_of(c.c[SUMS + 1]) * k8 < 1e-7) ||
      !(size_of(c.c[ORDER + 1]) * k8 * kappa < 3e-8))
    return false;
  double power = 1, scaled[ORDER + 1];
  const double p_c =
      1 / (c.grown(omega - 1) * double(n));  // (b / v)^(1/b), not what makes the sum 1: that is the proof
  for (int k = 0; k <= ORDER; k++) scaled[k] = c.c[k] * power * p_c, power *= omega;
  V<T> h[ORDER + 1];
  for (int k = 0; k <= ORDER; k++) h[k] = all<T>(scaled[k]);
  Total<T> mass;
  for (i = 0; i < n;) {
    V<T> some{};
    for (int k = 0; k < 8 && i < n; k++, i += L) {
      const V<T> u = (load<T>(x + i, n - i, centre) - m) * v0;
      V<T> r = h[ORDER];
      for (int j = ORDER - 1; j >= 0; j--) r = fma<T>(r, u, h[j]);
      some += r;
      store<S, T>(p + i, r, n - i);
    }
    mass.add(some);
  }
  const double beyond = double((L - n % L) % L) * T(scaled[0]);  // the lanes past the end hold the centre
  if (!small(mass.get() - beyond - 1, tolerance(parsimax::NARROW_ROW, PROOF<T>))) return false;
  if (keep) *keep = {v, centre, DenseRow::NARROW};
  return true;
}

// The edge of a row whose four moments say everything: within 1e-3 of the true one in rows that are nearly dense.
inline void start_wide(const Alpha& a, const float* z, i64 n, Edge& e) {
  using T = float;
  double m[5] = {};
  const i64 whole = n / W<T> * W<T>;
  for (i64 i = 0; i < whole;) {
    V<T> s1{}, s2{}, s3{}, s4{};
    for (int k = 0; k < 64 && i < whole; k++, i += W<T>) {
      const V<T> v = load<T>(z + i), q = v * v;
      s1 += v, s2 += q;
      s3 = fma<T>(q, v, s3), s4 = fma<T>(q, q, s4);
    }
    m[1] += sum<T>(s1), m[2] += sum<T>(s2), m[3] += sum<T>(s3), m[4] += sum<T>(s4);
  }
  for (int k = 1; k <= 4; k++) m[k] /= double(whole);
  const double mean = m[1], c2 = m[2] - mean * mean, c3 = m[3] - 3 * mean * m[2] + 2 * mean * mean * mean;
  const double c4 = m[4] - 4 * mean * m[3] + 6 * mean * mean * m[2] - 3 * mean * mean * mean * mean;
  if (!(c4 < 1e30)) return;  // forbidden entries
  const double B = 1 / a.b, b2 = B * (B - 1) / 2, b3 = b2 * (B - 2) / 3, b4 = b3 * (B - 3) / 4;
  Edge f = e;
  for (int it = 0; it < 6; it++) {
    const double K = a.b / f.E, y = 1 + K * mean, k = K / y;
    if (!(y > 0.1) || !(k * k * c2 < 0.15)) return;
    const double t2 = b2 * c2 * k * k, t3 = b3 * c3 * k * k * k, t4 = b4 * c4 * k * k * k * k, bulge = 1 + t2 + t3 + t4;
    // of (1 + K z)^(B - 1): the same with B - 1 in place of B
    const double lean = 1 + (t2 * (B - 2) + t3 * (B - 3) + t4 * (B - 4)) / B;
    const double excess = log(double(n) * bulge) + log(y) * B + f.w;
    const double step = log1p(expm1(-a.b * excess) * (bulge * y / lean)) * B;
    f.w += step;
    f.E = exp(a.b * f.w);
    if (size_of(step) < 1e-6) break;
  }
  if (f.w < 0) e = f;  // false for NaN
}
// z = x - max -> p, into out; z has `n` numbers, then -inf up to a vector, and there is as much room again behind it.
// False, and z is as it was, if the search does not settle as it does in nearly dense rows.
template <bool PZ, class O> inline bool map_wide(const Alpha& a, float* z, i64 n, Edge& e, O* out, double* pz) {
  using T = float;
  constexpr i64 L = W<T>;
  T* kept = z + (n + L - 1) / L * L + L;
  start_wide(a, z, n, e);
  const double B = 1 / a.b, b2 = B * (B - 1) / 2;
  double R = 0, S1 = 0, S2 = 0, eps = 0;
  for (int it = 0;; it++) {
    if (it == 4) return false;
    const Curve<T> curve(a.b, a.b / e.E);
    Total<T> r_all, r1_all, r2_all;
    for (i64 i = 0; i < n;) {
      V<T> s{}, s1{}, s2{};
      for (int k = 0; k < 16 && i < n; k++, i += L) {
        V<T> y;
        const V<T> r = curve.at(load<T>(z + i), y), over = recip<T, 1>(y), r1 = r * over;
        store<T, T>(kept + i, r);
        s += r, s1 += r1;
        s2 = fma<T>(r1, over, s2);
      }
      r_all.add(s), r1_all.add(s1), r2_all.add(s2);
    }
    R = r_all.get(), S1 = r1_all.get(), S2 = r2_all.get();
    if (!(R > 0)) return false;
    // K -> K (1 + eps) takes r to r (1 + eps (1 - 1/y))^B and w to w - B log(1 + eps)
    const double excess = log(R) + e.w, one = B * (1 - S1 / R), two = b2 * (1 - 2 * S1 / R + S2 / R);
    double x = 0, gain = 1;
    for (int k = 0; k < 4; k++) {
      gain = 1 + x * (one + two * x);
      const double step = (excess + log(gain) - B * log1p(x)) / ((one + 2 * two * x) / gain - B / (1 + x));
      x -= step;
      if (!(x > -0.5 && x < 0.5)) return false;
      if (size_of(step) < 1e-9) break;
    }
    eps = x;
    e.w -= B * log1p(x);
    const double before = e.E;
    e.E = exp(a.b * e.w);
    if (size_of(x) * B < (parsimax::mutation == parsimax::WIDE_ROW ? 0.05 : 2e-3)) {
      eps = before / e.E - 1;
      break;
    }
  }
  const Curve<T> exact(a.b, a.b / e.E);
  const double old = a.b / e.E / (1 + eps);
  const V<T> K = all<T>(old), c = all<T>(exp(e.w)),
             near = all<T>(size_of(eps) * 2000 > 1e-5 ? size_of(eps) * 2000 : 1e-5);
  const V<T> step = all<T>(eps), first = all<T>(B), second = all<T>(b2);
  const bool in_place = (const void*)out == (const void*)z;
  Total<T> mass, dot;
  for (i64 i = 0; i < n;) {
    V<T> some{}, along{};
    for (int k = 0; k < 8 && i < n; k++, i += L) {
      const V<T> v = load<T>(z + i);
      V<T> y = fma<T>(v, K, all<T>(1)), p;
      if (__builtin_expect(gt_bits<T>(near, y) & gt_bits<T>(y, -near), 0)) p = exact.at(v, y) * c;
      else {
        const V<T> x = step - step * recip<T, 1>(y);
        p = load<T>(kept + i) * c * fma<T>(x, fma<T>(x, second, first), all<T>(1));
        p = y > 0 ? p : V<T>{};  // 1/y is NaN for a forbidden entry
      }
      some += p;
      if constexpr (PZ) along += p > 0 ? p * v : V<T>{};
      if (in_place) store<T, T>(kept + i, p);
      else store<O, T>(out + i, p, n - i);
    }
    mass.add(some);
    if constexpr (PZ) dot.add(along);
  }
  if (!small(mass.get() - 1, tolerance(parsimax::WIDE_ROW, PROOF<T>))) return false;
  if (in_place) __builtin_memcpy((void*)out, kept, (n + L - 1) / L * L * sizeof(T));
  if constexpr (PZ) *pz = dot.get();
  return true;
}

template <bool PZ, class O> inline bool try_wide(const Alpha& a, float* z, i64 n, Edge& e, O* out, double* pz) {
  if (!dense_alpha(a) || n < 256) return false;
  Edge f = e;
  if (!map_wide<PZ>(a, z, n, f, out, pz)) return false;
  e = f;
  return true;
}

// s and v (rho(c) - rho) of a vector.
struct NarrowSlopes {
  using T = float;
  V<T> s[ORDER + 1], h[ORDER + 1];
  NarrowSlopes(const Alpha& a, double log_p, i64 n) {
    const Binomials& c = binomials(a, n);
    for (int k = 0; k <= ORDER; k++) s[k] = all<T>(c.less[k]);
    h[0] = all<T>(log_p);
    for (int k = 1; k <= ORDER; k++) h[k] = all<T>((k & 1 ? 1 : -1) / (a.b * k * (k + 1)));
  }
  void operator()(V<T> u, V<T>& weight, V<T>& rho) const {
    V<T> p = s[ORDER], q = h[ORDER];
    for (int k = ORDER - 1; k >= 0; k--) p = fma<T>(p, u, s[k]), q = fma<T>(q, u, h[k]);
    weight = p, rho = q * u;
  }
};
struct WideSlopes {
  using T = float;
  Curve<T> curve;
  V<T> log_p, part;
  WideSlopes(const Alpha& a, double v, double log_p_) : curve(a.b, v), log_p(all<T>(log_p_)), part(all<T>(1 / a.b)) {}
  V<T> operator()(V<T> z, V<T>& weight, V<T>& rho) const {  // returns r = p / p_c
    V<T> y, l2;
    const V<T> r = curve.at(z, y, &l2), u = fma<T>(z, curve.hi, z * curve.lo);
    weight = r * recip<T, 1>(y);
    rho = r > 0 ? fma<T>(u, log_p, (y * (l2 * T(0.69314718055994530942)) - u) * part) : V<T>{};
    return r;
  }
};
// Backward of one row from x, as grad_row does it from p. s and rho: room for n numbers and a vector.
template <class S, bool BY_ALPHA>
inline void grad_dense(const S* x, const S* g, S* dx, double* dalpha, i64 n, const Alpha& a, const DenseRow& row,
                       float* s, float* rho) {
  using T = float;
  constexpr i64 L = W<T>;
  static const T ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const T centre = row.centre;
  const V<T> m = all<T>(centre);
  const double log_p = log(a.b / row.v) / a.b;
  double total = 0, sg = 0, sr = 0;
  auto gather = [&](auto slopes) {
    for (i64 i = 0; i < n;) {
      V<T> t{}, tg{}, tr{};
      for (int k = 0; k < 32 && i < n; k++, i += L) {
        V<T> weight, r;
        slopes(load<T>(x + i, n - i, centre) - m, weight, r);
        if (i + L > n) weight *= load<T>(ones, n - i, T(0));
        store<T, T>(s + i, weight);
        store<T, T>(rho + i, r);
        t += weight;
        tg += weight != 0 ? weight * load<T>(g + i, n - i, T(0)) : V<T>{};
        tr = fma<T>(weight, r, tr);
      }
      total += sum<T>(t), sg += sum<T>(tg), sr += sum<T>(tr);
    }
  };
  if (row.kind == DenseRow::NARROW) {
    const NarrowSlopes slopes(a, log_p, n);
    const V<T> v = all<T>(row.v);
    gather([&](V<T> d, V<T>& weight, V<T>& r) { slopes(d * v, weight, r); });
  } else gather(WideSlopes(a, row.v, log_p));
  const V<T> shift = all<T>(sg / total), middle = all<T>(sr / total), scale = all<T>(exp(log_p) * row.v / a.b);
  double slope = 0;
  for (i64 i = 0; i < n;) {
    V<T> along{};
    for (int k = 0; k < 32 && i < n; k++, i += L) {
      const V<T> w = load<T>(s + i) * scale, d = w != 0 ? w * (load<T>(g + i, n - i, T(0)) - shift) : V<T>{};
      if constexpr (BY_ALPHA) along = fma<T>(d, load<T>(rho + i) - middle, along);
      store<S, T>(dx + i, d, n - i);
    }
    if constexpr (BY_ALPHA) slope += sum<T>(along);
  }
  if (BY_ALPHA) *dalpha = -slope / row.v;
}
}  // namespace

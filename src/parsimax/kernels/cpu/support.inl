// The support of one row: the routine that mappings, losses and attention share.
//
// With m = max x, z = x - m, b = alpha - 1, an edge E = e^(b w) > 0 (w = log p_max in [-log n, 0]) gives
//   alpha 2, 1.5:  p = (b z + E)_+^(1/b)
//   else        :  p = e^w r,  r = (1 + K z)_+^(1/b),  K = b / E;  e^w is 1 / sum r in the end
// and an entry can be in the support only if z > cut = -E / b (no cut for alpha <= 1). Newton on the norm
// (sum p)^b comes from E = 1 down to the root and never passes it for alpha in [0, 2]; above 2 it is bracketed.
// The edge of any part of the row is at or above that of the row: it starts Newton and filters candidates.
//
//   Alpha a(alpha)                         .kind INVALID for NaN or < 0: the row is NaN; ARGMAX for inf
//   Peak<T> k = peak<T>(x, n)              .max, .bad (NaN or +inf inside); max = -inf: nothing allowed
//   Edge e = start(a, k)                   a rigorous edge from the lane maxima
//   Gathered g = gather(x, n, k.max, cut(a, e), value, index)     candidates z, and their columns
//   solve<T>(a, value, count, e)           the edge of the candidates
//   evaluate<T, PZ>(a, e, value, count, value, &pz)   z -> p in place; pz = sum p z if PZ;  theta(a, e). Its result is
//   the proof:
//                                          true if the edge is the root (proof.inl)
// or all of it:  Support<T> s = find_support<T>(x, n, a, value, index), in double where float has no proof
// value and index need room for n + PAD numbers, value for as many doubles. After a call value[count .. next multiple
// of W) is 0 (-inf before).
#pragma once
#include "curve.inl"
#include "proof.inl"
extern "C" {
double log(double) noexcept;
double exp(double) noexcept;
double expm1(double) noexcept;
double log1p(double) noexcept;
}
namespace {
constexpr i64 PAD = 96;
enum Kind { SPARSEMAX, ENTMAX15, GENERAL, ARGMAX, INVALID };
struct Alpha {
  double alpha, b;
  Kind kind;
  explicit Alpha(double a) : alpha(a), b(a - 1) {
    kind = !(a >= 0) ? INVALID : a == 2 ? SPARSEMAX : a == 1.5 ? ENTMAX15 : a > 1e300 ? ARGMAX : GENERAL;
  }
};
struct Edge {
  double w = 0, E = 1;
};
template <class T> struct Peak {
  V<T> lanes[4];  // maxima of the lanes
  T max;
  bool bad;
};
struct Gathered {
  i64 count;
  bool dense;
};
enum Status { FOUND, EMPTY, NOT_A_NUMBER };
template <class T> struct Support {
  Status status;         // the rest is set only if FOUND
  T* value;              // p of the candidates, 0 possible
  const int32_t* index;  // their columns, or null: value[i] belongs to column i
  i64 count;
  double max, theta, pz;  // pz = sum p z, z = x - max
  Edge edge;
};

inline double cut(const Alpha& a, const Edge& e) {  // a little low: rounding must not lose an entry
  if (a.kind == ARGMAX) return -1e-300;
  if (a.b <= 0) return -INF<double>;
  const double c = -e.E / a.b * (1 + 1e-6);
  return c < -1e-300 ? c : -1e-300;
}
inline double theta(const Alpha& a, const Edge& e) {
  if (a.kind == SPARSEMAX) return 1 - e.E;
  if (a.kind == ENTMAX15) return 2 * (1 - e.E);
  if (a.kind == ARGMAX) return 0;
  return a.b == 0 ? -e.w : -expm1(a.b * e.w) / a.b;
}

template <class T, class S> inline Peak<T> peak(const S* x, i64 n) {
  constexpr i64 L = W<T>;
  Peak<T> k;
  V<T> worst{};  // x - x: NaN wherever x is NaN or infinite with the wrong sign
  for (auto& v : k.lanes) v = all<T>(-INF<double>);
  i64 i = 0;
  for (; i + 4 * L <= n; i += 4 * L)
    for (int u = 0; u < 4; u++) {
      const V<T> v = load<T>(x + i + u * L);
      k.lanes[u] = vmax<T>(k.lanes[u], v);  // a NaN in v takes the lane, and the next number may cover it
      worst = v == v ? worst : v;
    }
  for (int u = 0; i < n; i += L, u++) {
    const V<T> v = load<T>(x + i, n - i, -INF<T>);
    k.lanes[u & 3] = vmax<T>(v, k.lanes[u & 3]);
    worst = v == v ? worst : v;
  }
  k.max = max<T>(vmax<T>(vmax<T>(k.lanes[0], k.lanes[1]), vmax<T>(k.lanes[2], k.lanes[3])));
  k.bad = ne_bits<T>(worst, worst) || k.max == INF<T>;
  return k;
}

// One pass of alpha = 2 and 1.5: the sum of p and the slope of the norm. z has `count` numbers, then -inf up to W.
template <class T, Kind A> inline double pass(const T* z, i64 count, double E, double& slope) {
  constexpr i64 L = W<T>;
  const V<T> hi = all<T>(E), lo = all<T>(E - double(T(E)));
  Mass<T> s_all, k_all;
  for (i64 i = 0; i < count;) {
    V<T> s{}, k{};
    for (int u = 0; u < 8 && i < count; u++, i += L) {
      const V<T> d = positive<T>((A == SPARSEMAX ? load<T>(z + i) : load<T>(z + i) * T(0.5)) + hi + lo);
      if constexpr (A == SPARSEMAX) s += d, k += d > 0 ? all<T>(1) : V<T>{};
      else s += d * d, k += d;
    }
    s_all.add(s);
    k_all.add(k);
  }
  slope = k_all.get();
  return s_all.get();
}
template <class T, Kind A> inline void solve_fixed(const T* z, i64 count, Edge& e) {
  const double TOL =
      tolerance(A == SPARSEMAX ? parsimax::SPARSEMAX_ROW : parsimax::ENTMAX15_ROW, same<T, float> ? 1e-7 : 1e-15);
  for (int it = 0; it < 100; it++) {
    double k, s = pass<T, A>(z, count, e.E, k);
    if (!(k > 0)) break;
    if constexpr (A == SPARSEMAX) {
      e.E -= (s - 1) / k;
      if (!(s - 1 > TOL)) break;
    } else {  // sum (d - step)_+^2 <= count step^2 - 2 k step + s: a proof, while s is too small for its rounding to
              // matter
      const double step = (s - __builtin_sqrt(s)) / k;
      e.E -= step;
      if (s < 1.2 && !(count * step * step - 2 * k * step + s - 1 > TOL)) break;
    }
  }
}
template <class T> inline double pass_general(const Alpha& a, const T* z, i64 count, double E, double& slope) {
  constexpr i64 L = W<T>;
  const Curve<T> curve(a.b, a.b / E);
  Mass<T> s_all, k_all;
  for (i64 i = 0; i < count;) {
    V<T> s{}, k{};
    for (int u = 0; u < 8 && i < count; u++, i += L) {
      V<T> y;
      const V<T> r = curve.at(load<T>(z + i), y);
      s += r;
      k += r * recip<T, 0>(y);
    }
    s_all.add(s);
    k_all.add(k);
  }
  slope = k_all.get();
  return s_all.get();
}
template <class T> inline void solve_general(const Alpha& a, const T* z, i64 count, Edge& e, int limit) {
  const double TOL = tolerance(parsimax::GENERAL_ROW, same<T, float> ? 5e-8 : 2e-16);
  double last = 0, rate = 1;
  for (int it = 0; it < limit; it++) {
    double slope, R = pass_general<T>(a, z, count, e.E, slope);
    if (!(R > 0)) break;
    const double excess = log(R) + e.w, off = excess < 0 ? -excess : excess;  // log of the sum
    e.w += a.b == 0 ? -excess : log1p(expm1(-a.b * excess) * (R / slope)) / a.b;
    if (!(e.w < 2)) {  // a start far beyond the root (solve_flat): from the safe side instead
      e = Edge();
      continue;
    }
    e.E = exp(a.b * e.w);
    if (last > 0 && off > rate * last * last) rate = off / (last * last);  // quadratic convergence: foresee the next
    if (off < TOL || 4 * rate * off * off < TOL) break;
    last = off;
  }
}
// A flat row (nearly dense, nearly equal) is described by its mean and variance: the root of that model saves two
// passes. It may lie on either side of the true root; from the far side one Newton step comes back to the near one.
template <class T> inline void solve_flat(const Alpha& a, const T* z, i64 count, Edge& e) {
  V<T> s{}, q{};
  const i64 whole = count / W<T> * W<T>;
  for (i64 i = 0; i < whole; i += W<T>) {
    const V<T> v = load<T>(z + i);
    s += v;
    q += v * v;
  }
  const double mean = double(sum<T>(s)) / double(whole), var = double(sum<T>(q)) / double(whole) - mean * mean;
  if (!(mean > -1e30)) return;  // forbidden entries
  Edge f = e;
  for (int it = 0; it < 4; it++) {
    const double kappa = 1 / f.E, y = 1 + a.b * kappa * mean, c = kappa * kappa * var / (y * y);
    if (!(y > 0.2) || !(c < 0.1) || !(c >= 0)) return;
    const double bulge = 1 + (1 - a.b) * c / 2, lean = 1 + (1 - a.b) * (1 - 2 * a.b) * c / 2;
    const double grown = a.b == 0 ? kappa * mean : log(y) / a.b;
    const double excess = log(double(count) * bulge) + grown + f.w;
    f.w += a.b == 0 ? -excess : log1p(expm1(-a.b * excess) * (bulge * y / lean)) / a.b;
    f.E = exp(a.b * f.w);
  }
  if (f.w < 0) e = f;  // false for NaN
}
}  // namespace
#include "steep.inl"
namespace {
template <class T> inline void solve(const Alpha& a, const T* z, i64 count, Edge& e, int limit = 200) {
  if (a.kind == SPARSEMAX) solve_fixed<T, SPARSEMAX>(z, count, e);
  else if (a.kind == ENTMAX15) solve_fixed<T, ENTMAX15>(z, count, e);
  else if (a.kind == GENERAL && a.alpha > 2) solve_steep<T>(a, z, count, e);
  else if (a.kind == GENERAL) {
    if (count >= 256) solve_flat<T>(a, z, count, e);
    solve_general<T>(a, z, count, e, limit);
  }
}

template <class T> inline Edge start(const Alpha& a, const Peak<T>& k) {
  Edge e;
  if (a.b <= 0 || a.kind == ARGMAX) return e;
  T z[4 * W<T>];
  for (int u = 0; u < 4; u++) store<T, T>(z + u * W<T>, k.lanes[u] - k.max);
  solve<T>(a, z, 4 * W<T>, e, a.alpha <= 2 ? 2 : 200);
  return e;
}

// Candidates z > least, at most `limit` of them (or -1), and their columns; value and index have room for limit + PAD.
template <class T, class S>
inline i64 gather_some(const S* x, i64 n, T m, double least, i64 limit, T* value, int32_t* index) {
  constexpr i64 L = W<T>;
  const V<T> t = all<T>(least);
  i64 c = 0, i = 0;
  auto take = [&](V<T> z, i64 at) {
    const unsigned b = gt_bits<T>(z, t);
    push<T>(value + c, z, b);
    push_index<T>(index + c, at, b);
    c += __builtin_popcount(b);
  };
  for (; i + 4 * L <= n && c <= limit; i += 4 * L) {
    V<T> z[4];
    for (int u = 0; u < 4; u++) z[u] = load<T>(x + i + u * L) - m;
    if (gt_bits<T>(vmax<T>(vmax<T>(z[0], z[1]), vmax<T>(z[2], z[3])), t))
      for (int u = 0; u < 4; u++) take(z[u], i + u * L);
  }
  for (; i < n && c <= limit; i += L) take(load<T>(x + i, n - i, -INF<T>) - m, i);
  if (c > limit) return -1;
  store<T, T>(value + c, all<T>(-INF<double>));
  return c;
}
// A look at a few numbers of a long row: more than three quarters of them are candidates.
template <class T, class S> inline bool mostly_above(const S* x, i64 n, T m, double least) {
  constexpr i64 L = W<T>;
  if (n < 1024) return false;
  i64 above = 0;
  for (i64 k = 0; k < 8; k++) above += __builtin_popcount(gt_bits<T>(load<T>(x + n / 8 * k) - m, all<T>(least)));
  return above > 6 * L;
}
// At most `limit` candidates, or else the whole row.
template <class T, class S>
inline Gathered gather(const S* x, i64 n, T m, double least, T* value, int32_t* index, i64 limit) {
  const i64 c = least > -INF<double> && !mostly_above<T>(x, n, m, least)
                    ? gather_some<T>(x, n, m, least, limit, value, index)
                    : -1;
  if (c >= 0) return {c, false};
  for (i64 i = 0; i < n; i += W<T>) store<T, T>(value + i, load<T>(x + i, n - i, -INF<T>) - m);
  return {n, true};
}
template <class T, class S> inline Gathered gather(const S* x, i64 n, T m, double least, T* value, int32_t* index) {
  return gather<T>(x, n, m, least, value, index, n < 2 ? n : n / 2);
}

// r -> p where an edge of 53 bits leaves mass over, because many entries stand just above it: a last Newton step, taken
// by the p themselves, dp = r / y. Dividing by the sum instead would take it from the largest. True if their sum is 1.
template <bool PZ, class Put>
inline bool deal_out(const Alpha& a, const Edge& e, const double* r, i64 count, Put put, double* pz) {
  using T = double;
  const double top = exp(e.w);
  Mass<T> mass, slopes, dealt;
  Total<T> along;
  const auto height = [&](V<T> v) { return exp2<T>(a.b * log2<T>(v > 0 ? v : all<T>(1))); };
  for (i64 i = 0; i < count; i += W<T>) {
    const V<T> v = load<T>(r + i);
    mass.add(v * top);
    slopes.add(v / height(v));
  }
  const double step = (1 - mass.get()) / slopes.get();
  for (i64 i = 0; i < count; i += W<T>) {
    const V<T> v = load<T>(r + i), y = height(v), p = positive<T>(v * top + v / y * step);
    dealt.add(p);
    if constexpr (PZ) along.add(p * (y - 1) * (e.E / a.b));
    put(i, p);
  }
  if constexpr (PZ) *pz = along.get();
  return small(dealt.get() - 1, tolerance(parsimax::GENERAL_ROW, PROOF<T>));
}

// z -> p, in place or (dense rows) into another array of any storage type, with the sum of p z if asked for. True if
// the sum of p, before anything is divided by it, is 1.
template <class T, bool PZ, class O>
inline bool evaluate(const Alpha& a, const Edge& e, T* z, i64 count, O* out, double* pz) {
  constexpr i64 L = W<T>;
  Total<T> dot;
  Mass<T> mass;
  auto put = [&](i64 i, V<T> v) {
    (const void*)out == (const void*)z ? store<T, T>(z + i, v) : store<O, T>(out + i, v, count - i);
  };
  auto each = [&](auto f, auto keep) {
    for (i64 i = 0; i < count;) {
      V<T> some{}, along{};
      for (int u = 0; u < 8 && i < count; u++, i += L) {
        const V<T> v = load<T>(z + i), r = f(v);
        some += r;
        if constexpr (PZ) along += r > 0 ? r * v : V<T>{};
        keep(i, r);
      }
      mass.add(some);
      if constexpr (PZ) dot.add(along);
    }
  };
  const V<T> hi = all<T>(e.E), lo = all<T>(e.E - double(T(e.E)));
  if (a.kind == SPARSEMAX || a.kind == ENTMAX15) {
    if (a.kind == SPARSEMAX) each([&](V<T> v) { return positive<T>(v + hi + lo); }, put);
    else
      each(
          [&](V<T> v) {
            const V<T> d = positive<T>(v * T(0.5) + hi + lo);
            return d * d;
          },
          put);
    if constexpr (PZ) *pz = dot.get();
    return small(mass.get() - 1,
                 tolerance(a.kind == SPARSEMAX ? parsimax::SPARSEMAX_ROW : parsimax::ENTMAX15_ROW, PROOF<T>));
  }
  if constexpr (same<T, double>)
    if (a.kind == GENERAL &&
        a.alpha > 2) {  // the bracket of its search has closed, and what is left of the mass is dealt out
      double along = 0;
      const bool proved = evaluate_steep(a, e, z, count, along);
      for (i64 i = 0; i < count; i += L) put(i, load<T>(z + i));
      if constexpr (PZ) *pz = along;
      return proved;
    }
  auto keep = [&](i64 i, V<T> r) { store<T, T>(z + i, r); };
  if (a.kind == ARGMAX) each([&](V<T> v) { return v == 0 ? all<T>(1) : V<T>{}; }, keep);
  else {
    const Curve<T> curve(a.b, a.b / e.E);
    each(
        [&](V<T> v) {
          V<T> y;
          return curve.at(v, y);
        },
        keep);
  }
  const double R = mass.get(), scale = 1 / R, off = log(R) + e.w;
  if constexpr (same<T, double>)
    if (a.kind == GENERAL && a.b > 0 && !small(off, 1e-14) && small(off, tolerance(parsimax::GENERAL_ROW, 1e-9)))
      return deal_out<PZ>(a, e, z, count, put, pz);
  for (i64 i = 0; i < count; i += L) put(i, load<T>(z + i) * T(scale));
  if constexpr (PZ) *pz = dot.get() * scale;
  // Softmax and argmax have no edge: they are r / sum r.
  return a.kind == ARGMAX || a.b == 0 || small(off, tolerance(parsimax::GENERAL_ROW, PROOF<T>));
}
// Bisection, for rows of double that Newton left without a proof: the sum rises with the edge, so a closed bracket is
// one.
inline void bisect(const Alpha& a, const double* z, i64 count, Edge& e) {
  if (a.kind == GENERAL) {
    e = Edge();
    return solve_steep<double>(a, z, count, e);
  }
  double low = 0, high = 1, slope;
  for (int it = 0; it < 1100 && low + (high - low) / 2 != low && low + (high - low) / 2 != high; it++) {
    e.E = low + (high - low) / 2;
    const double mass = a.kind == SPARSEMAX ? pass<double, SPARSEMAX>(z, count, e.E, slope)
                                            : pass<double, ENTMAX15>(z, count, e.E, slope);
    (mass > 1 ? high : low) = e.E;
  }
}

}  // namespace
#include "dense.inl"
namespace {
inline void narrow_in_place(void* values, i64 n) {
  for (i64 j = 0; j < n; j++) {
    double x;
    __builtin_memcpy(&x, (char*)values + 8 * j, 8);
    const float y = float(x);
    __builtin_memcpy((char*)values + 4 * j, &y, 4);
  }
  store<float, float>((float*)values + n, V<float>{});
}
// Above 2 the weights move by more than the rounding of float: those rows are solved in double.
template <class T> inline bool needs_double(const Alpha& a) { return same<T, float> && a.alpha > 2; }

template <class T, class S>
inline Support<T> find_support(const S* x, i64 n, const Alpha& a, T* value, int32_t* index) {
  Support<T> s{};
  const Peak<T> k = peak<T>(x, n);
  s.status = k.bad || a.kind == INVALID ? NOT_A_NUMBER : k.max == -INF<T> ? EMPTY : FOUND;
  if (s.status != FOUND) return s;
  bool done = false;
  if (!needs_double<T>(a)) {
    Edge e = start<T>(a, k);
    const double least = cut(a, e);
    const Gathered g = gather<T>(x, n, k.max, least, value, index);
    if constexpr (same<T, float>) done = g.dense && try_wide<true>(a, value, n, e, value, &s.pz);
    if (!done) {
      solve<T>(a, value, g.count, e);
      done = evaluate<T, true>(a, e, value, g.count, value, &s.pz);
    }
    if constexpr (same<T, double>)
      if (!done) {
        gather<T>(x, n, k.max, least, value, index);
        bisect(a, value, g.count, e);
        evaluate<T, true>(a, e, value, g.count, value, &s.pz);
      }
    s.value = value;
    s.index = g.dense ? nullptr : index;
    s.count = g.count;
    s.max = k.max;
    s.edge = e;
    s.theta = theta(a, e);
  }
  if constexpr (same<T, float>)
    if (!done) {
      const auto d = find_support<double>(x, n, a, (double*)value, index);
      narrow_in_place(value, d.count);
      return {d.status, value, d.index, d.count, d.max, d.theta, d.pz, d.edge};
    }
  return s;
}
}  // namespace

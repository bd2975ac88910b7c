// Mappings that are entmax after a change of variables, z = a (x - max):
//   sparsegen        sparsemax with a = 1 / (1 - lambda)
//   sparsehourglass  sparsemax with a = (1 + Kq) / (|sum x| + Kq) over the K allowed scores
//   normmax          with q = alpha / (alpha - 1) the constraint sum d^q = 1, d = x - tau, is that of entmax at
//                    alpha' = 2 - 1/alpha of q x, whose p is d^q; normmax is its escort, d^(q - 1) over the sum of them
// A threshold is a mean of the scores in the support, so the rounding of a (x - max) to float moves no p by more than
// twice as much. The proof is that of entmax: the sum of its p.
#pragma once
#include "short.inl"
namespace {
struct Change {
  double scale;
  Alpha alpha;  // INVALID: the row is NaN
  bool escort;
};
template <class S> inline Change sparsegen_change(const S*, i64, double lambda) {
  return {1 / (1 - lambda), Alpha(lambda < 1 && lambda > -INF<double> ? 2 : -1), false};
}
struct Hourglass {
  double sum = 0, count = 0, q, below;  // below: |sum| + count q
  template <class S> Hourglass(const S* x, i64 n, double q) : q(q) {
    using T = Compute<S>;
    Total<T> total;
    i64 allowed = 0;
    for (i64 i = 0; i < n; i += W<T>) {
      const V<T> v = load<T>(x + i, n - i, -INF<T>), none = all<T>(-INF<T>);
      total.add(v == none ? V<T>{} : v);
      allowed += __builtin_popcount(ne_bits<T>(v, none));
    }
    sum = total.get(), count = double(allowed);
    below = (sum < 0 ? -sum : sum) + count * q;
  }
  bool valid() const { return q > 0 && q < INF<double>; }
  double scale() const { return (1 + count * q) / below; }
};
template <class S> inline Change hourglass_change(const S* x, i64 n, double q) {
  const Hourglass h(x, n, q);
  return {h.scale(), Alpha(h.valid() ? 2 : -1), false};
}
template <class S> inline Change normmax_change(const S*, i64, double alpha) {
  const bool valid = alpha > 1 && alpha < INF<double>;
  return {alpha / (alpha - 1), Alpha(valid ? 2 - 1 / alpha : -1), true};
}
// Where float is enough: scales that keep its range. The sum of an escort moves with the rounding of all scores, which
// is none at alpha = 2, whose scale is 2.
inline bool fits_float(const Change& c) {
  return c.scale > 1e-20 && c.scale < 1e20 && (!c.escort || c.alpha.kind == ENTMAX15);
}

// z -> the escort of p, and whether the sum of p is 1.
template <class T, class O> inline bool evaluate_escort(const Alpha& a, const Edge& e, T* z, i64 count, O* out) {
  constexpr i64 L = W<T>;
  Total<T> mass, escort;
  const Curve<T> curve(a.b, a.b / e.E);
  const V<T> hi = all<T>(e.E), lo = all<T>(e.E - double(T(e.E)));
  for (i64 i = 0; i < count; i += L) {
    V<T> p, s, y;
    if (a.kind == ENTMAX15) s = positive<T>(load<T>(z + i) * T(0.5) + hi + lo), p = s * s;
    else p = curve.at(load<T>(z + i), y), s = p / y;
    mass.add(p);
    escort.add(s);
    store<T, T>(z + i, s);
  }
  const T scale = T(1 / escort.get());
  for (i64 i = 0; i < count; i += L) {
    const V<T> p = load<T>(z + i) * scale;
    (const void*)out == (const void*)z ? store<T, T>(z + i, p) : store<O, T>(out + i, p, count - i);
  }
  // The sum of d moves by `count` times what the edge is off by, (sum p - 1) / (2 sum d).
  const double moved = double(count) / (2 * escort.get() * escort.get());
  if (a.kind == ENTMAX15)
    return bears_rounding<T>(moved) &&
           small((mass.get() - 1) * (moved > 1 ? moved : 1), tolerance(parsimax::ENTMAX15_ROW, PROOF<T>));
  return small(log(mass.get()) + e.w, tolerance(parsimax::GENERAL_ROW, PROOF<T>));
}
template <class T, class S> inline void scaled_row(const S* x, S* p, i64 n, const Change& c, const Scratch& sc) {
  Peak<T> k = peak<T>(x, n);
  if (k.bad || c.alpha.kind == INVALID) return fill_row(p, n, __builtin_nan(""));
  if (k.max == -INF<T>) return fill_row(p, n, 0);
  if constexpr (same<T, float>)
    if (!fits_float(c)) return scaled_row<double>(x, p, n, c, sc);
  const T scale = T(c.scale > 1e-300 ? c.scale : 1e-300), top = k.max;
  T* value = sc.numbers<T>(0);
  for (auto& v : k.lanes) v = (v - top) * scale;
  k.max = 0;
  Edge e = start<T>(c.alpha, k);
  const double least = cut(c.alpha, e) / scale;
  Gathered g;
  auto collect = [&] {
    g = gather<T>(x, n, top, least, value, sc.index());
    for (i64 i = 0; i < g.count; i += W<T>) store<T, T>(value + i, load<T>(value + i) * scale);
  };
  auto finish = [&] {
    if (c.escort)
      return g.dense ? evaluate_escort<T>(c.alpha, e, value, n, p)
                     : evaluate_escort<T>(c.alpha, e, value, g.count, value);
    return g.dense ? evaluate<T, false>(c.alpha, e, value, n, p, (double*)nullptr)
                   : evaluate<T, false>(c.alpha, e, value, g.count, value, (double*)nullptr);
  };
  collect();
  solve<T>(c.alpha, value, g.count, e);
  if (!finish()) {
    if constexpr (same<T, float>) return scaled_row<double>(x, p, n, c, sc);
    else {
      collect();
      bisect(c.alpha, value, g.count, e);
      finish();
    }
  }
  if (!g.dense) scatter(p, n, value, sc.index(), g.count);
}
template <class S, class F>
inline void scaled_rows(const parsimax::ThresholdArgs& args, i64 first, i64 last, void* scratch, F change) {
  using T = Compute<S>;
  constexpr int L = W<T>;
  const i64 n = args.n;
  const Scratch sc{(char*)scratch, n};
  const bool lanes = n <= (same<T, float> ? LANE_LONGEST : parsimax::SHORT) && (VB > 16 || n <= parsimax::SHORT);
  for (i64 r = first; r < last; r += L) {
    const int rows = last - r < L ? int(last - r) : L;
    auto x = (const S*)args.x + r * n;
    auto p = (S*)args.out + r * n;
    double scale[L], alpha[L];
    unsigned done = 0, two = 0, half = 0;
    for (int j = 0; j < L; j++) scale[j] = 1, alpha[j] = 2;
    for (int j = 0; j < rows && lanes; j++) {
      const Change c = change(x + j * n, n, at(args.param, r + j));
      if (!(c.scale > 1e-20 && c.scale < 1e20)) continue;
      scale[j] = c.scale;
      two |= unsigned(c.alpha.kind == SPARSEMAX) << j, half |= unsigned(c.alpha.kind == ENTMAX15) << j;
    }
    if (two) done = map_lanes<T, S, SPARSEMAX, true>(x, p, n, rows, alpha, false, sc.rest(), two, scale);
    if (half) done |= map_lanes<T, S, ENTMAX15, true, true>(x, p, n, rows, alpha, false, sc.rest(), half, scale);
    for (int j = 0; j < rows; j++)
      if (!(done >> j & 1)) scaled_row<T>(x + j * n, p + j * n, n, change(x + j * n, n, at(args.param, r + j)), sc);
  }
}

// The numbers of the support, p != 0, and their gradients, or of the whole row where looking for it does not pay;
// work(p, g, count) turns p into dx. NaN counts as support, so that it is passed on.
template <class T, class S, class F>
inline void grad_support(const S* p, const S* g, S* dx, i64 n, const Scratch& sc, F work) {
  constexpr i64 L = W<T>;
  T *pv = sc.numbers<T>(0), *gv = sc.numbers<T>(1);
  int32_t* index = sc.index();
  i64 c = 0;
  const i64 most = n < GRAD_PLAIN ? -1 : n / 3;
  for (i64 i = 0; i < n && c <= most; i += 4 * L) {
    V<T> v[4];
    for (int u = 0; u < 4; u++) v[u] = load<T>(p + i + u * L, n - i - u * L, T(0));
    if (!ne_bits<T>((v[0] + v[1]) + (v[2] + v[3]), V<T>{})) continue;  // p >= 0: the sum is 0 only if all are
    for (int u = 0; u < 4; u++) {
      const unsigned b = ne_bits<T>(v[u], V<T>{});
      if (!b) continue;
      push<T>(pv + c, v[u], b);
      push<T>(gv + c, load<T>(g + i + u * L, n - i - u * L, T(0)), b);
      push_index<T>(index + c, i + u * L, b);
      c += __builtin_popcount(b);
    }
  }
  if (c <= most) {
    store<T, T>(pv + c, V<T>{});
    store<T, T>(gv + c, V<T>{});
    work(pv, gv, c);
    return scatter(dx, n, pv, index, c);
  }
  for (i64 i = 0; i < n; i += L) {
    const V<T> v = load<T>(p + i, n - i, T(0));
    store<T, T>(pv + i, v);
    store<T, T>(gv + i, v != 0 ? load<T>(g + i, n - i, T(0)) : V<T>{});
  }
  work(pv, gv, n);
  for (i64 i = 0; i < n; i += L) store<S, T>(dx + i, load<T>(pv + i), n - i);
}
// With h = g - the mean of g over the support: dx = a h, d lambda = a sum h p.
template <class S>
inline void sparsegen_grad_row(const S* p, const S* g, S* dx, double* dlambda, i64 n, double lambda,
                               const Scratch& sc) {
  using T = Compute<S>;
  const double a = 1 / (1 - lambda);
  if (!dlambda && n < GRAD_PLAIN) {
    const T factor = T(a);
    return grad_plain<false, T>(p, g, dx, n, sc.numbers<T>(0), [factor](V<T> v) { return v * 0 + factor; });
  }
  grad_support<T>(p, g, dx, n, sc, [&](T* pv, const T* gv, i64 count) {
    Total<T> total, size, along;
    for (i64 i = 0; i < count; i += W<T>) {
      const V<T> v = load<T>(pv + i), one = v == v ? all<T>(1) : v;
      size.add(v != 0 ? one : V<T>{});
      total.add(load<T>(gv + i));
    }
    const double held = size.get();
    const V<T> mean = all<T>(held == 0 ? 0 : total.get() / held), scale = all<T>(a);
    for (i64 i = 0; i < count; i += W<T>) {
      const V<T> v = load<T>(pv + i), h = load<T>(gv + i) - mean;
      along.add(v != 0 ? h * v : V<T>{});
      store<T, T>(pv + i, v != 0 ? h * scale : V<T>{});
    }
    if (dlambda) *dlambda = a * along.get();
  });
}
// With d = (p S)^(alpha - 1), S = 1 / |p|_alpha, w = p / d, h = g - <p, g> and m = 1 / (alpha - 1), the rate of d^m:
// tau moves with <p, dx>, so that dx = m (w h - p <w, h>). By alpha, with L = log d:
//   -m^2 (<p h, L> - m / ((m + 1) S) <d^(m + 1), L> <w, h>), and p S = d^m.
template <class T, class S>
inline void normmax_grad_row(const S* p, const S* g, S* dx, double* dalpha, i64 n, double alpha, const Scratch& sc) {
  const bool two = alpha == 2 && !dalpha;
  grad_support<T>(p, g, dx, n, sc, [&](T* pv, T* gv, i64 count) {
    constexpr i64 L = W<T>;
    T* w = sc.numbers<T>(2);
    Total<T> norm, along;
    for (i64 i = 0; i < count; i += L) {
      const V<T> v = load<T>(pv + i);
      V<T> power = v * v;
      if (!two) power = v > 0 ? exp2<T>(log2<T>(v) * T(alpha)) : v;
      norm.add(power);
      along.add(v != 0 ? v * load<T>(gv + i) : V<T>{});
    }
    if (norm.get() == 0) return;
    const double S_ = two ? 1 / __builtin_sqrt(norm.get()) : exp(-log(norm.get()) / alpha), m = 1 / (alpha - 1),
                 log_S = log(S_) * LOG2_E, mean = along.get();
    Total<T> moved, by_log, logs;
    for (i64 i = 0; i < count; i += L) {
      const V<T> v = load<T>(pv + i), h = v != 0 ? load<T>(gv + i) - T(mean) : V<T>{};
      V<T> part = all<T>(1 / S_);
      if (!two) {
        const V<T> l = (v > 0 ? log2<T>(v) : V<T>{}) + T(log_S), d = exp2<T>(l * T(alpha - 1)),
                   L_ = l * T((alpha - 1) / LOG2_E);
        part = v / d;
        by_log.add(v > 0 ? v * h * L_ : V<T>{});
        logs.add(v > 0 ? v * T(S_) * d * L_ : V<T>{});
      }
      part = v != 0 ? part * h : V<T>{};
      moved.add(part);
      store<T, T>(w + i, part);
    }
    const double shift = moved.get();
    for (i64 i = 0; i < count; i += L) {
      const V<T> v = load<T>(pv + i);
      store<T, T>(pv + i, v != 0 ? (load<T>(w + i) - v * T(shift)) * T(m) : V<T>{});
    }
    if (dalpha) *dalpha = -m * m * (by_log.get() - m / ((m + 1) * S_) * logs.get() * shift);
  });
}
// The scale follows the sum of the scores: with D = sum h x over the support, dx = a h - D a sign / below
// for every allowed score, dq = D K (|sum| - 1) / below^2.
template <class S>
inline void hourglass_grad_row(const S* x, const S* p, const S* g, S* dx, double* dq, i64 n, double q) {
  using T = Compute<S>;
  constexpr i64 L = W<T>;
  const Hourglass hour(x, n, q);
  const bool bad = scalar_float(p[0]) != scalar_float(p[0]);
  if (dq) *dq = bad ? __builtin_nan("") : 0;
  if (bad) return fill_row(dx, n, __builtin_nan(""));
  if (hour.count == 0) return fill_row(dx, n, 0);
  Total<T> total, along;
  i64 held = 0;
  const auto each = [&](auto f) {  // of the support
    for (i64 i = 0; i < n; i += L) {
      const V<T> v = load<T>(p + i, n - i, T(0));
      if (const unsigned on = ne_bits<T>(v, V<T>{})) f(i, on, v, load<T>(g + i, n - i, T(0)));
    }
  };
  double some = 0;  // any score of the support: differences to it are small
  each([&](i64 i, unsigned on, V<T> v, V<T> h) {
    if (!held) some = scalar_float(x[i + __builtin_ctz(on)]);
    held += __builtin_popcount(on);
    total.add(v != 0 ? h : V<T>{});
  });
  const V<T> mean = all<T>(total.get() / double(held)), from = all<T>(some);
  each([&](i64 i, unsigned, V<T> v, V<T> h) {
    along.add(v != 0 ? (h - mean) * (load<T>(x + i, n - i, T(0)) - from) : V<T>{});
  });
  const double a = hour.scale(), D = along.get(), size = hour.sum < 0 ? -hour.sum : hour.sum;
  if (dq) *dq = D * hour.count * (size - 1) / hour.below / hour.below;
  const V<T> scale = all<T>(a), rest = all<T>(-D * a * (hour.sum > 0 ? 1 : hour.sum < 0 ? -1 : 0) / hour.below);
  const bool soon = n * i64(sizeof(S)) <= 16384;  // three longer rows would push each other out of the cache
  for (i64 i = 0; i < n;) {
    if (soon) fetch<4 * L>(x + n + i), fetch<4 * L>(p + n + i), fetch<4 * L>(g + n + i);  // the next row
    for (int u = 0; u < 4 && i < n; u++, i += L) {
      const V<T> v = load<T>(p + i, n - i, T(0));
      V<T> d = load<T>(x + i, n - i, T(0)) > -INF<T> ? rest : V<T>{};
      if (ne_bits<T>(v, V<T>{})) d += v != 0 ? (load<T>(g + i, n - i, T(0)) - mean) * scale : V<T>{};
      store<S, T>(dx + i, d, n - i);
    }
  }
}

#define PARSIMAX_SCALED(NAME)                                                                   \
  template <class S> void NAME##_rows(const void* args, i64 first, i64 last, void* scratch) {   \
    scaled_rows<S>(*(const parsimax::ThresholdArgs*)args, first, last, scratch,                 \
                   [](const S* x, i64 n, double value) { return NAME##_change(x, n, value); }); \
  }
PARSIMAX_SCALED(sparsegen)
PARSIMAX_SCALED(hourglass)
PARSIMAX_SCALED(normmax)
#undef PARSIMAX_SCALED
template <class S> void sparsegen_grad_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    sparsegen_grad_row((const S*)args.p + r * n, (const S*)args.g + r * n, (S*)args.out + r * n,
                       args.dparam ? args.dparam + r : nullptr, n, at(args.param, r), Scratch{(char*)scratch, n});
}
template <class S> void hourglass_grad_rows(const void* args_, i64 first, i64 last, void*) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++)
    hourglass_grad_row((const S*)args.x + r * n, (const S*)args.p + r * n, (const S*)args.g + r * n,
                       (S*)args.out + r * n, args.dparam ? args.dparam + r : nullptr, n, at(args.param, r));
}
template <class S> void normmax_grad_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++) {
    const double alpha = at(args.param, r);
    auto run = [&]<class T>(T) {
      normmax_grad_row<T>((const S*)args.p + r * n, (const S*)args.g + r * n, (S*)args.out + r * n,
                          args.dparam ? args.dparam + r : nullptr, n, alpha, Scratch{(char*)scratch, n});
    };
    if (alpha == 2 && !args.dparam) run(Compute<S>());
    else run(double());  // powers of p leave the range of float
  }
}
}  // namespace

// Softmax with a cut: weights (1 + z/t)_+ e^z, z = x - max. t-softmax is given t; r-softmax has t = max - q, q the
// quantile of the allowed scores at `rate`. With s = e^z / t on the support, w the weights, h = g - <p, g> and
// Z = sum w:
//   dx = h (w + s) / Z,  dt = sum h s / Z,
// and -dt goes to what the cut max - t follows: to the maxima, in equal parts, or to the two order statistics that q
// lies between. t = 0 leaves softmax over the maxima alone. There is no search: p is w / sum w.
#pragma once
#include "map.inl"
#include "select.inl"
#include "wall.inl"
namespace {
// In what a row is computed: where 1/t leaves the range of float, in double.
template <class S> inline bool in_double(double t) { return same<S, double> || !(t >= 1e-30 && t <= 1e30); }

using parsimax::Cut;
template <class T, class S> inline Cut fixed_cut(const S* x, i64 n, double t) {
  const Peak<T> k = peak<T>(x, n);
  Cut c{};
  c.status = k.bad || !(t > 0) ? NOT_A_NUMBER : k.max == -INF<T> ? EMPTY : FOUND;
  c.max = k.max;
  c.t = t;
  return c;
}
template <class T, class S> inline Cut quantile_cut(const S* x, i64 n, double rate, const Scratch& sc) {
  Cut c = fixed_cut<T>(x, n, 1);
  if (!(rate >= 0 && rate <= 1)) c.status = NOT_A_NUMBER;
  if (c.status != FOUND) return c;
  c.allowed = count_allowed<T>(x, n);
  const double place = rate * double(c.allowed - 1);
  const i64 first = i64(place);
  c.part = place - double(first);
  c.rank = int32_t(n - c.allowed + first);
  const Neighbours s = select_neighbours<T>(x, n, c.rank, sc.numbers<T>(0), sc.numbers<T>(1));  // -inf comes first
  c.low = s.at, c.high = s.next;
  const double low = c.low - c.max, high = c.high - c.max,
               q = high - low < INF<double> ? low + c.part * (high - low)
                                            : low;  // a difference of doubles can overflow
  c.t = q > -1e300 ? -q : 1e300;
  return c;
}

// A score is in the support if it is above this. No score lies between the two that a quantile does; max - t is rounded
// down.
template <class T> inline T wall_of(const Cut& c) {
  if (c.t == INF<double>) return -INF<T>;
  return c.allowed ? T(c.low) : wall_under<T>(c.max, c.t);
}
// The scores above the wall, and their columns, or -1 if they are too many for that to pay.
template <class T, class S> inline i64 gather_above(const Cut& c, const S* x, i64 n, const Scratch& sc) {
  const T wall = wall_of<T>(c);
  const bool many = c.allowed && c.rank < n - n / 4;
  if (n < 64 || many || wall == -INF<T> || mostly_above<T>(x, n, T(0), wall)) return -1;
  return gather_some<T>(x, n, T(0), wall, n / 4, sc.numbers<T>(2), sc.index());
}
// Weights into w, and with a gradient the slopes s into e and <w, g> into `along`; the result is the sum of the
// weights. In float a weight is off by a rounding of e^z at most, whatever y = 1 + z/t is. So the sum of e^z over the
// support says how far the p are off: `fine` is false where many scores are nearly cut off and float does not do. A
// score above the cut gets a weight, however close it is: where z + t rounds to 0, a share of that rounding.
template <class T, bool GRAD, class S>
inline double cut_weights(const Cut& c, const S* x, const S* g, i64 n, T* w, T* e, double* along, bool* fine) {
  constexpr i64 L = W<T>;
  const bool soft = c.t == INF<double>;
  const double lift = c.t < 1e-290 ? 0x1p600 : 1;  // 1/t overflows where t is subnormal
  const double per_t = soft ? 0 : 1 / (c.t * lift), most = same<T, float> ? 1e38 : 1e300,
               slope = per_t * lift < most ? per_t * lift : most;
  const V<T> steep = all<T>(slope), max = all<T>(c.max), up = all<T>(LOG2_E), none{};
  const V<T> t = all<T>(soft ? 1 : c.t), scale = all<T>(soft ? 0 : per_t), far = all<T>(lift),
             least = all<T>(soft             ? 1
                            : same<T, float> ? 3e-8
                                             : 1e-17);
  const V<T> wall = all<T>(wall_of<T>(c));
  Total<T> total, dot, grown;
  const auto each = [&](i64 i, V<T> v, V<T>& some, V<T>& part, V<T>& sum) {
    const V<T> z = v - max, over = z + t, y = vmax<T>(same<T, float> ? over * scale : over * far * scale, least);
    V<T> r = exp2<T>(z * up);
    r = v > wall ? r : none;
    const V<T> kept = r * y;
    some += kept;
    sum += r;
    store<T, T>(w + i, kept);
    if constexpr (GRAD) {
      store<T, T>(e + i, r * steep);
      part += kept != 0 ? kept * load<T>(g + i, n - i, T(0)) : none;
    }
  };
  i64 i = 0;
  for (; i + 4 * L <= n; i += 4 * L) {
    V<T> v[4], some{}, part{}, sum{};
    fetch<4 * L>(x + n + i);  // the next row
    if constexpr (GRAD) fetch<4 * L>(g + n + i);
    for (int u = 0; u < 4; u++) v[u] = load<T>(x + i + u * L);
    if (!gt_bits<T>(vmax<T>(vmax<T>(v[0], v[1]), vmax<T>(v[2], v[3])), wall)) {
      for (int u = 0; u < 4; u++) store<T, T>(w + i + u * L, none);
      if constexpr (GRAD)
        for (int u = 0; u < 4; u++) store<T, T>(e + i + u * L, none);
      continue;
    }
    for (int u = 0; u < 4; u++) each(i + u * L, v[u], some, part, sum);
    total.add(some);
    grown.add(sum);
    if constexpr (GRAD) dot.add(part);
  }
  for (; i < n; i += L) {
    V<T> some{}, part{}, sum{};
    each(i, load<T>(x + i, n - i, -INF<T>), some, part, sum);
    total.add(some);
    grown.add(sum);
    if constexpr (GRAD) dot.add(part);
  }
  if constexpr (GRAD) *along = dot.get();
  *fine = same<T, double> || grown.get() <= 8 * total.get();
  return total.get();
}
// False where float does not do.
template <class T, class S> inline bool cut_row(const Cut& c, const S* x, S* p, i64 n, const Scratch& sc) {
  if (c.status != FOUND) return fill_row(p, n, c.status == EMPTY ? 0 : __builtin_nan("")), true;
  T* w = sc.numbers<T>(0);
  if (c.t == 0) {
    const V<T> top = all<T>(c.max), share = all<T>(1 / count_of<T>(x, n, T(c.max)));
    for (i64 i = 0; i < n; i += W<T>) store<S, T>(p + i, load<T>(x + i, n - i, -INF<T>) == top ? share : V<T>{}, n - i);
    return true;
  }
  bool fine;
  const i64 few = gather_above<T>(c, x, n, sc);
  const T* some = sc.numbers<T>(2);
  const double Z = few < 0 ? cut_weights<T, false>(c, x, x, n, w, w, nullptr, &fine)
                           : cut_weights<T, false>(c, some, some, few, w, w, nullptr, &fine);
  if (!fine) return false;
  const V<T> scale = all<T>(1 / Z);
  for (i64 i = 0; i < (few < 0 ? n : few); i += W<T>)
    if (few < 0) store<S, T>(p + i, load<T>(w + i) * scale, n - i);
    else store<T, T>(w + i, load<T>(w + i) * scale);
  if (few >= 0) scatter(p, n, w, sc.index(), few);
  return true;
}
template <class S> inline void map_cut(const Cut& c, const S* x, S* p, i64 n, const Scratch& sc) {
  if (!in_double<S>(c.t) || c.t == 0)
    if (cut_row<Compute<S>>(c, x, p, n, sc)) return;
  cut_row<double>(c, x, p, n, sc);
}
// dx without what the cut itself moves, and dt; add() puts the rest where it belongs, before anything is rounded.
template <class T, class S> struct CutGrad {
  const S* g;
  S* dx;
  T *w, *e;
  double dt = 0, mean = 0, scale = 0;
  bool fine = true;
  i64 few = -1;
  const int32_t* index;
  CutGrad(const Cut& c, const S* x, const S* g, S* dx, i64 n, const Scratch& sc)
      : g(g),
        dx(dx),
        w(sc.numbers<T>(0)),
        e(sc.numbers<T>(1)),
        index(sc.index()) {
    if (c.status != FOUND) {
      dt = c.status == NOT_A_NUMBER ? __builtin_nan("") : 0;
      fill_row(dx, n, dt);
      return;
    }
    if (c.t == 0) {
      among_maxima(x, n, T(c.max));
      return;
    }
    few = gather_above<T>(c, x, n, sc);
    if (few < 0) {
      run(c, x, g, dx, n);
      return;
    }
    T *some = sc.numbers<T>(2), *own = some + n / 2;  // at most a quarter of the row
    for (i64 i = 0; i < few; i++) own[i] = T(scalar_float(g[index[i]]));
    run(c, (const T*)some, (const T*)own, own, few);
    if (fine) scatter(dx, n, own, index, few);
  }
  void among_maxima(const S* x, i64 n, T max) {
    const double share = 1 / count_of<T>(x, n, max);
    double sum = 0;
    for (i64 i = 0; i < n; i++)
      if (scalar_float(x[i]) == max) sum += double(scalar_float(g[i]));
    for (i64 i = 0; i < n; i++)
      dx[i] = from_float<S>(scalar_float(x[i]) == max ? (double(scalar_float(g[i])) - sum * share) * share : 0);
  }
  template <class X, class O> void run(const Cut& c, const X* x, const X* g, O* dx, i64 n) {
    double along;
    scale = 1 / cut_weights<T, true>(c, x, g, n, w, e, &along, &fine);
    if (!fine) return;
    mean = along * scale;
    Total<T> slope;
    for (i64 i = 0; i < n;) {
      V<T> some{};
      for (int u = 0; u < 4 && i < n; u++, i += W<T>) {
        const V<T> s = load<T>(e + i), both = load<T>(w + i) + s,
                   h = (load<T>(g + i, n - i, T(0)) - T(mean)) * T(scale);
        some += s != 0 ? h * s : V<T>{};
        store<O, T>(dx + i, both != 0 ? h * both : V<T>{}, n - i);
      }
      slope.add(some);
    }
    dt = slope.get();
  }
  void add(i64 column, double more) {
    i64 i = few < 0 ? column : 0;
    for (i64 end = few; few >= 0 && i < end;) {  // columns rise
      const i64 middle = (i + end) / 2;
      if (index[middle] < column) i = middle + 1;
      else end = middle;
    }
    const bool there = few < 0 || (i < few && index[i] == column);
    const double both = there ? double(w[i]) + double(e[i]) : 0;
    dx[column] = from_float<S>((both != 0 ? (double(scalar_float(g[column])) - mean) * scale * both : 0) + more);
  }
};
template <class S, class F>
inline void cut_grad_row(const Cut& c, const S* x, const S* g, S* dx, i64 n, const Scratch& sc, F rest) {
  if (!in_double<S>(c.t) || c.t == 0)
    if (CutGrad<Compute<S>, S> grad(c, x, g, dx, n, sc); grad.fine) return rest(grad);
  CutGrad<double, S> grad(c, x, g, dx, n, sc);
  rest(grad);
}

template <class S> void tsoftmax_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++) {
    const S* x = (const S*)args.x + r * n;
    const Cut c = fixed_cut<Compute<S>>(x, n, at(args.param, r));
    map_cut(c, x, (S*)args.out + r * n, n, Scratch{(char*)scratch, n});
  }
}
template <class S> void tsoftmax_grad_rows(const void* args_, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  for (i64 r = first; r < last; r++) {
    const S* x = (const S*)args.x + r * n;
    const Cut c = fixed_cut<T>(x, n, at(args.param, r));
    cut_grad_row(c, x, (const S*)args.g + r * n, (S*)args.out + r * n, n, Scratch{(char*)scratch, n}, [&](auto& grad) {
      if (args.dparam) args.dparam[r] = grad.dt;
      if (c.status != FOUND || grad.dt == 0) return;
      const double ties = count_of<T>(x, n, T(c.max));
      i64 i = first_of<T>(x, n, T(c.max));
      if (ties == 1) return grad.add(i, -grad.dt);
      for (; i < n; i++)
        if (scalar_float(x[i]) == T(c.max)) grad.add(i, -grad.dt / ties);
    });
  }
}
template <class S> void rsoftmax_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  const Scratch sc{(char*)scratch, n};
  for (i64 r = first; r < last; r++) {
    const S* x = (const S*)args.x + r * n;
    const Cut c = quantile_cut<Compute<S>>(x, n, at(args.param, r), sc);
    if (args.cuts) args.cuts[r] = c;
    map_cut(c, x, (S*)args.out + r * n, n, sc);
  }
}
template <class S> void rsoftmax_grad_rows(const void* args_, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  const Scratch sc{(char*)scratch, n};
  for (i64 r = first; r < last; r++) {
    const S* x = (const S*)args.x + r * n;
    const Cut c = args.cuts ? args.cuts[r] : quantile_cut<T>(x, n, at(args.param, r), sc);
    cut_grad_row(c, x, (const S*)args.g + r * n, (S*)args.out + r * n, n, sc, [&](auto& grad) {
      const bool moves = c.status == FOUND;
      if (args.dparam) args.dparam[r] = moves ? -grad.dt * (c.high - c.low) * double(c.allowed - 1) : grad.dt * 0;
      if (!moves || c.t == 0) return;
      const i64 low = first_of<T>(x, n, T(c.low)), high = first_of<T>(x, n, T(c.high));  // of equal scores, the first
      if (low == high) return grad.add(low, -grad.dt);
      grad.add(low, -grad.dt * (1 - c.part));
      grad.add(high, -grad.dt * c.part);
    });
  }
}

// sigsoftmax: weights e^x sigma(x), which rise with x. With M the largest score, B = e^(x - M) and e^x = B e^M they are
// B sigma, or, where M < 0 and sigma could underflow, B^2 / (1 + e^x). Above M = 80 e^M is held there: what is not yet
// saturated has B < e^-80. dx = p (g - <p, g>) (2 - sigma).
template <class T, bool GRAD, class S>
inline double sig_weights(const S* x, const S* g, i64 n, double top, T* w, double* along) {
  constexpr i64 L = W<T>;
  const V<T> m = all<T>(top), up = all<T>(LOG2_E), base = all<T>(exp(top < 80 ? top : 80)),
             rise = top < 0 ? all<T>(1) : base;
  Total<T> total, dot;
  const auto each = [&](i64 i, V<T> v, V<T> h, V<T>& some, V<T>& part) {
    const V<T> b = exp2<T>((v - m) * up), share = b / (1 + b * base), r = share * (b * rise);
    some += r;
    store<T, T>(w + i, GRAD ? r * (2 - share * base) : r);
    if constexpr (GRAD) part += r != 0 ? r * h : V<T>{};
  };
  i64 i = 0;
  for (; i + 4 * L <= n; i += 4 * L) {
    V<T> some{}, part{};
    fetch<4 * L>(x + n + i);  // the next row
    if constexpr (GRAD) fetch<4 * L>(g + n + i);
    for (i64 u = i; u < i + 4 * L; u += L) each(u, load<T>(x + u), GRAD ? load<T>(g + u) : V<T>{}, some, part);
    total.add(some);
    if constexpr (GRAD) dot.add(part);
  }
  for (; i < n; i += L) {
    V<T> some{}, part{};
    each(i, load<T>(x + i, n - i, -INF<T>), GRAD ? load<T>(g + i, n - i, T(0)) : V<T>{}, some, part);
    total.add(some);
    if constexpr (GRAD) dot.add(part);
  }
  if constexpr (GRAD) *along = dot.get();
  return total.get();
}
template <class S> void sigsoftmax_rows(const void* args_, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  T* w = Scratch{(char*)scratch, n}.numbers<T>(0);
  for (i64 r = first; r < last; r++) {
    const S* x = (const S*)args.x + r * n;
    S* p = (S*)args.out + r * n;
    const Peak<T> k = peak<T>(x, n);
    if (k.bad || k.max == -INF<T>) {
      fill_row(p, n, k.bad ? __builtin_nan("") : 0);
      continue;
    }
    const V<T> scale = all<T>(1 / sig_weights<T, false>(x, x, n, k.max, w, nullptr));
    for (i64 i = 0; i < n; i += W<T>) store<S, T>(p + i, load<T>(w + i) * scale, n - i);
  }
}
template <class S> void sigsoftmax_grad_rows(const void* args_, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  const auto& args = *(const parsimax::ThresholdArgs*)args_;
  const i64 n = args.n;
  T* w = Scratch{(char*)scratch, n}.numbers<T>(0);
  for (i64 r = first; r < last; r++) {
    const S *x = (const S*)args.x + r * n, *g = (const S*)args.g + r * n;
    S* dx = (S*)args.out + r * n;
    const Peak<T> k = peak<T>(x, n);
    if (k.bad || k.max == -INF<T>) {
      fill_row(dx, n, k.bad ? __builtin_nan("") : 0);
      continue;
    }
    double along;
    const double Z = sig_weights<T, true>(x, g, n, k.max, w, &along);
    const V<T> mean = all<T>(along / Z), scale = all<T>(1 / Z);
    for (i64 i = 0; i < n; i += W<T>) {
      const V<T> s = load<T>(w + i);
      store<S, T>(dx + i, s != 0 ? (load<T>(g + i, n - i, T(0)) - mean) * s * scale : V<T>{}, n - i);
    }
  }
}
}  // namespace

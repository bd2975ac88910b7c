// Fenchel-Young loss of a row against class c: (max - x_c) + (b p.z + theta) / alpha, which is 0 exactly when c leads
// by 1 / (alpha - 1). The forward keeps the support when it fits in `cap` numbers; the backward is then a fill of zeros
// and a scatter, and for wider rows one more read of x with the edge already known. With smoothing e and class weights
// w: (1 - e) w_c loss_c + e/n sum_k w_k loss_k = own Omega* - hit z_c - rest sum_k w_k z_k, and the gradient is own p -
// hit e_c - rest w: one more sum over the row, and a fill that is not of zeros. d loss / d alpha is that of the entropy
// at fixed p: H = -(1/alpha) sum p L psi(t), L = log p, t = b L, psi = (e^t - 1)/t.
#pragma once
#include "map.inl"
namespace {
enum { ROW_IGNORED = -1, ROW_NAN = -2, ROW_EMPTY = -3 };  // in LossRow::count

template <class T> inline V<T> psi_slope(V<T> t, V<T> grown) {  // psi'(t) = (e^t (t - 1) + 1) / t^2, grown = e^t
  const V<T> direct = (grown * (t - 1) + 1) / (t * t), size = t < 0 ? -t : t;
  V<T> series;  // k / (k + 1)!
  if constexpr (same<T, float>)
    series =
        horner<T>(t, all<T>(9 / 3628800.), 8 / 362880., 7 / 40320., 1 / 840., 1 / 144., 1 / 30., 1 / 8., 1 / 3., 0.5);
  else
    series = horner<T>(t, all<T>(17 / 6402373705728000.), 16 / 355687428096000., 15 / 20922789888000.,
                       14 / 1307674368000., 13 / 87178291200., 12 / 6227020800., 11 / 479001600., 10 / 39916800.,
                       9 / 3628800., 8 / 362880., 7 / 40320., 1 / 840., 1 / 144., 1 / 30., 1 / 8., 1 / 3., 0.5);
  return size < T(0.75) ? series : direct;
}
template <class T>
inline double entropy_slope(const Alpha& a, const T* p, i64 count) {  // dH/dalpha; p = 0 up to W beyond
  constexpr i64 L = W<T>;
  if (a.kind == ARGMAX) return 0;
  Total<T> first, second;
  for (i64 i = 0; i < count; i += L) {
    const V<T> v = load<T>(p + i), l2 = log2<T>(v), l = l2 * T(0.69314718055994530942), t = l * T(a.b);
    const V<T> grown = exp2<T>(l2 * T(a.b)), slope = psi_slope<T>(t, grown), pl = v * l;
    first.add(v != 0 ? pl * (grown - t * slope) : V<T>{});
    second.add(v != 0 ? pl * l * slope : V<T>{});
  }
  return first.get() / (a.alpha * a.alpha) - second.get() / a.alpha;
}

struct Mix {  // see above; own = hit + rest sum w
  const double* weight;
  double own = 1, hit = 1, rest = 0;
  Mix(const parsimax::LossArgs& args, i64 c) : weight(args.weight) {
    if (args.smoothing == 0) return;
    hit = (1 - args.smoothing) * (weight ? weight[c] : 1);
    rest = args.smoothing / double(args.n);
    own = hit + rest * args.weight_sum;
  }
  double at(i64 k) const { return weight ? rest * weight[k] : rest; }
};
// sum_k w_k (x_k - max); what has no weight does not count, be it infinite.
template <class T, class S> inline double weighted_sum(const S* x, i64 n, T max, const double* weight) {
  if (weight) {
    double sum = 0;
    for (i64 k = 0; k < n; k++)
      if (weight[k] != 0) sum += weight[k] * (double(scalar_float(x[k])) - double(max));
    return sum;
  }
  Total<T> sum;
  for (i64 k = 0; k < n; k += W<T>) sum.add(load<T>(x + k, n - k, max) - max);
  return sum.get();
}

template <class O, class T>
inline void keep_support(const parsimax::LossArgs& args, i64 r, const Support<T>& s, const T* value) {
  if (s.count > args.cap) return;
  auto index = args.index + r * args.cap;
  auto kept = (O*)args.value + r * args.cap;
  for (i64 i = 0; i < s.count; i++) index[i] = s.index ? s.index[i] : int32_t(i), kept[i] = O(value[i]);
}

template <class T, class S>
inline void loss_row(const parsimax::LossArgs& args, i64 r, const Alpha& a, const Scratch& sc) {
  const i64 n = args.n, c = args.target[r];
  auto x = (const S*)args.x + r * n;
  auto loss = (Compute<S>*)args.loss + r;
  parsimax::LossRow& row = args.rows[r];
  row = {};
  auto end = [&](i64 mark, double value, double slope) {
    row.count = mark, row.dalpha = slope, *loss = Compute<S>(value);
  };
  if (c < 0) return end(ROW_IGNORED, 0, 0);
  T* value = sc.numbers<T>(0);
  const Support<T> s = find_support<T>(x, n, a, value, sc.index());
  if (s.status == NOT_A_NUMBER || a.alpha == 0) return end(ROW_NAN, __builtin_nan(""), __builtin_nan(""));
  const Mix mix(args, c);
  if (s.status == EMPTY) return end(ROW_EMPTY, mix.own != 0 ? INF<double> : 0, 0);
  const double gap = s.max - double(scalar_float(x[c]));
  const double rest = a.kind == ARGMAX ? 0 : (a.b * s.pz + s.theta) / a.alpha, hard = gap + rest > 0 ? gap + rest : 0;
  double total = mix.hit == 1 ? hard : mix.hit != 0 ? mix.hit * hard : 0;
  if (mix.rest != 0) total += mix.rest * (args.weight_sum * rest - weighted_sum<T>(x, n, T(s.max), mix.weight));
  end(s.count, total, args.alpha.data ? mix.own * entropy_slope<T>(a, value, s.count) : 0);
  row.max = s.max, row.w = s.edge.w, row.E = s.edge.E;
  keep_support<Compute<S>>(args, r, s, value);
}
template <class T, class S>
inline void loss_grad_row(const parsimax::LossArgs& args, i64 r, const Alpha& a, const Scratch& sc) {
  const i64 n = args.n, c = args.target[r];
  auto dx = (S*)args.dx + r * n;
  const parsimax::LossRow& row = args.rows[r];
  const double g = at(args.g, r);
  if (row.count == ROW_NAN) return fill_row(dx, n, __builtin_nan(""));
  if (row.count == ROW_IGNORED) return fill_row(dx, n, 0);
  const Mix mix(args, c);
  double at_target = 0;
  auto spread = [&](auto* value, const int32_t* index, i64 count) {
    if (mix.rest == 0) __builtin_memset((void*)dx, 0, n * sizeof(S));
    else if (!mix.weight) fill_row(dx, n, -g * mix.rest);
    else
      for (i64 k = 0; k < n; k++) dx[k] = from_float<S>(-g * mix.at(k));
    for (i64 i = 0; i < count; i++) {
      dx[index[i]] = from_float<S>(g * (mix.own * value[i] - mix.at(index[i])));
      if (index[i] == c) at_target = value[i];
    }
  };
  if (row.count == ROW_EMPTY) spread((const Compute<S>*)nullptr, nullptr, 0);
  else if (row.count <= args.cap)
    spread((const Compute<S>*)args.value + r * args.cap, args.index + r * args.cap, row.count);
  else {
    T* value = sc.numbers<T>(0);
    const Edge e{row.w, row.E};
    const Gathered found = gather<T>((const S*)args.x + r * n, n, T(row.max), cut(a, e), value, sc.index());
    const bool proved = evaluate<T, false>(a, e, value, found.count, value, (double*)nullptr);
    if constexpr (same<T, float>)
      if (!proved) return loss_grad_row<double, S>(args, r, a, sc);
    if (found.dense) {
      const T scale = T(g * mix.own), less = T(g * mix.rest);
      for (i64 i = 0; i < n; i += W<T>) {
        V<T> d = load<T>(value + i) * scale;
        if (mix.rest != 0) d -= mix.weight ? load<T>(mix.weight + i, n - i, T(0)) * less : all<T>(less);
        store<S, T>(dx + i, d, n - i);
      }
      at_target = value[c];
    } else spread(value, sc.index(), found.count);
  }
  dx[c] = from_float<S>(g * (mix.own * at_target - mix.hit - mix.at(c)));
}
// Against coefficients y of all classes: sum y Omega* - <y, z>, where a forbidden class counts only if its coefficient
// is not 0. The gradient is sum y p - y: one pass over y, and the support on top.
template <class T, class S>
inline void soft_loss_row(const parsimax::LossArgs& args, i64 r, const Alpha& a, const Scratch& sc) {
  const i64 n = args.n;
  auto x = (const S*)args.x + r * n, y = (const S*)args.soft + r * n;
  auto loss = (Compute<S>*)args.loss + r;
  parsimax::LossRow& row = args.rows[r];
  row = {};
  T* value = sc.numbers<T>(0);
  const Support<T> s = find_support<T>(x, n, a, value, sc.index());
  if (s.status == NOT_A_NUMBER || a.alpha == 0) {
    row.count = ROW_NAN, row.dalpha = __builtin_nan(""), *loss = Compute<S>(row.dalpha);
    return;
  }
  const V<T> max = all<T>(s.status == EMPTY ? 0 : s.max);
  Total<T> mass, along;
  for (i64 i = 0; i < n;) {
    V<T> some{}, dot{};
    for (int u = 0; u < 8 && i < n; u++, i += W<T>) {
      const V<T> c = load<T>(y + i, n - i, T(0));
      some += c;
      dot += c != 0 ? c * (load<T>(x + i, n - i, T(0)) - max) : V<T>{};
    }
    mass.add(some);
    along.add(dot);
  }
  const double total = mass.get(), omega = s.status == EMPTY || a.kind == ARGMAX ? 0 : (a.b * s.pz + s.theta) / a.alpha;
  *loss = Compute<S>((total != 0 ? total * omega : 0) - along.get());
  row.count = s.status == EMPTY ? i64(ROW_EMPTY) : s.count;
  if (s.status == EMPTY) return;
  row.dalpha = args.alpha.data ? total * entropy_slope<T>(a, value, s.count) : 0;
  row.max = s.max, row.w = s.edge.w, row.E = s.edge.E;
  keep_support<Compute<S>>(args, r, s, value);
}
template <class T, class S>
inline void soft_loss_grad_row(const parsimax::LossArgs& args, i64 r, const Alpha& a, const Scratch& sc) {
  const i64 n = args.n;
  auto y = (const S*)args.soft + r * n;
  auto dx = (S*)args.dx + r * n;
  const parsimax::LossRow& row = args.rows[r];
  const double g = at(args.g, r);
  if (row.count == ROW_NAN) return fill_row(dx, n, __builtin_nan(""));
  Total<T> mass;
  const V<T> down = all<T>(-g);
  for (i64 i = 0; i < n;) {
    V<T> some{};
    for (int u = 0; u < 8 && i < n; u++, i += W<T>) {
      const V<T> c = load<T>(y + i, n - i, T(0));
      some += c;
      store<S, T>(dx + i, c * down, n - i);
    }
    mass.add(some);
  }
  if (row.count == ROW_EMPTY) return;
  const double total = mass.get();
  auto add = [&](auto* value, const int32_t* index, i64 count) {
    for (i64 i = 0; i < count; i++) {
      const i64 k = index ? index[i] : i;
      dx[k] = from_float<S>(g * (total * value[i] - scalar_float(y[k])));
    }
  };
  if (row.count <= args.cap)
    return add((const Compute<S>*)args.value + r * args.cap, args.index + r * args.cap, row.count);
  T* value = sc.numbers<T>(0);
  const Edge e{row.w, row.E};
  const Gathered found = gather<T>((const S*)args.x + r * n, n, T(row.max), cut(a, e), value, sc.index());
  const bool proved = evaluate<T, false>(a, e, value, found.count, value, (double*)nullptr);
  if constexpr (same<T, float>)
    if (!proved) return soft_loss_grad_row<double, S>(args, r, a, sc);
  add(value, found.dense ? nullptr : sc.index(), found.count);
}
enum LossPass { LOSS, LOSS_GRAD, SOFT_LOSS, SOFT_LOSS_GRAD };
template <class S, LossPass PASS> void loss_rows_of(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::LossArgs*)args_;
  const Scratch sc{(char*)scratch, args.n};
  for (i64 r = first; r < last; r++) {
    const Alpha a(at(args.alpha, r));
    auto run = [&](auto t) {
      if constexpr (PASS == LOSS) loss_row<decltype(t), S>(args, r, a, sc);
      if constexpr (PASS == LOSS_GRAD) loss_grad_row<decltype(t), S>(args, r, a, sc);
      if constexpr (PASS == SOFT_LOSS) soft_loss_row<decltype(t), S>(args, r, a, sc);
      if constexpr (PASS == SOFT_LOSS_GRAD) soft_loss_grad_row<decltype(t), S>(args, r, a, sc);
    };
    if (a.alpha > 2) run(double());
    else run(Compute<S>());
  }
}
template <class S> void loss_rows(const void* a, i64 first, i64 last, void* s) {
  loss_rows_of<S, LOSS>(a, first, last, s);
}
template <class S> void loss_grad_rows(const void* a, i64 first, i64 last, void* s) {
  loss_rows_of<S, LOSS_GRAD>(a, first, last, s);
}
template <class S> void soft_loss_rows(const void* a, i64 first, i64 last, void* s) {
  loss_rows_of<S, SOFT_LOSS>(a, first, last, s);
}
template <class S> void soft_loss_grad_rows(const void* a, i64 first, i64 last, void* s) {
  loss_rows_of<S, SOFT_LOSS_GRAD>(a, first, last, s);
}
}  // namespace

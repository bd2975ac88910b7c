// Short rows, W of them at once, one to a lane: sums need no reduction across lanes and short Newton chains overlap.
// Every lane holds one row whatever its neighbours are, so a row's bits do not depend on them.
#pragma once
#include "grad.inl"
namespace {
template <class T, int STEP, int... J> inline void butterfly(V<T>& a, V<T>& b, std::integer_sequence<int, J...>) {
  constexpr int L = W<T>;
  const V<T> first = __builtin_shufflevector(a, b, (J & STEP ? L + J - STEP : J)...);
  b = __builtin_shufflevector(a, b, (J & STEP ? L + J : J + STEP)...);
  a = first;
}
template <class T, int STEP = 1> inline void transpose(V<T>* v) {  // W x W numbers
  if constexpr (STEP < W<T>) {
    for (int i = 0; i < W<T>; i++)
      if (!(i & STEP)) butterfly<T, STEP>(v[i], v[i + STEP], std::make_integer_sequence<int, W<T>>{});
    transpose<T, 2 * STEP>(v);
  }
}

// The numbers of W rows that take part, moved to the front of each row and transposed.
template <class T> struct Packed {
  static constexpr int L = W<T>;
  T* rows;         // L rows of `stride` numbers
  V<T>* columns;   // transposed
  i64 stride, most = 0;
  void columns_from_rows() {
    for (i64 i = 0; i < most; i += L) {
      V<T> t[L];
      for (int r = 0; r < L; r++) t[r] = load<T>(rows + r * stride + i);
      transpose<T>(t);
      for (int j = 0; j < L; j++) columns[i + j] = t[j];
    }
  }
  void rows_from_columns() {
    for (i64 i = 0; i < most; i += L) {
      V<T> t[L];
      for (int j = 0; j < L; j++) t[j] = columns[i + j];
      transpose<T>(t);
      for (int r = 0; r < L; r++) store<T, T>(rows + r * stride + i, t[r]);
    }
  }
};
template <class T> inline void pad_row(T* row, i64 count, i64 most, T fill) {
  for (i64 i = count; i < most; i += W<T>) store<T, T>(row + i, all<T>(fill));
}
// One row: v spread to the lanes of each mask, zeros elsewhere.
template <class T, class S> inline void unpack_row(S* out, i64 n, const T* v, const uint16_t* mask) {
  constexpr int L = W<T>;
  for (i64 i = 0, k = 0; i < n; i += L, k++) {
    V<T> o{};
#if defined(__AVX512F__)
    if constexpr (same<T, float>) o = _mm512_maskz_expand_ps(mask[k], load<T>(v));
    else o = _mm512_maskz_expand_pd(mask[k], load<T>(v));
    v += __builtin_popcount(mask[k]);
#else
    for (unsigned b = mask[k]; b; b &= b - 1) o[__builtin_ctz(b)] = *v++;
#endif
    store<S, T>(out + i, o, n - i);
  }
}

// log1p(f) / f / log(2) for f in [-1/4, 1/2], in float
inline V<float> log2_ratio(V<float> f) {
  return horner<float>(f, all<float>(7.806572213e-02), -1.742292175e-01, 2.163247097e-01, -2.427236216e-01, 2.881915286e-01,
                       -3.605759187e-01, 4.809020798e-01, -7.213484784e-01, 1.442695032);
}
// alpha in [0, 2], one per lane, in float: smooth through alpha = 1 (b = 0), as curve.inl and solve_general are.
struct LaneCurve {
  using T = float;
  V<T> b, inv_b, kappa, K;  // kappa = 1 / E, K = b kappa
  V<T> at(V<T> z, V<T>& y) const {
    y = fma<T>(z, K, all<T>(1));
    V<T> f;
    const V<T> e = split<T>(y, f), u = z * kappa, x = u * b;
    f = e == 0 ? x : f;
    const V<T> ratio = log2_ratio(f);
    const V<T> t = e == 0 ? u * ratio : (e + f * ratio) * inv_b;
    const V<T> live = y > 0 ? exp2<T>(t) : V<T>{}, out = z > -INF<T> ? live : V<T>{};
    y = out > 0 ? y : all<T>(1);
    return out;
  }
};
inline V<float> lane_step(const LaneCurve& c, V<float> R, V<float> slope, V<float> excess) {  // dw
  using T = float;
  const V<T> ln2 = all<T>(0.6931471805599453), x = -c.b * excess, q = R / slope;
  const V<T> h = horner<T>(x, all<T>(1 / 5040.), 1 / 720., 1 / 120., 1 / 24., 1 / 6., 0.5, 1.0);  // expm1(x) / x
  const V<T> g = -q * excess * h, f = c.b * g, near = g * log2_ratio(f) * ln2;
  const V<T> far = log2<T>(1 + q * (exp2<T>(x * T(1.4426950408889634)) - 1)) * ln2 * c.inv_b;
  const V<T> ax = x < 0 ? -x : x;
  return ax < T(0.4) ? (f > T(-0.25) ? (f < T(0.5) ? near : far) : far) : far;
}

// The columns of a pack hold z, -inf beyond each row's count; they become p. One alpha in [0, 2] per lane.
inline void solve_lanes(Packed<float>& pack, LaneCurve& c) {
  using T = float;
  V<T> w{}, R, y, live = all<T>(1);  // a solved lane stays as it is while others go on
  c.kappa = all<T>(1);
  for (int it = 0; it < 40; it++) {
    V<T> slope{};
    R = V<T>{};
    c.K = c.b * c.kappa;
    for (i64 j = 0; j < pack.most; j++) {
      const V<T> r = c.at(pack.columns[j], y);
      R += r;
      slope += r * recip<T, 0>(y);
    }
    const V<T> excess = R > 0 ? log2<T>(R) * T(0.6931471805599453) + w : V<T>{}, size = excess < 0 ? -excess : excess;
    const V<T> dw = R > 0 ? lane_step(c, R, slope, excess) : V<T>{};
    w += live > 0 ? dw : V<T>{};
    c.kappa = exp2<T>(-c.b * w * T(1.4426950408889634));
    live = size > T(1e-4) ? live : V<T>{};
    if (!gt_bits<T>(live, V<T>{})) break;
  }
  c.K = c.b * c.kappa;
  R = V<T>{};
  for (i64 j = 0; j < pack.most; j++) R += pack.columns[j] = c.at(pack.columns[j], y);
  const V<T> scale = 1 / R;
  for (i64 j = 0; j < pack.most; j++) pack.columns[j] *= scale;
}
// alpha = 2 or 1.5 in every lane. E in T; its last step is kept apart as the low part.
template <class T, Kind A> inline void solve_lanes_fixed(V<T>* z, i64 columns, V<T> count, V<T>& E, V<T>& step) {
  constexpr T B = A == SPARSEMAX ? T(1) : T(0.5), TOL = same<T, float> ? T(2e-7) : T(1e-15);
  V<T> live = all<T>(1);  // a solved lane stays as it is while others go on
  E = all<T>(1), step = V<T>{};
  if (columns & 1) z[columns++] = all<T>(-INF<T>);
  for (int it = 0; it < 100; it++) {
    V<T> s{}, k{}, s1{}, k1{};
    auto add = [&](V<T> v, V<T>& sum, V<T>& slope) {
      const V<T> d = positive<T>(v * B + E);
      if constexpr (A == SPARSEMAX) sum += d, slope += d > 0 ? all<T>(1) : V<T>{};
      else sum += d * d, slope += d;
    };
    E -= live > 0 ? step : V<T>{};
    for (i64 j = 0; j < columns; j += 2) add(z[j], s, k), add(z[j + 1], s1, k1);
    s += s1, k += k1;
    V<T> left, next;
    if constexpr (A == SPARSEMAX) next = (s - 1) / k, left = s - 1;
    else next = (s - vroot<T>(s)) / k, left = s < T(1.2) ? count * next * next - 2 * k * next + s - 1 : s;
    next = k > 0 ? next : V<T>{};
    step = live > 0 ? next : step;
    live = left > TOL ? live : V<T>{};
    if (!gt_bits<T>(live, V<T>{})) break;
  }
}
template <class T, Kind A> inline void finish_lanes_fixed(Packed<T>& pack, V<T> count) {
  V<T> E, step;
  solve_lanes_fixed<T, A>(pack.columns, pack.most, count, E, step);
  for (i64 j = 0; j < pack.most; j++) {
    const V<T> d = positive<T>(pack.columns[j] * (A == SPARSEMAX ? T(1) : T(0.5)) + E - step);
    pack.columns[j] = A == SPARSEMAX ? d : d * d;
  }
}

// alpha = 2 and 1.5: all columns stay.
template <class T, class S, Kind A> inline void map_lanes(const S* x, S* p, i64 n, char* room) {
  constexpr int L = W<T>;
  constexpr T B = A == SPARSEMAX ? T(1) : T(0.5);
  auto z = (V<T>*)room;
  V<T> m = all<T>(-INF<T>), worst{}, E = all<T>(1), step{};
  for (i64 i = 0; i < n; i += L) {
    V<T> t[L];
    for (int r = 0; r < L; r++) t[r] = load<T>(x + r * n + i, n - i, -INF<T>);
    transpose<T>(t);
    for (int j = 0; j < L; j++) {
      z[i + j] = t[j];
      m = vmax<T>(t[j], m);
      worst = t[j] == t[j] ? worst : t[j];
    }
  }
  const unsigned bad = ne_bits<T>(worst, worst) | gt_bits<T>(m, all<T>(same<T, float> ? 3.4028234663852886e38 : 1.7976931348623157e308));
  const unsigned empty = gt_bits<T>(all<T>(same<T, float> ? -3.4028234663852886e38 : -1.7976931348623157e308), m);
  m = m > -INF<T> ? m : V<T>{};
  for (i64 j = 0; j < n; j++) z[j] -= m;
  solve_lanes_fixed<T, A>(z, n, all<T>(double(n)), E, step);
  for (int r = 0; r < L; r++) {
    S* out = p + r * n;
    if (bad >> r & 1) fill_row(out, n, __builtin_nan(""));
    else if (empty >> r & 1) fill_row(out, n, 0);
    else
      for (i64 i = 0; i < n; i += L) {
        const V<T> d = positive<T>((load<T>(x + r * n + i, n - i, -INF<T>) - m[r]) * B + E[r] - step[r]);
        store<S, T>(out + i, A == SPARSEMAX ? d : d * d, n - i);
      }
  }
}

// Rows whose candidates are few: gathered one by one, solved together. A row with too many is left (false in `done`).
template <class S> inline void map_lanes_gathered(const S* x, S* p, i64 n, const double* alpha, Kind kind, char* room, bool* done, DenseRow* keep) {
  using T = float;
  constexpr int L = W<T>;
  constexpr i64 LIMIT = 160, STRIDE = LIMIT + PAD;
  Packed<T> pack{(T*)room, (V<T>*)(room + sizeof(T) * L * STRIDE), STRIDE};
  auto index = (int32_t*)(room + 2 * sizeof(T) * L * STRIDE);
  i64 count[L];
  unsigned narrow = 0;
  V<T> held{};
  LaneCurve c;
  for (int r = 0; r < L; r++) {
    const Alpha a(alpha[r]);
    const Peak<T> k = peak<T>(x + r * n, n);
    done[r] = false;
    count[r] = 0;
    c.b[r] = T(a.b);
    c.inv_b[r] = a.b == 0 ? 0 : T(1 / a.b);
    if (k.bad || k.max == -INF<T> || a.b <= 0) continue;
    if (kind == GENERAL && maybe_narrow(x + r * n, n, a) && map_narrow(x + r * n, p + r * n, n, a, keep ? keep + r : nullptr)) {
      narrow |= 1u << r;
      done[r] = true;
      continue;
    }
    const i64 found = gather_some<T>(x + r * n, n, k.max, cut(a, Edge()), LIMIT, pack.rows + r * STRIDE, index + r * STRIDE);
    if (found < 0) continue;
    done[r] = true;
    count[r] = found;
    held[r] = T(found);
    pack.most = found > pack.most ? found : pack.most;
  }
  if (narrow == (1u << L) - 1) return;
  for (int r = 0; r < L; r++) pad_row<T>(pack.rows + r * STRIDE, count[r], pack.most, -INF<T>);
  pack.columns_from_rows();
  if (kind == SPARSEMAX) finish_lanes_fixed<T, SPARSEMAX>(pack, held);
  else if (kind == ENTMAX15) finish_lanes_fixed<T, ENTMAX15>(pack, held);
  else solve_lanes(pack, c);
  pack.rows_from_columns();
  for (int r = 0; r < L; r++)
    if (done[r] && !(narrow >> r & 1)) scatter(p + r * n, n, pack.rows + r * STRIDE, index + r * STRIDE, count[r]);
}

template <class S> inline void map_lanes_general(const S* x, S* p, i64 n, const double* alpha, char* room, DenseRow* keep) {
  using T = float;
  constexpr int L = W<T>;
  const i64 stride = n + 2 * L, vectors = (n + L - 1) / L;
  Packed<T> pack{(T*)room, (V<T>*)(room + sizeof(T) * L * (parsimax::SHORT + 2 * L)), stride};
  uint16_t mask[L][parsimax::SHORT / 4 + 1];
  i64 count[L];
  unsigned bad = 0, empty = 0, narrow = 0;
  LaneCurve c;
  for (int r = 0; r < L; r++) {
    const S* row = x + r * n;
    T* to = pack.rows + r * stride;
    V<T> top = all<T>(-INF<T>), worst{}, v[4];
    for (i64 i = 0; i < n; i += L) {
      v[0] = load<T>(row + i, n - i, -INF<T>);
      top = vmax<T>(v[0], top);
      worst = v[0] == v[0] ? worst : v[0];
    }
    T m = max<T>(top);
    if (ne_bits<T>(worst, worst) || m == INF<T>) bad |= 1u << r, m = 0;
    if (m == -INF<T>) empty |= 1u << r, m = 0;
    c.b[r] = T(alpha[r] - 1);
    c.inv_b[r] = c.b[r] == 0 ? 0 : 1 / c.b[r];
    count[r] = 0;
    const Alpha a(alpha[r]);
    if (maybe_narrow(row, n, a) && map_narrow(row, p + r * n, n, a, keep ? keep + r : nullptr)) {
      narrow |= 1u << r;
      continue;
    }
    const V<T> least = all<T>(c.b[r] > 0 ? -c.inv_b[r] * (1 + 1e-6) : -INF<double>);
    i64 k = 0;
    for (i64 i = 0, j = 0; j < vectors; i += L, j++) {
      const V<T> z = load<T>(row + i, n - i, -INF<T>) - m;
      mask[r][j] = uint16_t(gt_bits<T>(z, least));
      push<T>(to + k, z, mask[r][j]);
      k += __builtin_popcount(mask[r][j]);
    }
    count[r] = k;
    pack.most = k > pack.most ? k : pack.most;
  }
  if (narrow == (1u << L) - 1) return;
  for (int r = 0; r < L; r++) pad_row<T>(pack.rows + r * stride, count[r], pack.most, -INF<T>);
  pack.columns_from_rows();
  solve_lanes(pack, c);
  pack.rows_from_columns();
  for (int r = 0; r < L; r++) {
    if (bad >> r & 1) fill_row(p + r * n, n, __builtin_nan(""));
    else if (empty >> r & 1) fill_row(p + r * n, n, 0);
    else if (!(narrow >> r & 1)) unpack_row<T, S>(p + r * n, n, pack.rows + r * stride, mask[r]);
  }
}

// Backward of W rows with alpha in [0, 2.5] each, and d alpha.
template <class S, bool BY_ALPHA>
inline void grad_lanes(const S* p, const S* g, S* dx, double* dalpha, i64 n, const double* alpha, char* room) {
  using T = float;
  constexpr int L = W<T>;
  const i64 stride = n + 2 * L, vectors = (n + L - 1) / L;
  const i64 rows_bytes = sizeof(T) * L * (parsimax::SHORT + 2 * L);
  Packed<T> a{(T*)room, (V<T>*)(room + 2 * rows_bytes), stride}, h{(T*)(room + rows_bytes), (V<T>*)(room + 3 * rows_bytes), stride};
  uint16_t mask[L][parsimax::SHORT / 4 + 1];
  i64 count[L], most = 0;
  V<T> b;
  for (int r = 0; r < L; r++) {
    i64 k = 0;
    for (i64 i = 0, j = 0; j < vectors; i += L, j++) {
      const V<T> v = load<T>(p + r * n + i, n - i, T(0));
      const unsigned on = ne_bits<T>(v, V<T>{});
      mask[r][j] = uint16_t(on);
      push<T>(a.rows + r * stride + k, v, on);
      push<T>(h.rows + r * stride + k, load<T>(g + r * n + i, n - i, T(0)), on);
      k += __builtin_popcount(on);
    }
    count[r] = k;
    most = k > most ? k : most;
    b[r] = T(alpha[r] - 1);
  }
  for (int r = 0; r < L; r++) {
    pad_row<T>(a.rows + r * stride, count[r], most, T(0));
    pad_row<T>(h.rows + r * stride, count[r], most, T(0));
  }
  a.most = h.most = most;
  a.columns_from_rows();
  h.columns_from_rows();
  auto rho = (V<T>*)(room + 4 * rows_bytes);
  V<T> total{}, sg{}, sr{};
  for (i64 j = 0; j < most; j++) {
    const V<T> v = a.columns[j], l2 = log2<T>(v), decay = exp2<T>(-b * l2);
    V<T> s = v * decay;
    s = v == v ? (v != 0 ? s : V<T>{}) : v;
    if constexpr (BY_ALPHA) {
      const V<T> l = l2 * T(0.6931471805599453), q = l * l * phi<T>(l * b, decay) * recip<T, 1>(decay);
      rho[j] = v != 0 ? q : V<T>{};
      sr += v != 0 ? s * q : V<T>{};
    }
    a.columns[j] = s;
    total += s;
    sg += s != 0 ? s * h.columns[j] : V<T>{};
  }
  const V<T> one = all<T>(1), safe = total == 0 ? one : total, shift = sg / safe, mean = sr / safe;
  V<T> slope{};
  for (i64 j = 0; j < most; j++) {
    const V<T> s = a.columns[j], d = s != 0 ? s * (h.columns[j] - shift) : V<T>{};
    if constexpr (BY_ALPHA) slope += s != 0 ? d * (rho[j] - mean) : V<T>{};
    a.columns[j] = d;
  }
  a.rows_from_columns();
  for (int r = 0; r < L; r++) {
    unpack_row<T, S>(dx + r * n, n, a.rows + r * stride, mask[r]);
    if (BY_ALPHA) dalpha[r] = slope[r];
  }
}

// Takes as many rows from `first` as it can, and says how many are done.
template <class S> inline i64 map_short(const parsimax::MapArgs& args, i64 first, i64 last, const Scratch& sc) {
  char* room = sc.rest();
  using T = Compute<S>;
  constexpr int L = W<T>;
  const i64 n = args.n;
  i64 r = first;
  for (; r + L <= last; r += L) {
    double alpha[L];
    bool fixed2 = true, fixed15 = true, smooth = same<T, float>;
    for (int j = 0; j < L; j++) {
      alpha[j] = at(args.alpha, r + j);
      fixed2 &= alpha[j] == 2;
      fixed15 &= alpha[j] == 1.5;
      smooth &= alpha[j] >= 0 && alpha[j] <= 2;
    }
    const S* x = (const S*)args.x + r * n;
    S* p = (S*)args.p + r * n;
    DenseRow* keep = args.dense ? args.dense + r : nullptr;
    if (n > parsimax::SHORT) {
      if constexpr (same<T, float>) {
        if (n > 8192 || !smooth) break;
        bool done[L];
        map_lanes_gathered<S>(x, p, n, alpha, fixed2 ? SPARSEMAX : fixed15 ? ENTMAX15 : GENERAL, room, done, keep);
        for (int j = 0; j < L; j++)
          if (!done[j]) map_row<T>(x + j * n, p + j * n, n, Alpha(alpha[j]), sc, keep ? keep + j : nullptr);
      } else break;
    } else if (fixed2) map_lanes<T, S, SPARSEMAX>(x, p, n, room);
    else if (fixed15) map_lanes<T, S, ENTMAX15>(x, p, n, room);
    else if constexpr (same<T, float>) {
      if (!smooth) break;
      map_lanes_general<S>(x, p, n, alpha, room, keep);
    } else break;
  }
  return r;
}
template <class S> inline i64 grad_short(const parsimax::GradArgs& args, i64 first, i64 last, char* room) {
  using T = Compute<S>;
  constexpr int L = W<T>;
  const i64 n = args.n;
  if (n > parsimax::SHORT || !same<T, float>) return first;
  i64 r = first;
  if constexpr (same<T, float>)
    for (; r + L <= last; r += L) {
      double alpha[L];
      bool smooth = true, fixed = !args.dalpha;
      for (int j = 0; j < L; j++) {
        alpha[j] = at(args.alpha, r + j);
        smooth &= alpha[j] >= 0 && alpha[j] <= 2.5;
        fixed &= alpha[j] == 2 || alpha[j] == 1.5 || alpha[j] == 1;
      }
      if (!smooth || fixed) break;
      const S *p = (const S*)args.p + r * n, *g = (const S*)args.g + r * n;
      S* dx = (S*)args.dx + r * n;
      int dense = 0;
      for (int j = 0; j < L && args.dense; j++) dense += args.dense[r + j].kind != DenseRow::NOT;
      if (dense == L) continue;  // grad_block comes back to them
      if (args.dalpha) grad_lanes<S, true>(p, g, dx, args.dalpha + r, n, alpha, room);
      else grad_lanes<S, false>(p, g, dx, nullptr, n, alpha, room);
    }
  return r;
}
template <class S> void map_block(const parsimax::MapArgs& args, i64 first, i64 last, void* scratch) {
  const i64 n = args.n;
  auto x = (const S*)args.x;
  auto p = (S*)args.p;
  const Scratch sc{(char*)scratch, n};
  for (i64 r = first; r < last && args.dense; r++) args.dense[r].kind = DenseRow::NOT;
  for (i64 r = map_short<S>(args, first, last, sc); r < last; r++) {
    const Alpha a(at(args.alpha, r));
    if (a.alpha > 2) map_row<double>(x + r * n, p + r * n, n, a, sc);  // the curve is steep at its edge
    else map_row<Compute<S>>(x + r * n, p + r * n, n, a, sc, args.dense ? args.dense + r : nullptr);
  }
  for (i64 r = first; r < last && args.dense; r++)
    if (args.dense[r].kind != DenseRow::NOT) return __atomic_store_n(args.any_dense, true, __ATOMIC_RELAXED);
}
template <class S> void grad_block(const parsimax::GradArgs& args, i64 first, i64 last, void* scratch) {
  const i64 n = args.n;
  auto p = (const S*)args.p, g = (const S*)args.g;
  auto dx = (S*)args.dx;
  const Scratch sc{(char*)scratch, n};
  const i64 done = grad_short<S>(args, first, last, sc.rest());
  for (i64 r = args.dense ? first : done; r < last; r++) {
    const Alpha a(at(args.alpha, r));
    const i64 o = r * n;
    if constexpr (!same<S, double>)
      if (args.dense && args.dense[r].kind != DenseRow::NOT) {
        const S* x = (const S*)args.x + o;
        float *s = sc.numbers<float>(0), *rho = sc.numbers<float>(1);
        if (args.dalpha) grad_dense<S, true>(x, g + o, dx + o, args.dalpha + r, n, a, args.dense[r], s, rho);
        else grad_dense<S, false>(x, g + o, dx + o, nullptr, n, a, args.dense[r], s, rho);
        continue;
      }
    if (r < done) continue;
    auto run = [&](auto t) {
      using T = decltype(t);
      if (args.dalpha) grad_row<T, S, true>(p + o, g + o, dx + o, args.dalpha + r, n, a, sc);
      else grad_row<T, S, false>(p + o, g + o, dx + o, nullptr, n, a, sc);
    };
    if (a.alpha > 2.5) run(double());  // p^(2 - alpha) leaves the range of float
    else run(Compute<S>());
  }
}
// A block at a time, so that where lanes end and single rows begin does not depend on how threads share the work.
template <class S> void map_rows(const void* args, i64 first, i64 last, void* scratch) {
  for (i64 r = first; r < last; r += parsimax::BLOCK)
    map_block<S>(*(const parsimax::MapArgs*)args, r, r + parsimax::BLOCK < last ? r + parsimax::BLOCK : last, scratch);
}
template <class S> void grad_rows(const void* args, i64 first, i64 last, void* scratch) {
  for (i64 r = first; r < last; r += parsimax::BLOCK)
    grad_block<S>(*(const parsimax::GradArgs*)args, r, r + parsimax::BLOCK < last ? r + parsimax::BLOCK : last, scratch);
}
}  // namespace

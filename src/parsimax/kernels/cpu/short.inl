// Rows of ordinary length, W of them at once: forward and backward through lanes.inl.
#pragma once
#include "lanes.inl"
namespace {
template <class T> constexpr unsigned ALL = (1u << W<T>)-1;
// The maxima of the lanes of up to W rows, transposed, NaN apart: the largest number of each row, and a part of the row
// to start from.
template <class T, class S> inline V<T> tops(const S* x, i64 n, int rows, V<T>* columns) {
  constexpr int L = W<T>;
  V<T> t[L];
  for (int r = rows; r < L; r++) t[r] = all<T>(-INF<T>);
  for (int r = 0; r < rows; r++) {
    const S* row = x + r * n;
    V<T> top = all<T>(-INF<T>), other = top;
    i64 i = 0;
    for (; i + 2 * L <= n; i += 2 * L)
      top = vmax<T>(load<T>(row + i), top), other = vmax<T>(load<T>(row + i + L), other);
    for (; i < n; i += L) top = vmax<T>(load<T>(row + i, n - i, -INF<T>), top);
    t[r] = vmax<T>(top, other);
  }
  transpose<T>(t);
  V<T> m = t[0];
  for (int j = 0; j < L; j++) m = vmax<T>(t[j], m);
  for (int j = 0; j < L; j++) columns[j] = t[j] - m;
  return m;
}

// Forward of those of up to W rows that `which` names. A row that is NaN, empty or has too many candidates stays for
// map_row: its bit is not in the result. SCALED: of scale (x - max), one positive scale a row. ESCORT: see scaled.inl.
template <class T, class S, Kind A, bool SCALED = false, bool ESCORT = false>
inline unsigned map_lanes(const S* x, S* p, i64 n, int rows, const double* alpha, bool stream, char* room,
                          unsigned which, const double* scale = nullptr) {
  constexpr int L = W<T>;
  constexpr T B = LANE_SLOPE<T, A>;
  Packed<T> pack(room);
  auto out = (V<T>*)(room + pack.BYTES);
  Marks<T> marks(n, room + pack.BYTES * 3 / 2);
  const V<T> m = tops<T>(x, n, rows, pack.columns);
  V<T> factor;
  if constexpr (SCALED) {
    for (int r = 0; r < L; r++) factor[r] = T(scale[r]);
    for (int j = 0; j < L; j++) pack.columns[j] *= factor;
  }
  V<T> E = all<T>(1), edge, least, step{}, w{};  // edge: E can only be below
  LaneCurve c;
  bool quick = false;
  unsigned odd = ~which | ~(gt_bits<T>(m, all<T>(-INF<T>)) & gt_bits<T>(all<T>(INF<T>), m));
  if constexpr (A == GENERAL) {
    alignas(VB) T b[L];
    for (int r = 0; r < L; r++) b[r] = T(alpha[r] - 1);
    c.b = load<T>(b);
    c.exact_b = widen<T>(c.b);
    for (int r = 0; r < L; r++) c.exact_b[r] = alpha[r] - 1;
    c.inv_b = c.b == 0 ? V<T>{} : 1 / c.b;
    c.kappa = all<T>(1), c.K = c.b, c.low = narrow<T>(c.exact_b - widen<T>(c.b));
    quick = gt_bits<T>(c.b, all<T>(QUICK_FROM));
    for (int j = 0; j < L; j++) pack.columns[j] = vmax<T>(pack.columns[j], all<T>(LANE_LOWEST));
    if (quick) approach_lanes(pack.columns, L, c, 1);
    edge = T(1.005) / c.kappa;
    least = c.b > 0 ? -edge * c.inv_b : all<T>(-INF<T>);
    if (n > parsimax::SHORT) odd |= ~gt_bits<T>(c.b, V<T>{});  // everything would be a candidate
  } else {
    solve_lanes_fixed<T, A>(pack.columns, L, all<T>(L), E, step, 1);
    E -= step;
    edge = E * T(1 + 1e-5) + T(1e-6);
    least = -edge * (1 / B);
    if constexpr (SCALED) least /= factor;
  }
  alignas(VB) T peaks[L], cuts[L], helds[L];
  store<T, T>(peaks, m);
  store<T, T>(cuts, least);
  for (int r = 0; r < L; r++)
    if (odd >> r & 1) peaks[r] = 0, cuts[r] = INF<T>;
  i64 count[L], most = 0;
  const i64 limit = n > parsimax::SHORT ? LANE_LIMIT : n;
  marks.each(
      x, n, rows, -INF<T>, limit, count,
      [&](int r, V<T> v) { return nle_bits<T>(v - peaks[r], all<T>(cuts[r])); },  // the same at any offset
      [&](int r, i64 k, i64 at, unsigned bits) {
        push<T>(pack.row(r) + at, load<T>(x + r * n + k * L, n - k * L, -INF<T>), bits);
      });
  for (int r = 0; r < L; r++) {
    if (count[r] > limit) odd |= 1u << r, count[r] = 0;
    most = count[r] > most ? count[r] : most;
    helds[r] = T(count[r]);
  }
  const V<T> held = load<T>(helds);
  pack.to_columns(count, most, -INF<T>);
  V<T>* z = pack.columns;
  for (i64 j = 0; j < most; j++) {
    z[j] -= m;
    if constexpr (SCALED) z[j] *= factor;
    odd |= ne_bits<T>(z[j], z[j]);
  }
  if constexpr (A == GENERAL) {
    for (i64 j = 0; j < most; j++) z[j] = vmax<T>(z[j], all<T>(LANE_LOWEST));
    if (quick) {
      approach_lanes(z, most, c, 2);
      w = c.b > QUICK_FROM ? log2<T>(c.kappa) * -c.inv_b * T(0.6931471805599453) : w;
      c.move(widen<T>(w));
    }
    odd |= solve_lanes(z, out, most, c, w);
    odd |= gt_bits<T>(c.b, V<T>{}) & gt_bits<T>(all<T>(1), edge * c.kappa);
  } else {
    solve_lanes_fixed<T, A>(z, most, held, E, step, 100);
    odd |= evaluate_lanes_fixed<T, A, ESCORT>(z, out, most, E, step, held) | gt_bits<T>(E - step, edge);
  }
  pack.to_rows(out, most);
  unpack_rows<T>(p, n, pack, marks, ~odd, stream, x + L * n, (const S*)nullptr);
  return ~odd;
}

// Backward of such rows in float, alpha in [0, 2.5] each, and d alpha. The result is as map_lanes has it.
template <class S, bool BY_ALPHA>
inline unsigned grad_lanes(const S* p, const S* g, S* dx, double* dalpha, i64 n, int rows, const double* alpha,
                           bool stream, char* room, unsigned which) {
  using T = float;
  constexpr int L = W<T>;
  Packed<T> a(room), h(room + a.BYTES);
  auto rho = (V<T>*)(room + 2 * a.BYTES);
  Marks<T> marks(n, room + a.BYTES * 5 / 2);
  unsigned odd = ~which;
  i64 count[L], most = 0;
  const i64 limit = n > parsimax::SHORT ? LANE_LIMIT : n;
  marks.each(
      p, n, rows, T(0), limit, count, [](int, V<T> v) { return ne_bits<T>(v, V<T>{}); },
      [&](int r, i64 k, i64 at, unsigned bits) {
        const i64 from = r * n + k * L;
        push<T>(a.row(r) + at, load<T>(p + from, n - k * L, T(0)), bits);
        push<T>(h.row(r) + at, load<T>(g + from, n - k * L, T(0)), bits);
      });
  alignas(VB) T bs[L];
  for (int r = 0; r < L; r++) {
    if (count[r] > limit) odd |= 1u << r, count[r] = 0;
    most = count[r] > most ? count[r] : most;
    bs[r] = T(alpha[r] - 1);
  }
  const V<T> b = load<T>(bs);
  a.to_columns(count, most, T(0));
  h.to_columns(count, most, T(0));
  V<T> total{}, sg{}, sr{};
  for (i64 j = 0; j < most; j++) {
    const V<T> v = a.columns[j], l2 = log2<T>(v), decay = exp2<T>(-b * l2);
    V<T> s = v == v ? v * decay : v;
    if constexpr (BY_ALPHA) {
      const V<T> l = l2 * T(0.6931471805599453), q = l * l * phi<T>(l * b, decay) * recip<T, 1>(decay);
      rho[j] = v != 0 ? q : V<T>{};
      sr += v != 0 ? s * q : V<T>{};
    }
    s = v != 0 ? s : V<T>{};
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
  a.to_rows(a.columns, most);
  unpack_rows<T>(dx, n, a, marks, ~odd, stream, p + L * n, g + L * n);
  if constexpr (BY_ALPHA)
    for (int r = 0; r < L; r++)
      if (!(odd >> r & 1)) dalpha[r] = slope[r];
  return ~odd;
}

// Which of up to W rows have alpha = 2 or 1.5, and which another one in [0, top], which lanes take in float only. In
// `alpha` what lanes do not take is 1.5.
template <class T> struct LaneKinds {
  int rows;
  double alpha[W<T>];
  unsigned two = 0, half = 0, other = 0, soft = 0;  // soft: alpha = 1, some of the others
  LaneKinds(const parsimax::Param& param, i64 first, i64 last, double top)
      : rows(last - first < W<T> ? int(last - first) : W<T>) {
    for (int j = 0; j < W<T>; j++) {
      const double a = at(param, first + (j < rows ? j : 0));
      const bool known = a == 2 || a == 1.5, fits = same<T, float> && a >= 0 && a <= top && !known;
      alpha[j] = known || fits ? a : 1.5;
      two |= unsigned(a == 2) << j, half |= unsigned(a == 1.5) << j, other |= unsigned(fits) << j,
          soft |= unsigned(a == 1) << j;
    }
    const unsigned there = ALL<T> >> (W<T> - rows);
    two &= there, half &= there, other &= there, soft &= there;
  }
  unsigned all() const { return ALL<T> >> (W<T> - rows); }
};

// alpha = 1: softmax has no edge to look for.
template <class T, class S> inline void soft_row(const S* x, S* p, i64 n, T* w) {
  const Peak<T> k = peak<T>(x, n);
  if (k.bad || k.max == -INF<T>) return fill_row(p, n, k.bad ? __builtin_nan("") : 0);
  const V<T> max = all<T>(k.max), up = all<T>(LOG2_E);
  Total<T> total;
  for (i64 i = 0; i < n;) {
    V<T> some{};
    for (int u = 0; u < 8 && i < n; u++, i += W<T>) {
      const V<T> r = exp2<T>((load<T>(x + i, n - i, -INF<T>) - max) * up);
      some += r;
      store<T, T>(w + i, r);
    }
    total.add(some);
  }
  const V<T> scale = all<T>(1 / total.get());
  for (i64 i = 0; i < n; i += W<T>) store<S, T>(p + i, load<T>(w + i) * scale, n - i);
}
template <class S> inline void map_one(const parsimax::MapArgs& args, i64 r, const Scratch& sc) {
  const i64 n = args.n;
  auto x = (const S*)args.x + r * n;
  auto p = (S*)args.p + r * n;
  const Alpha a(at(args.alpha, r));
  if (a.alpha == 1) soft_row<Compute<S>>(x, p, n, sc.numbers<Compute<S>>(0));
  else if (a.alpha > 2) map_row<double>(x, p, n, a, sc);  // the curve is steep at its edge
  else map_row<Compute<S>>(x, p, n, a, sc, args.dense ? args.dense + r : nullptr);
}
template <class S> void map_block(const parsimax::MapArgs& args, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  constexpr int L = W<T>;
  const i64 n = args.n;
  const Scratch sc{(char*)scratch, n};
  for (i64 r = first; r < last && args.dense; r++) args.dense[r].kind = DenseRow::NOT;
  i64 r = first;
  for (; r < last && n <= (same<T, float> ? LANE_LONGEST : parsimax::SHORT); r += L) {
    auto x = (const S*)args.x + r * n;
    auto p = (S*)args.p + r * n;
    const LaneKinds<T> k(args.alpha, r, last, 2);
    const bool stream = streams<S>(args.stream, n),
               pays = VB > 16 || n <= parsimax::SHORT;  // marks in vectors of 4 floats do not
    unsigned done = 0;
    if (k.two && pays) done = map_lanes<T, S, SPARSEMAX>(x, p, n, k.rows, k.alpha, stream, sc.rest(), k.two);
    if (k.half && pays) done |= map_lanes<T, S, ENTMAX15>(x, p, n, k.rows, k.alpha, stream, sc.rest(), k.half);
    if constexpr (same<T, float>)
      if (const unsigned other = k.other & ~k.soft) {
        unsigned narrow = 0;
        for (int j = 0; j < k.rows; j++)
          if (const Alpha a(k.alpha[j]); other >> j & 1 && maybe_narrow(x + j * n, n, a))
            narrow |= unsigned(map_narrow(x + j * n, p + j * n, n, a, args.dense ? args.dense + r + j : nullptr)) << j;
        done |= narrow;
        if (other & ~narrow)
          done |= map_lanes<T, S, GENERAL>(x, p, n, k.rows, k.alpha, stream, sc.rest(), other & ~narrow);
      }
    for (int j = 0; j < k.rows; j++)
      if (!(done >> j & 1)) map_one<S>(args, r + j, sc);
  }
  for (; r < last; r++) map_one<S>(args, r, sc);
  for (r = first; r < last && args.dense; r++)
    if (args.dense[r].kind != DenseRow::NOT) return __atomic_store_n(args.any_dense, true, __ATOMIC_RELAXED);
}

template <class S> inline void grad_one(const parsimax::GradArgs& args, i64 r, const Scratch& sc) {
  const i64 n = args.n;
  auto p = (const S*)args.p + r * n, g = (const S*)args.g + r * n;
  auto dx = (S*)args.dx + r * n;
  const Alpha a(at(args.alpha, r));
  if constexpr (!same<S, double>)
    if (args.dense && args.dense[r].kind != DenseRow::NOT) {
      auto x = (const S*)args.x + r * n;
      float *s = sc.numbers<float>(0), *rho = sc.numbers<float>(1);
      if (args.dalpha) return grad_dense<S, true>(x, g, dx, args.dalpha + r, n, a, args.dense[r], s, rho);
      return grad_dense<S, false>(x, g, dx, nullptr, n, a, args.dense[r], s, rho);
    }
  auto run = [&](auto t) {
    using T = decltype(t);
    if (args.dalpha) grad_row<T, S, true>(p, g, dx, args.dalpha + r, n, a, sc);
    else grad_row<T, S, false>(p, g, dx, nullptr, n, a, sc);
  };
  if (a.alpha > 2.5) run(double());  // p^(2 - alpha) leaves the range of float
  else run(Compute<S>());
}
template <class S> void grad_block(const parsimax::GradArgs& args, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  constexpr int L = W<T>;
  const i64 n = args.n;
  const Scratch sc{(char*)scratch, n};
  i64 r = first;
  for (; r < last && n <= LANE_LONGEST; r += L) {
    double* da = args.dalpha ? args.dalpha + r : nullptr;
    auto p = (const S*)args.p + r * n, g = (const S*)args.g + r * n;
    auto dx = (S*)args.dx + r * n;
    const LaneKinds<T> k(args.alpha, r, last, 2.5);
    const bool stream = streams<S>(args.stream, n);
    unsigned done = 0;
    if (!da && n < GRAD_PLAIN && (k.two == k.all() || k.half == k.all())) {  // what grad_one does with each
      grad_plain<T>(k.two ? SPARSEMAX : ENTMAX15, p, g, dx, n, k.rows, stream, sc.numbers<T>(0));
      continue;
    }
    if constexpr (same<T, float>) {
      unsigned which = da ? k.two | k.half | k.other : k.other & ~k.soft;
      for (int j = 0; j < k.rows && args.dense; j++) which &= ~(unsigned(args.dense[r + j].kind != DenseRow::NOT) << j);
      if (which && da) done = grad_lanes<S, true>(p, g, dx, da, n, k.rows, k.alpha, stream, sc.rest(), which);
      else if (which) done = grad_lanes<S, false>(p, g, dx, da, n, k.rows, k.alpha, stream, sc.rest(), which);
    }
    for (int j = 0; j < k.rows; j++)
      if (!(done >> j & 1)) grad_one<S>(args, r + j, sc);
  }
  for (; r < last; r++) grad_one<S>(args, r, sc);
}
template <class S> void map_rows(const void* args, i64 first, i64 last, void* scratch) {
  for (i64 r = first; r < last; r += parsimax::BLOCK)
    map_block<S>(*(const parsimax::MapArgs*)args, r, r + parsimax::BLOCK < last ? r + parsimax::BLOCK : last, scratch);
  stream_fence();
}
template <class S> void grad_rows(const void* args, i64 first, i64 last, void* scratch) {
  for (i64 r = first; r < last; r += parsimax::BLOCK)
    grad_block<S>(*(const parsimax::GradArgs*)args, r, r + parsimax::BLOCK < last ? r + parsimax::BLOCK : last,
                  scratch);
  stream_fence();
}
}  // namespace

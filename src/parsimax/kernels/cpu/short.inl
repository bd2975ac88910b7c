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
  V<T> m = all<T>(-INF<T>);
  transpose<T>([&](int r) { return t[r]; }, [&](int j, V<T> v) { columns[j] = v, m = vmax<T>(v, m); });
  for (int j = 0; j < L; j++) columns[j] -= m;
  return m;
}

// Forward of up to W rows, in steps, so that two such groups can take turns: a pass waits for the roots and quotients
// of the one before it, and meanwhile the numbers of the other group are added. SCALED: of scale (x - max), one
// positive scale a row. ESCORT: see scaled.inl.
template <class T, class S, Kind A, bool SCALED, bool ESCORT> struct LaneMap {
  static constexpr int L = W<T>;
  const S* x;
  S* p;
  i64 n, limit, most = 0, count[W<T>];
  int rows;
  unsigned odd;
  bool quick = false;
  Packed<T> pack;
  V<T>* out;
  Marks<T> marks;
  V<T> m, edge, least, factor, held;  // edge: E can only be below
  std::conditional_t<A == GENERAL, LaneSearch, FixedSearch<T, A>> search;

  LaneMap(const S* x, S* p, i64 n, int rows, char* room)
      : x(x),
        p(p),
        n(n),
        limit(n > parsimax::SHORT ? LANE_LIMIT : n),
        rows(rows),
        pack(room),
        out((V<T>*)(room + pack.BYTES)),
        marks(n, room + pack.BYTES * 3 / 2) {}
  static i64 bytes(i64 n) { return Packed<T>::BYTES * 3 / 2 + (Marks<T>::bytes(n) + 63) / 64 * 64; }

  void start(const double* alpha, const double* scale, unsigned which) {
    m = tops<T>(x, n, rows, pack.columns);
    if constexpr (SCALED) {
      for (int r = 0; r < L; r++) factor[r] = T(scale[r]);
      for (int j = 0; j < L; j++) pack.columns[j] *= factor;
    }
    odd = ~which | ~(gt_bits<T>(m, all<T>(-INF<T>)) & gt_bits<T>(all<T>(INF<T>), m));
    if constexpr (A == GENERAL) {
      LaneCurve& c = search.c;
      alignas(VB) T b[L];
      for (int r = 0; r < L; r++) b[r] = T(alpha[r] - 1), c.exact_b.set(r, alpha[r] - 1);
      c.b = load<T>(b);
      c.inv_b = c.b == 0 ? V<T>{} : 1 / c.b;
      c.kappa = all<T>(1), c.K = c.b, c.low = narrow<T>(c.exact_b - widen<T>(c.b));
      quick = gt_bits<T>(c.b, all<T>(QUICK_FROM));
      for (int j = 0; j < L; j++) pack.columns[j] = vmax<T>(pack.columns[j], all<T>(LANE_LOWEST));
      if (quick) search.approach(pack.columns, L);
      edge = T(1.005) / c.kappa;
      least = c.b > 0 ? -edge * c.inv_b : all<T>(-INF<T>);
      if (n > parsimax::SHORT) odd |= ~gt_bits<T>(c.b, V<T>{});  // everything would be a candidate
    } else {
      search.advance(pack.columns, L, all<T>(L));
      search.E -= search.step;
      search.step = V<T>{}, search.live = all<T>(1);
      edge = search.E * T(1 + 1e-5) + T(1e-6);
      least = -edge * (1 / LANE_SLOPE<T, A>);
      if constexpr (SCALED) least /= factor;
    }
  }
  void gather() {
    alignas(VB) T peaks[L], cuts[L], helds[L];
    store<T, T>(peaks, m);
    store<T, T>(cuts, least);
    for (int r = 0; r < L; r++)
      if (odd >> r & 1) peaks[r] = 0, cuts[r] = INF<T>;
    marks.each(
        x, n, rows, -INF<T>, limit, count,
        [&](int r) {
          return [peak = all<T>(peaks[r]), cut = all<T>(cuts[r])](V<T> v) {
            return nle_bits<T>(v - peak, cut);  // the same at any offset
          };
        },
        [&](int r, i64, i64 at, unsigned bits, V<T> v) { push<T>(pack.row(r) + at, v, bits); });
    for (int r = 0; r < L; r++) {
      if (count[r] > limit) odd |= 1u << r, count[r] = 0;
      most = count[r] > most ? count[r] : most;
      helds[r] = T(count[r]);
    }
    held = load<T>(helds);
    pack.to_columns(count, most, -INF<T>);
    V<T>* z = pack.columns;
    for (i64 j = 0; j < most; j++) {
      V<T> v = z[j] - m;
      if constexpr (SCALED) v *= factor;
      odd |= ne_bits<T>(v, v);
      z[j] = A == GENERAL ? vmax<T>(v, all<T>(LANE_LOWEST)) : v;
    }
    if (A != GENERAL && most & 1) z[most] = all<T>(-INF<T>);
  }
  void approach() {
    if constexpr (A == GENERAL)
      if (quick) search.approach(pack.columns, most);
  }
  void approached() {
    if constexpr (A == GENERAL) {
      LaneCurve& c = search.c;
      if (!quick) return;
      const V<T> w = c.b > QUICK_FROM ? log2<T>(c.kappa) * -c.inv_b * T(0.6931471805599453) : V<T>{};
      search.w = widen<T>(w);
      c.move(search.w);
    }
  }
  bool advance() {
    if constexpr (A == GENERAL) return search.advance(pack.columns, out, most);
    else return search.advance(pack.columns, most + (most & 1), held);
  }
  unsigned finish(bool stream, i64 ahead = W<T>) {  // so many rows ahead are those that will be read next
    if constexpr (A == GENERAL)
      odd |= search.finish(out, most) | (gt_bits<T>(search.c.b, V<T>{}) & gt_bits<T>(all<T>(1), edge * search.c.kappa));
    else
      odd |= evaluate_lanes_fixed<T, A, ESCORT>(pack.columns, out, most, search.E, search.step, held) |
             gt_bits<T>(search.E - search.step, edge);
    pack.to_rows(out, most);
    unpack_rows<T>(p, n, pack, marks, ~odd, stream, x + ahead * n, (const S*)nullptr);
    return ~odd;
  }
};
// Forward of those of up to W rows that `which` names, or of 2 W rows. A row that is NaN, empty or has too many
// candidates stays for map_row: its bit is not in the result.
template <class T, class S, Kind A, bool SCALED = false, bool ESCORT = false>
inline unsigned map_lanes(const S* x, S* p, i64 n, int rows, const double* alpha, bool stream, char* room,
                          unsigned which, const double* scale = nullptr) {
  LaneMap<T, S, A, SCALED, ESCORT> map(x, p, n, rows, room);
  map.start(alpha, scale, which);
  map.gather();
  map.approach(), map.approach(), map.approached();
  for (int it = 0; it < 100 && map.advance(); it++) {}
  return map.finish(stream);
}
template <class T, class S, Kind A>
inline unsigned map_two(const S* x, S* p, i64 n, const double* alpha, bool stream, char* room, unsigned which) {
  constexpr int L = W<T>;
  using Map = LaneMap<T, S, A, false, false>;
  Map a(x, p, n, L, room), b(x + L * n, p + L * n, n, L, room + Map::bytes(n));
  a.start(alpha, nullptr, which & ALL<T>), b.start(alpha + L, nullptr, which >> L);
  a.gather(), b.gather();
  a.approach(), b.approach(), a.approach(), b.approach(), a.approached(), b.approached();
  bool first = true, second = true;
  for (int it = 0; it < 100 && (first || second); it++) {
    if (first) first = a.advance();
    if (second) second = b.advance();
  }
  const unsigned done = a.finish(stream, 2 * L) & ALL<T>;
  return done | b.finish(stream, 2 * L) << L;
}

// Forward of rows so short that to move what takes part to the front would cost more than it spares: alpha = 2 or 1.5,
// up to GROUPS W rows, every number a column. The result is as map_lanes has it. Nothing depends on n but how many
// columns of -inf there are, so that padding does not change a bit.
constexpr i64 ALL_COLUMNS = VB == 64 ? 0 : 32;  // the longest of them; AVX-512 moves numbers with one instruction
template <class T, class S, Kind A, int GROUPS>
inline unsigned map_columns(const S* x, S* p, i64 n, int rows, char* room, unsigned which) {
  constexpr int L = W<T>;
  constexpr parsimax::Exit EXIT = A == SPARSEMAX ? parsimax::SPARSEMAX_COLUMN : parsimax::ENTMAX15_COLUMN;
  const i64 columns = (n + L - 1) / L * L;
  unsigned odd = ~which;
  FixedSearch<T, A, EXIT> search[GROUPS];
  for (int g = 0; g < GROUPS; g++) {
    const S* from = x + g * L * n;
    V<T>*z = (V<T>*)room + g * columns, top[L], m = all<T>(-INF<T>), bad{};
    for (int j = 0; j < L; j++) top[j] = m;
    for (i64 i = 0; i < columns; i += L) {
      auto put = [&](int j, V<T> v) { z[i + j] = v, top[j] = vmax<T>(v, top[j]); };
      if (rows >= (g + 1) * L && i + L <= n) transpose<T>([&](int r) { return load<T>(from + r * n + i); }, put);
      else
        transpose<T>(
            [&](int r) { return g * L + r < rows ? load<T>(from + r * n + i, n - i, -INF<T>) : all<T>(-INF<T>); }, put);
    }
    for (int j = 0; j < L; j++) m = vmax<T>(top[j], m);
    odd |= (~(gt_bits<T>(m, all<T>(-INF<T>)) & gt_bits<T>(all<T>(INF<T>), m)) & ALL<T>) << g * L;
    for (int j = 0; j < L; j++) top[j] -= m;
    search[g].advance(top, L, all<T>(L));  // of a part of the row: E can only be below
    search[g].live = all<T>(1);
    for (i64 j = 0; j < columns; j++) {
      const V<T> v = z[j] - m;
      z[j] = v;
      bad = v == v ? bad : v;
    }
    odd |= ne_bits<T>(bad, bad) << g * L;
  }
  unsigned going = (1u << GROUPS) - 1;
  for (int it = 0; it < 100 && going; it++)
    for (int g = 0; g < GROUPS; g++)
      if (going >> g & 1 && !search[g].advance((V<T>*)room + g * columns, columns, all<T>(ALL_COLUMNS)))
        going &= ~(1u << g);
  for (int g = 0; g < GROUPS; g++) {
    const V<T> E = search[g].E, step = search[g].step, *z = (V<T>*)room + g * columns;
    S* to = p + g * L * n;
    const unsigned wanted = which >> g * L & ALL<T>;
    Wide<T> total;
    for (i64 i = 0; i < columns; i += L) {
      V<T> t[L], some{};
      for (int j = 0; j < L; j++) {
        const V<T> d = positive<T>(z[i + j] * LANE_SLOPE<T, A> + E - step);
        t[j] = A == SPARSEMAX ? d : d * d;
        some += t[j];
      }
      total += widen<T>(some);
      for (int r = 0; r < L; r++) __builtin_prefetch(x + ((GROUPS + g) * L + r) * n + i);  // the rows after these
      auto get = [&](int j) { return t[j]; };
      if (wanted == ALL<T> && i + L <= n) transpose<T>(get, [&](int r, V<T> v) { store<S, T>(to + r * n + i, v); });
      else
        transpose<T>(get, [&](int r, V<T> v) {
          if (wanted >> r & 1) store<S, T>(to + r * n + i, v, n - i);
        });
    }
    const V<T> off = narrow<T>(total - 1), size = off < 0 ? -off : off, enough = all<T>(tolerance(EXIT, PROOF<T>));
    odd |= nle_bits<T>(size, enough) << g * L;
  }
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
      p, n, rows, T(0), limit, count, [](int) { return [](V<T> v) { return ne_bits<T>(v, V<T>{}); }; },
      [&](int r, i64 k, i64 at, unsigned bits, V<T> v) {
        push<T>(a.row(r) + at, v, bits);
        push<T>(h.row(r) + at, load<T>(g + r * n + k * L, n - k * L, T(0)), bits);
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

// Which of up to GROUPS W rows have alpha = 2 or 1.5, and which another one in [0, top], which lanes take in float
// only. In `alpha` what lanes do not take is 1.5.
template <class T, int GROUPS = 1> struct LaneKinds {
  static constexpr int L = GROUPS * W<T>;
  int rows;
  double alpha[L];
  unsigned two = 0, half = 0, other = 0, soft = 0;  // soft: alpha = 1, some of the others
  LaneKinds(const parsimax::Param& param, i64 first, i64 last, double top)
      : rows(last - first < L ? int(last - first) : L) {
    const int different = param.stride ? L : 1;
    for (int j = 0; j < different; j++) {
      const double a = at(param, first + (j < rows ? j : 0));
      const bool known = a == 2 || a == 1.5, fits = same<T, float> && a >= 0 && a <= top && !known;
      alpha[j] = known || fits ? a : 1.5;
      two |= unsigned(a == 2) << j, half |= unsigned(a == 1.5) << j, other |= unsigned(fits) << j,
          soft |= unsigned(a == 1) << j;
    }
    for (int j = different; j < L; j++) alpha[j] = alpha[0];
    const unsigned there = all(), each = different == 1 ? there : 1;
    two = two * each & there, half = half * each & there, other = other * each & there, soft = soft * each & there;
  }
  unsigned all() const { return (1u << rows) - 1; }
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
// Up to GROUPS W rows from r on. Two groups are whole, and have room beside each other.
template <class S, int GROUPS>
inline void map_some(const parsimax::MapArgs& args, i64 r, i64 last, bool columns, const Scratch& sc) {
  using T = Compute<S>;
  const i64 n = args.n;
  auto x = (const S*)args.x + r * n;
  auto p = (S*)args.p + r * n;
  const LaneKinds<T, GROUPS> k(args.alpha, r, last, 2);
  const bool stream = streams<S>(args.stream, n);
  unsigned done = 0;
  auto fixed = [&](auto kind, unsigned which) {
    constexpr Kind A = decltype(kind)::value;
    if (!which) return;
    if (columns) done |= map_columns<T, S, A, GROUPS>(x, p, n, k.rows, sc.rest(), which);
    else if constexpr (GROUPS == 2) done |= map_two<T, S, A>(x, p, n, k.alpha, stream, sc.rest(), which);
    else if (VB > 16 || n <= parsimax::SHORT)  // marks in vectors of 4 floats do not pay
      done |= map_lanes<T, S, A>(x, p, n, k.rows, k.alpha, stream, sc.rest(), which);
  };
  fixed(std::integral_constant<Kind, SPARSEMAX>{}, k.two);
  fixed(std::integral_constant<Kind, ENTMAX15>{}, k.half);
  if constexpr (same<T, float>)
    if (unsigned other = k.other & ~k.soft) {
      for (int j = 0; j < k.rows; j++)
        if (const Alpha a(k.alpha[j]); other >> j & 1 && maybe_narrow(x + j * n, n, a))
          done |= unsigned(map_narrow(x + j * n, p + j * n, n, a, args.dense ? args.dense + r + j : nullptr)) << j;
      other &= ~done;
      if (!other) {
      } else if constexpr (GROUPS == 2) done |= map_two<T, S, GENERAL>(x, p, n, k.alpha, stream, sc.rest(), other);
      else done |= map_lanes<T, S, GENERAL>(x, p, n, k.rows, k.alpha, stream, sc.rest(), other);
    }
  for (int j = 0; j < k.rows; j++)
    if (!(done >> j & 1)) map_one<S>(args, r + j, sc);
}
template <class S> void map_block(const parsimax::MapArgs& args, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  constexpr int L = W<T>;
  const i64 n = args.n;
  const bool columns = (args.longest ? args.longest : n) <= ALL_COLUMNS;
  const Scratch sc{(char*)scratch, n};
  for (i64 r = first; r < last && args.dense; r++) args.dense[r].kind = DenseRow::NOT;
  i64 r = first;
  for (; VB < 64 && n <= parsimax::SHORT && r + 2 * L <= last; r += 2 * L) map_some<S, 2>(args, r, last, columns, sc);
  for (; r < last && n <= (same<T, float> ? LANE_LONGEST : parsimax::SHORT); r += L)
    map_some<S, 1>(args, r, last, columns, sc);
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

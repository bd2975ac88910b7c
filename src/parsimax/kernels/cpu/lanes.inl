// W rows at once, one to a lane: sums need no reduction across lanes and short Newton chains overlap. Only the numbers
// of a row that can matter take part: `mark` notes where they stand, `pack` moves them to the front, `transpose` turns
// rows into lanes, and on the way back `unpack` writes them between zeros.
// Every lane holds one row, or none, whatever its neighbours are: a row's bits depend neither on them nor on their
// number.
#pragma once
#include "grad.inl"
namespace {
constexpr i64 LANE_LIMIT = 160;   // numbers of a row that take part, in rows longer than SHORT
constexpr i64 LANE_STRIDE = 240;  // 15 cache lines of floats: rows must not meet in one set of the cache
static_assert(LANE_STRIDE >= parsimax::SHORT + 3 * 16 && LANE_STRIDE >= LANE_LIMIT + 3 * 16);
constexpr i64 LANE_LONGEST = 8192;
constexpr i64 HITS = 32;  // marks looked at together
constexpr i64 FEW = 8;    // vectors of a row too short to look for marks

// The numbers of W rows that take part: `rows` is W rows of LANE_STRIDE, `columns` the same transposed.
template <class T> struct Packed {
  static constexpr int L = W<T>;
  static constexpr i64 BYTES = 2 * sizeof(T) * L * LANE_STRIDE;
  T* rows;
  V<T>* columns;
  explicit Packed(char* room) : rows((T*)room), columns((V<T>*)(room + BYTES / 2)) {}
  T* row(int r) { return rows + r * LANE_STRIDE; }
  void to_columns(const i64* count, i64 most, T fill) {
    for (int r = 0; r < L; r++)
      for (i64 i = count[r]; i < most; i += L) store<T, T>(row(r) + i, all<T>(fill));
    for (i64 i = 0; i < most; i += L)
      transpose<T>([&](int r) { return load<T>(row(r) + i); }, [&](int j, V<T> v) { columns[i + j] = v; });
  }
  void to_rows(const V<T>* from, i64 most) {
    for (i64 i = 0; i < most; i += L)
      transpose<T>([&](int j) { return from[i + j]; }, [&](int r, V<T> v) { store<T, T>(row(r) + i, v); });
  }
};

// One word per vector of each of W rows, a bit per number: where what takes part stands.
template <class T> struct Marks {
  i64 vectors, stride;  // a stride has room for whole groups of HITS
  uint16_t* words;
  Marks(i64 n, char* room)
      : vectors((n + W<T> - 1) / W<T>),
        stride((vectors + HITS - 1) / HITS * HITS),
        words((uint16_t*)room) {}
  static constexpr i64 bytes(i64 n) { return W<T> * 2 * ((n + W<T> - 1) / W<T> + HITS); }
  uint16_t* row(int r) { return words + r * stride; }
  // Marks what taken(r), a function of a vector, takes of row r, for the `rows` rows from x on (the lanes beyond stay
  // empty), and calls keep(r, k, at, bits, v) for each vector k of row r with a mark, v, `at` being the number of marks
  // before it, while that is at most `limit`. Fills `count`: limit + 1 or more if there are too many. Long rows are
  // marked one ahead: marks have left the store buffer when they are looked at.
  template <class S, class F, class G>
  void each(const S* x, i64 n, int rows, T fill, i64 limit, i64* count, F taken, G keep) {
    constexpr int L = W<T>;
    const i64 whole = n / L;
    for (int r = 0; r < rows; r++) {
      const S* from = x + r * n;
      uint16_t* to = row(r);
      const auto test = taken(r);
      if (vectors > FEW) {
        for (i64 k = 0; k < whole; k++) to[k] = uint16_t(test(load<T>(from + k * L)));
        if (whole < vectors) to[whole] = uint16_t(test(load<T>(from + whole * L, n - whole * L, fill)));
        if (r) count[r - 1] = look(r - 1, x, n, fill, limit, keep);
      } else {
        i64 at = 0;
        const auto one = [&](i64 k, V<T> v) {
          const unsigned bits = test(v);
          to[k] = uint16_t(bits);
          keep(r, k, at, bits, v);
          at += __builtin_popcount(bits);
        };
        for (i64 k = 0; k < whole; k++) one(k, load<T>(from + k * L));
        if (whole < vectors) one(whole, load<T>(from + whole * L, n - whole * L, fill));
        count[r] = at;
      }
    }
    if (vectors > FEW) count[rows - 1] = look(rows - 1, x, n, fill, limit, keep);
    for (int r = rows; r < L; r++) count[r] = 0;
  }
  template <class S, class G> i64 look(int r, const S* x, i64 n, T fill, i64 limit, G keep) {
    const uint16_t* from = row(r);
    i64 at = 0;
    for (i64 first = 0; first < vectors; first += HITS) {
      uint32_t hits = 0;
#if defined(__AVX512F__)
      const __m512i w = _mm512_loadu_si512(from + first);
      hits = _mm512_test_epi16_mask(w, w);
#else
      const uint16_t* w = from + first;
#if defined(__AVX2__)
      const __m256i none{}, a = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i*)w), none);
      const __m256i b = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i*)(w + 16)), none);
      hits = ~uint32_t(_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8)));
#else
      for (int j = 0; j < HITS; j++) hits |= uint32_t(w[j] != 0) << j;
#endif
#endif
      if (vectors - first < HITS) hits &= (1u << (vectors - first)) - 1;
      for (; hits && at <= limit; hits &= hits - 1) {
        const i64 k = first + __builtin_ctz(hits);
        keep(r, k, at, from[k], load<T>(x + r * n + k * W<T>, n - k * W<T>, fill));
        at += __builtin_popcount(from[k]);
      }
    }
    return at;
  }
};

// v spread to the marks of a row, zeros elsewhere. What the next rows will read, `next` and perhaps `other`, is asked
// for on the way: while rows are being solved, nothing else would keep the memory busy.
template <bool STREAM, class T, class S>
inline void unpack(S* out, i64 n, const T* v, const uint16_t* marks, const S* next, const S* other) {
  constexpr int L = W<T>;
  i64 i = 0, k = 0;
#if defined(__AVX512F__)
  if constexpr (STREAM && same<T, float>) {  // what lies between two multiples of 64 bytes comes from two vectors
    const i64 first = head(out), vectors = (n + L - 1) / L;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(int(first)));
    V<T> low = spread<T>(v, marks[k++]);
    if (first) store<S, T>(out, low, first);
    for (i = first; i < n; i += L, k++) {
      const V<T> high = k < vectors ? spread<T>(v, marks[k]) : V<T>{}, o = _mm512_permutex2var_ps(low, at, high);
      __builtin_prefetch(next + i);
      if (other) __builtin_prefetch(other + i, 0, 2);
      if (i + L <= n) stream<S, T>(out + i, o);
      else store<S, T>(out + i, o, n - i);
      low = high;
    }
  }
#endif
  for (; i < n; i += L, k++) {
    __builtin_prefetch(next + i);
    if (other) __builtin_prefetch(other + i, 0, 2);
    store<S, T>(out + i, spread<T>(v, marks[k]), n - i);
  }
}
template <class T, class S>
inline void unpack_rows(S* out, i64 n, Packed<T>& pack, Marks<T>& marks, unsigned which, bool stream, const S* next,
                        const S* other) {
  for (int r = 0; r < W<T>; r++)
    if (which >> r & 1) {
      if (stream)
        unpack<true, T>(out + r * n, n, pack.row(r), marks.row(r), next + r * n, other ? other + r * n : nullptr);
      else unpack<false, T>(out + r * n, n, pack.row(r), marks.row(r), next + r * n, other ? other + r * n : nullptr);
    }
}

// log1p(f) / f / log(2) for f in [-1/4, 1/2], in float, and 2^f for |f| <= 1/2, with the coefficients of curve.inl, but
// summed by pairs: in a pass over few columns it is the length of the chain that counts.
template <bool QUICK> inline V<float> log2_ratio(V<float> f) {
  using T = float;
  if constexpr (QUICK) return horner<T>(f, all<T>(-0.26325449), 0.49677351, -0.72817263, 1.44248678);
  else {
    const V<T> f2 = f * f, f4 = f2 * f2;
    const V<T> low = fma<T>(fma<T>(f, all<T>(-3.605759187e-01), all<T>(4.809020798e-01)), f2,
                            fma<T>(f, all<T>(-7.213484784e-01), all<T>(1.442695032)));
    const V<T> high = fma<T>(fma<T>(f, all<T>(-1.742292175e-01), all<T>(2.163247097e-01)), f2,
                             fma<T>(f, all<T>(-2.427236216e-01), all<T>(2.881915286e-01)));
    return fma<T>(fma<T>(f4, all<T>(7.806572213e-02), high), f4, low);
  }
}
inline V<float> lane_exp2_part(V<float> f) {
  using T = float;
  const V<T> f2 = f * f;
  const V<T> low = fma<T>(fma<T>(f, all<T>(5.550328777e-02), all<T>(2.402264689e-01)), f2,
                          fma<T>(f, all<T>(6.931472057e-01), all<T>(1.0)));
  const V<T> high = fma<T>(f2, all<T>(1.534580752e-04), fma<T>(f, all<T>(1.339993118e-03), all<T>(9.618488974e-03)));
  return fma<T>(high, f2 * f2, low);
}
// alpha in [0, 2], one per lane, in float: smooth through alpha = 1 (b = 0), as curve.inl and solve_general are. w and
// the edge that follows from it are in double, K is in two parts: a plateau close to the edge moves with them as a
// whole. QUICK is good to 1e-3 or so where b > QUICK_FROM: enough on the way to the root.
constexpr float QUICK_FROM = 0.02f, LANE_LOWEST = -1e30f;  // z is not below the second
struct LaneCurve {
  using T = float;
  V<T> b, inv_b, kappa, K, low;  // kappa = 1 / E = e^(-b w), K + low = b kappa
  Wide<T> exact_b;
  void move(Wide<T> w) {
    const Wide<T> grown = each_part([](V<double> t) { return exp2<double>(t); }, exact_b * w * -1.4426950408889634),
                  k = exact_b * grown;
    kappa = narrow<T>(grown);
    K = narrow<T>(k);
    low = narrow<T>(k - widen<T>(K));
  }
  template <bool QUICK> V<T> at(V<T> z, V<T>& y) const {
    V<T> line = fma<T>(z, K, all<T>(1)), f, r;
    if constexpr (!QUICK) line = fma<T>(z, low, line);
    y = vmax<T>(line, all<T>(1e-30));  // r / y is 0 where r is
    const V<T> e = split<T>(y, f);
    if constexpr (QUICK) {
      const V<T> t = fma<T>(f, log2_ratio<true>(f), e) * inv_b, n = nearest<T>(t);
      r = scale2<T>(horner<T>(t - n, all<T>(0.05517163), 0.24261114, 0.693261, 0.99992807), n);
    } else {
      const V<T> u = z * kappa;
      f = e == 0 ? u * b : f;
      const V<T> ratio = log2_ratio<false>(f), g = e == 0 ? u * ratio : f * ratio * inv_b,
                 t = vmax<T>(fma<T>(e, inv_b, g), all<T>(-160));
      const V<T> n = nearest<T>(t);
      r = scale2<T>(lane_exp2_part(t > T(-160) ? fma<T>(e, inv_b, -n) + g : V<T>{}), n);
    }
    return line > 0 ? r : V<T>{};
  }
  V<T> step(V<T> R, V<T> slope, V<T> excess) const {  // dw
    const V<T> ln2 = all<T>(0.6931471805599453), x = -b * excess, q = R / slope;
    const V<T> h = horner<T>(x, all<T>(1 / 5040.), 1 / 720., 1 / 120., 1 / 24., 1 / 6., 0.5, 1.0);  // expm1(x) / x
    const V<T> g = -q * excess * h, f = b * g, near = g * log2_ratio<false>(f) * ln2;
    const V<T> far = log2<T>(1 + q * (exp2<T>(x * T(1.4426950408889634)) - 1)) * ln2 * inv_b;
    const V<T> ax = x < 0 ? -x : x;
    return ax < T(0.4) ? (f > T(-0.25) ? (f < T(0.5) ? near : far) : far) : far;
  }
};
constexpr i64 COLUMNS = 8;  // numbers added in float before they join a sum in double
// One pass over the columns: the sum of r, which goes into `out` too, and of r / y.
template <bool QUICK>
inline V<float> pass_lanes(const V<float>* z, V<float>* out, i64 most, const LaneCurve& c, V<float>& slope,
                           Wide<float>* total = nullptr) {
  using T = float;
  V<T> R{}, y;
  slope = V<T>{};
  for (i64 j = 0; j < most;) {
    V<T> some{};
    for (int k = 0; k < COLUMNS && j < most; k++, j++) {
      const V<T> r = c.at<QUICK>(z[j], y);
      if constexpr (!QUICK) out[j] = r;
      some += r;
      slope += r * recip<T, 0>(y);
    }
    if constexpr (QUICK) R += some;
    else *total += widen<T>(some);
  }
  return R;
}
// Newton for a general alpha on columns of z (LANE_LOWEST beyond a row's count), a pass at a time. A lane that is done
// stays as it is while others go on.
struct LaneSearch {
  using T = float;
  LaneCurve c;
  Wide<T> w;
  V<T> R, size, enough = all<T>(tolerance(parsimax::GENERAL_LANE, PROOF<T>));
  int passes = 0;
  // A quick step in the lanes where b > QUICK_FROM: in terms of E it is E' = E + (R^-b - E) sum r / sum (r / y).
  void approach(const V<T>* z, i64 most) {
    V<T> slope;
    const V<T> total = pass_lanes<true>(z, nullptr, most, c, slope), E = recip<T, 1>(c.kappa);
    const V<T> next = E + (exp2<T>(-c.b * log2<T>(total)) - E) * (total * recip<T, 1>(slope));
    c.kappa = total > 0 ? (c.b > QUICK_FROM ? recip<T, 1>(next) : c.kappa) : c.kappa;
    c.K = c.b * c.kappa;
  }
  // One pass, whose r go to `out`, and a step if some lane needs one. Whether it goes on.
  bool advance(const V<T>* z, V<T>* out, i64 most) {
    V<T> slope, f;
    Wide<T> total;
    pass_lanes<false>(z, out, most, c, slope, &total);
    R = narrow<T>(total);
    // log R + w: the large parts in double
    const V<T> ln2 = all<T>(0.6931471805599453), e = split<T>(R, f), rest = narrow<T>(total - widen<T>(R)) / R;
    const V<T> log_R = narrow<T>(widen<T>(e) * 0.69314718055994530942 + w) + (log2_part<T>(f) * ln2 + rest);
    const V<T> excess = R > 0 ? log_R : V<T>{};
    size = excess < 0 ? -excess : excess;
    if (!gt_bits<T>(size, enough) || passes++ == 30) return false;
    const V<T> dw = R > 0 ? c.step(R, slope, excess) : V<T>{};
    w += widen<T>(size > enough ? (dw == dw ? dw : V<T>{}) : V<T>{});
    c.move(w);
    return true;
  }
  // `out` becomes p; the lanes whose last pass was no proof.
  unsigned finish(V<T>* out, i64 most) const {
    const V<T> scale = 1 / R;
    for (i64 j = 0; j < most; j++) out[j] *= scale;
    return nle_bits<T>(size, enough) & gt_bits<T>(c.b != 0 ? all<T>(1) : V<T>{}, V<T>{});  // softmax is r / sum r
  }
};
// The same for alpha = 2 or 1.5 in every lane (-inf beyond a row's count), from E. Its last step is kept apart as the
// low part.
template <class T, Kind A> constexpr T LANE_SLOPE = A == SPARSEMAX ? T(1) : T(0.5);
template <Kind A>
constexpr parsimax::Exit LANE_EXIT = A == SPARSEMAX ? parsimax::SPARSEMAX_LANE : parsimax::ENTMAX15_LANE;
template <class T, Kind A, parsimax::Exit EXIT = LANE_EXIT<A>> struct FixedSearch {
  V<T> E = all<T>(1), step{}, live = all<T>(1);
  // One pass over an even number of columns, of which at most `count` are in the support. Whether it goes on.
  [[gnu::always_inline]] bool advance(const V<T>* z, i64 columns, V<T> count) {
    const T TOL = T(tolerance(EXIT, same<T, float> ? 1e-7 : 1e-15));
    const V<T> at = E - (live > 0 ? step : V<T>{});
    V<T> k{}, k1{};
    Wide<T> total;
    auto add = [&](V<T> v, V<T>& sum, V<T>& slope) {
      const V<T> d = positive<T>(v * LANE_SLOPE<T, A> + at);
      if constexpr (A == SPARSEMAX) sum += d, slope += d > 0 ? all<T>(1) : V<T>{};
      else sum += d * d, slope += d;
    };
    for (i64 j = 0; j < columns;) {
      V<T> s{}, s1{};
      for (i64 u = 0; u < COLUMNS && j < columns; u += 2, j += 2) add(z[j], s, k), add(z[j + 1], s1, k1);
      total += widen<T>(s + s1);
    }
    k += k1;
    const V<T> s = narrow<T>(total), over = narrow<T>(total - 1);
    V<T> left, next;
    if constexpr (A == SPARSEMAX) next = over / k, left = over;
    else {  // s - root s without the rounding of s
      const V<T> root = vroot<T>(s);
      next = over * root / ((root + 1) * k);
      left = s < T(1.2) ? count * next * next - 2 * k * next + over : s;
    }
    next = k > 0 ? next : V<T>{};
    E = at;
    step = live > 0 ? next : step;
    live =
        left > TOL ? (at - step < at ? live : V<T>{}) : V<T>{};  // a step below the rounding of E is all that is left
    return gt_bits<T>(live, V<T>{});
  }
};
// The p of such an edge, and the lanes where they do not sum to 1. ESCORT: their roots d instead, divided by the sum of
// them, which moves by `held` times what the edge is off by: (sum p - 1) / (2 sum d).
template <class T, Kind A, bool ESCORT = false>
inline unsigned evaluate_lanes_fixed(const V<T>* z, V<T>* out, i64 columns, V<T> E, V<T> step, V<T> held) {
  Wide<T> total, roots;
  for (i64 j = 0; j < columns;) {
    V<T> some{}, root{};
    for (i64 u = 0; u < COLUMNS && j < columns; u++, j++) {
      const V<T> d = positive<T>(z[j] * LANE_SLOPE<T, A> + E - step), p = A == SPARSEMAX ? d : d * d;
      out[j] = ESCORT ? d : p;
      some += p;
      if constexpr (ESCORT) root += d;
    }
    total += widen<T>(some);
    if constexpr (ESCORT) roots += widen<T>(root);
  }
  const V<T> off = narrow<T>(total - 1);
  V<T> size = off < 0 ? -off : off;
  if constexpr (ESCORT) {
    const V<T> scale = 1 / narrow<T>(roots), moved = held * T(0.5) * scale * scale;
    for (i64 j = 0; j < columns; j++) out[j] *= scale;
    size *= moved > 1 ? moved : all<T>(1);
    if constexpr (same<T, float>) size = moved > T(ESCORT_MOVED) ? all<T>(1) : size;
  }
  return nle_bits<T>(size, all<T>(tolerance(LANE_EXIT<A>, PROOF<T>)));
}
}  // namespace

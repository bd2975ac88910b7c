// The mappings of attention other than entmax, as a policy of one row. A policy solves a row of scores, says what the
// backward keeps of it (STATE numbers, and a positive number per entry of the support), computes that again from scores
// where there was no room, and takes a gradient back through the support. Everything else is attention.inl's.
//
//   sparsegen    sparsemax of scores / (1 - lambda)
//   topk         sparsemax; of a larger support the k largest stay, and share what the others had
//   budget       p = clip(x - tau, 0, 1): lane maxima bound tau from below, bracketed Newton among the candidates
//   r-, tsoftmax p = w e^z / S, w = (1 + z / t)_+, z = x - max; t = max - quantile, by selection, or given
//   normmax      p = d^k / D, d = (z + E)_+, k = 1 / (alpha - 1), sum d^(k + 1) = 1: with r = entmax of scores (k + 1)
//   z at
//                2 - 1 / alpha, d = r^(1 / (k + 1)) and p = r^(1 / alpha) / D. The gradient divides by d: above alpha =
//                2 it is d that is kept, as the power alpha - 1 of a rounded p is not
#pragma once
#include "attention.h"
#include "attention_rows.inl"
#include "select.inl"
#include "topk.inl"
#include "wall.inl"
namespace {
namespace attention {
using parsimax::Attention;

// z, n numbers and -inf up to W more, relative to the entry at place ceil(budget) from the top: tau with
// sum clip(z - tau, 0, 1) = budget lies in [-1, 0]. The sum falls piecewise linearly: Newton inside a bracket ends on
// the exact piece, and a step that does not move it, or a closed bracket, is the proof.
inline double clipped_root(const double* z, i64 n, double budget) {
  using T = double;
  const V<T> one = all<T>(1);
  double low = -1, high = 0, tau = -0.5;
  for (int it = 0; it < 2000; it++) {
    V<T> total{}, inside{}, full{};  // the whole ones are counted apart: a large budget must not drown the rest
    for (i64 i = 0; i < n; i += W<T>) {
      const V<T> d = load<T>(z + i) - tau, v = d < one ? positive<T>(d) : V<T>{};
      total += v;
      full += d < one ? V<T>{} : one;
      inside += v > 0 ? one : V<T>{};
    }
    const double f = (sum<T>(full) - budget) + sum<T>(total), count = sum<T>(inside);
    if (f == 0) break;
    (f > 0 ? low : high) = tau;
    double next = count > 0 ? tau + f / count : low;
    if (!(next > low && next < high)) next = low + (high - low) / 2;
    const double step = next - tau, size = step < 0 ? -step : step;
    tau = next;
    if (size <= tolerance(parsimax::BUDGET_ROW, 2e-16) * (tau < 0 ? -tau : tau) || !(low < high)) break;
  }
  return tau;
}

// The numbers at two places of a few numbers (64 at most), sorted: the largest of those that so many are below. No
// branch depends on a score.
constexpr i64 FEW = 64;
template <class T> inline void two_of_few(const T* v, i64 n, i64 first, i64 second, T& low, T& high) {
  V<T> at_first = all<T>(-INF<double>), at_second = at_first;
  for (i64 i = 0; i < n; i += W<T>) {
    const V<T> x = load<T>(v + i, n - i, INF<T>);
    V<T> below{};
    for (i64 j = 0; j < n; j++) below += x > v[j] ? all<T>(1) : V<T>{};
    const V<T> one = below > T(first) ? all<T>(-INF<double>) : x, two = below > T(second) ? all<T>(-INF<double>) : x;
    at_first = vmax<T>(at_first, one), at_second = vmax<T>(at_second, two);
  }
  low = max<T>(at_first), high = max<T>(at_second);
}
// The same of a row: a sample brackets them, and what lies in the bracket is gathered, until few are left. Exact, as
// the bracket is counted. room: twice `half` numbers, half >= n + 2 W.
template <class T> inline void two_ranks(const T* x, i64 n, i64 first, i64 second, T* room, i64 half, T& low, T& high) {
  constexpr int SAMPLE = 32, MARGIN = 6;
  T* to = room;
  while (n > FEW) {
    T sample[SAMPLE], a, b;
    for (int i = 0; i < SAMPLE; i++) sample[i] = x[n * (2 * i + 1) / (2 * SAMPLE)];
    const int at = int(double(first) / double(n) * SAMPLE), under = at - MARGIN, over = at + MARGIN + 1;
    two_of_few<T>(sample, SAMPLE, under < 0 ? 0 : under, over < SAMPLE ? over : SAMPLE - 1, a, b);
    if (under < 0) a = -INF<T>;
    if (over >= SAMPLE) b = INF<T>;
    const V<T> va = all<T>(a), vb = all<T>(b);
    i64 less = 0, count = 0;
    for (i64 i = 0; i < n; i += W<T>) {
      const unsigned lanes = n - i < W<T> ? (1u << (n - i)) - 1 : ~0u >> (32 - W<T>);
      const V<T> v = load<T>(x + i, n - i, T(0));
      const unsigned below = gt_bits<T>(va, v) & lanes, in = ~(below | gt_bits<T>(v, vb)) & lanes;
      less += __builtin_popcount(below);
      push<T>(to + count, v, in);
      count += __builtin_popcount(in);
    }
    const bool held = first >= less && second < less + count;
    if (held && a == b) {
      low = high = a;
      return;
    }
    if (!held || count > n * 3 / 4) break;  // ties, or an unlucky sample
    x = to, n = count, first -= less, second -= less;
    to = to == room ? room + half : room;
  }
  if (n <= FEW) return two_of_few<T>(x, n, first, second, low, high);
  if (x != to) __builtin_memcpy(to, x, n * sizeof(T));
  low = high = select(to, n, first);
  if (second > first) {  // the least of what selection left to the right
    high = INF<T>;
    for (i64 i = first + 1; i < n; i++) high = to[i] < high ? to[i] : high;
  }
}

// t of the weights (1 + z / t) e^z of the scores above the wall, and in which form an entry is kept: by e^z, from which
// z follows to a rounding of 1, if t is above 1; else by w, from which it follows to a rounding of t. In float a weight
// is off by a rounding of e^z, so that the sum of e^z bounds the error of p, as in cut.inl: where it is more than 8
// times the sum of the weights the row is done in double, and by w. There t is small: e^-t is more than 7 over the
// length.
template <class T> struct Cut {
  static constexpr double LEAST = same<T, float> ? 3e-8 : 1e-17;  // a weight, however close to the wall the score is
  double max, t, sum;                                             // the sum is negative where the row is done in double
  T wall;
  bool in_double() const { return sum < 0; }
  bool by_exponential() const { return t > 1 && !in_double(); }
  // Scores to kept numbers (0 outside of the support), in place; returns sum w e^z. `fine`: whether this type did.
  double keep(T* s, i64 n, bool& fine) const {
    if (t < (same<T, float> ? 1e-30 : 1e-290)) return keep_tiny(s, n);
    return in_double() ? keep_in<double>(s, n, fine) : keep_in<T>(s, n, fine);
  }
  template <class C> double keep_in(T* s, i64 n, bool& fine) const {
    const V<C> m = all<C>(max), hi = all<C>(t), lo = all<C>(t - double(C(t))), inverse = all<C>(1 / t);
    const V<C> least = all<C>(LEAST), edge = all<C>(wall), none{};
    Total<C> total, grown;
    for (i64 j = 0; j < n; j += W<C>) {
      const V<C> x = load<C>(s + j, n - j, -INF<T>), z = x - m, w = vmax<C>((z + hi + lo) * inverse, least);
      const V<C> e_z = exp2<C>(z * C(1.4426950408889634)), e = x > edge ? e_z : none, on = x > edge ? w : none;
      total.add(w * e);
      grown.add(e);
      store<T, C>(s + j, by_exponential() ? e : on, n - j);
    }
    fine = sizeof(C) == 8 || grown.get() <= 8 * total.get();
    return total.get();
  }
  double keep_tiny(T* s, i64 n) const {  // e^z is 1 on the support, and t = 0 keeps the maxima
    double total = 0;
    for (i64 j = 0; j < n; j++) {
      const double y = t > 0 ? (double(s[j]) - max + t) / t : 1;
      s[j] = s[j] > wall ? T(y > LEAST ? y : LEAST) : T(0);
      total += double(s[j]);
    }
    return total;
  }
  // The scores above the wall and their columns; -1 if they are more than half of the row.
  i64 gather(const T* s, i64 n, T* value, int32_t* index) const {
    return gather_some<T>(s, n, T(0), wall, n / 2, value, index);
  }
  // Kept numbers to weights, and to their slopes p / (z + t), if asked for.
  template <bool SLOPE> void weights(const T* kept, T* p, T* slope, i64 n) const {
    const double size = sum < 0 ? -sum : sum, steep = 1 / (size * t), most = same<T, float> ? 1e30 : 1e290;
    const V<T> scale = all<T>(1 / size), inverse = all<T>(t > 0 ? 1 / t : 0), least = all<T>(LEAST);
    const V<T> hi = all<T>(t), lo = all<T>(t - double(T(t)));
    const V<T> rise = all<T>(steep < most ? steep : most);
    for (i64 j = 0; j < n; j += W<T>) {
      const V<T> v = load<T>(kept + j, n - j, T(0)), on = v > 0 ? v : all<T>(1);
      V<T> w = v, e = v;
      if (by_exponential()) {
        const V<T> grown = (log2<T>(on) * T(0.69314718055994530942) + hi + lo) * inverse;
        w = v > 0 ? vmax<T>(grown, least) : V<T>{};
      } else {
        const V<T> e_z = exp2<T>((on - 1) * hi * T(1.4426950408889634));
        e = v > 0 ? e_z : V<T>{};
      }
      store<T, T>(p + j, w * e * scale, n - j);
      if constexpr (SLOPE) store<T, T>(slope + j, w > 0 ? e * rise : V<T>{});
    }
  }
};

template <class T> struct RowMap {
  const Attention& a;
  double param;
  double* state;

  bool is_soft() const {  // tsoftmax without a cut that float could see
    return a.mapping == Attention::tsoftmax && param > (same<T, float> ? 1e30 : 1e290);
  }
  bool is_cut() const { return a.mapping == Attention::rsoftmax || (a.mapping == Attention::tsoftmax && !is_soft()); }
  Cut<T> cut(T wall = 0) const { return {state[0], state[1], state[2], wall}; }
  // The cut of a whole row of scores: the lower of the two that a quantile lies between, or max - t.
  Cut<T> cut_of(const T* s) const {
    if (!(state[1] > 0)) return cut(not_above<T>(state[0], true));
    return cut(a.mapping == Attention::rsoftmax ? s[i64(state[4])] : wall_under<T>(state[0], state[1]));
  }
  double factor() const { return 1 / (1 - param); }  // of sparsegen
  Alpha inner() const { return Alpha(a.mapping == Attention::normmax ? 2 - 1 / param : is_soft() ? 1 : 2); }
  bool keeps_depth() const { return a.mapping == Attention::normmax && param > 2; }
  bool in_double() const { return same<T, float> && keeps_depth(); }
  bool valid() const {
    switch (a.mapping) {
      case Attention::sparsegen:
        return param < 1 && param > -INF<double>;
      case Attention::budget:
        return param >= 0;
      case Attention::rsoftmax:
        return param >= 0 && param <= 1;
      case Attention::tsoftmax:
        return param > 0;
      case Attention::normmax:
        return param > 1 && param < INF<double>;
      default:
        return true;
    }
  }
  // Columns outside of the support that the gradient reaches: the lower one of the two entries that a quantile lies
  // between, and the upper one if its weight is rounded to 0.
  int extras(int32_t* columns) const {
    if (a.mapping != Attention::rsoftmax || !(state[1] > 0)) return 0;
    columns[0] = int32_t(state[4]), columns[1] = int32_t(state[5]);
    return state[7] > 0 ? 2 : 1;
  }

  // The support of a row of scores, which may be overwritten; value and index as in support.inl, room for as many
  // doubles as value has.
  Support<T> solve(T* s, i64 n, T* value, int32_t* index, T* room) {
    const Peak<T> k = peak<T>(s, n);
    Support<T> found{};
    found.status = k.bad || !valid() ? NOT_A_NUMBER : k.max == -INF<T> ? EMPTY : FOUND;
    if (found.status != FOUND) return found;
    state[0] = k.max;
    switch (a.mapping) {
      case Attention::topk:
        return topk(s, n, value, index, room);
      case Attention::budget:
        return budget(s, n, k, value, index, room);
      case Attention::rsoftmax:
        return rsoftmax(s, n, value, index, room);
      case Attention::tsoftmax:
        if (!is_soft()) return tsoftmax(s, n, value, index);
        [[fallthrough]];
      default:
        break;
    }
    if (a.mapping == Attention::normmax) found = norm(s, n, value, index, room);
    else {
      sharpen(s, n);
      found = find_support<T>(s, n, inner(), value, index);
    }
    state[1] = found.edge.E;
    if (inner().kind == GENERAL) state[1] = is_soft() ? found.edge.w : exp(inner().b * found.edge.w);
    return found;
  }
  // Scores to what solve gave, in place.
  void again(T* s, i64 n, void* wide) const {
    bool fine;
    if (is_cut()) cut_of(s).keep(s, n, fine);
    else if (a.mapping == Attention::budget) {
      for (i64 j = 0; j < n; j++) s[j] = clipped(double(s[j]));
    } else if (a.mapping == Attention::topk && state[3] > 0) {
      i64 ties = i64(state[3]);
      const T least = T(state[2]);
      for (i64 j = 0; j < n; j++) {
        const bool in = s[j] > least || (s[j] == least && ties-- > 0);
        s[j] = in ? T(double(s[j]) - state[0] + state[1]) : T(0);
      }
    } else if (a.mapping == Attention::normmax) {
      const double power = 1 / (param - 1);
      const auto run = [&](auto* z) {
        using C = std::remove_pointer_t<decltype(z)>;
        const V<C> hi = all<C>(state[1]), lo = all<C>(state[1] - double(C(state[1]))), scale = all<C>(1 / state[2]);
        for (i64 j = 0; j < n; j += W<C>) {
          const V<C> d = positive<C>(load<C>(s + j, n - j, -INF<T>) - C(state[0]) + hi + lo);
          V<C> kept = d;
          if (!keeps_depth()) kept = (power == 1 ? d : exp2<C>(log2<C>(d > 0 ? d : all<C>(1)) * C(power))) * scale;
          store<T, C>(s + j, d > 0 ? kept : V<C>{}, n - j);
        }
      };
      in_double() ? run((double*)nullptr) : run((T*)nullptr);
    } else {
      sharpen(s, n);
      Edge e;
      e.E = state[1];
      if (is_soft()) e.w = state[1], e.E = 1;
      row_weights<T>(s, n, inner(), 0, e, wide);
    }
  }
  // The same as a list, with the columns that the gradient reaches besides; returns its length.
  i64 recover(T* s, i64 n, T* value, int32_t* index, void* wide) const {
    Support<T> found{};
    found.value = value, found.index = index;
    found.count = is_cut() ? cut_of(s).gather(s, n, value, index) : -1;
    bool fine;
    if (found.count >= 0) cut_of(s).keep(value, found.count, fine);
    else {
      again(s, n, wide);
      __builtin_memcpy(value, s, n * sizeof(T));
      found.index = nullptr, found.count = n;
    }
    i64 count = compact<T>(found, index);
    int32_t extra[2];
    for (int e = 0, more = extras(extra); e < more; e++) value[count] = 0, index[count++] = extra[e];
    return count;
  }
  // What solve gave to weights, in place.
  void weights(T* kept, i64 n) const {
    if (is_cut()) cut().template weights<false>(kept, kept, nullptr, n);
    if (keeps_depth())
      for (i64 j = 0; j < n; j += W<double>)
        store<T, double>(kept + j, shares(load<double>(kept + j, n - j, T(0))), n - j);
  }
  // From dL/dp to dL/dscore in place, on kept numbers (those of columns `at`, or of all of them) whose weights are p.
  // Returns dL/dparameter. slope, rho: room for n numbers and a vector more.
  double gradient(i64 n, const T* kept, T* p, const int32_t* at, T* g, void* slope, void* rho) const {
    if (is_cut()) return cut_gradient(n, kept, p, at, g, (T*)slope);
    if (keeps_depth()) return depth_gradient(n, kept, p, g, (double*)slope, (double*)rho);
    if (p != kept) __builtin_memcpy(p, kept, n * sizeof(T));
    switch (a.mapping) {
      case Attention::budget:
        return budget_gradient(n, p, g);
      case Attention::normmax:
        return norm_gradient(n, p, g, (T*)slope);
      default:
        break;
    }
    weight_gradient<T>(n, inner(), false, p, g, slope, rho);
    if (a.mapping != Attention::sparsegen) return 0;
    double along = 0;  // by lambda: u = z c, du = u c, and on the support u is p and a constant
    const T c = T(factor());
    for (i64 j = 0; j < n; j++) {
      if (p[j] > 0) along += double(p[j]) * double(g[j]);
      g[j] *= c;
    }
    return along * factor();
  }

 private:
  T clipped(double x) const {
    const double d = (x - state[0]) - state[1];
    return T(d > 0 ? (d < 1 ? d : 1) : 0);
  }
  // Scores relative to the maximum, times what makes them those of entmax.
  void sharpen(T* s, i64 n) const {
    const double c = a.mapping == Attention::sparsegen ? factor()
                     : a.mapping == Attention::normmax ? param / (param - 1)
                                                       : 1;
    const T m = T(state[0]), by = T(c < (same<T, float> ? 1e38 : 1e308) ? c : (same<T, float> ? 1e38 : 1e308));
    for (i64 j = 0; j < n; j += W<T>) {
      const V<T> z = load<T>(s + j, n - j, T(0)) - m;
      store<T, T>(s + j, z < 0 ? z * by : z, n - j);
    }
  }
  // Probabilities of entmax to their powers 1 / alpha, divided by the sum of these, which is the result.
  template <class C> double escort(C* p, i64 count) const {
    Total<C> total;
    for (i64 j = 0; j < count; j += W<C>) {
      const V<C> v = load<C>(p + j, count - j, C(0)), on = v > 0 ? v : all<C>(1);
      const V<C> root = param == 2 ? vroot<C>(on) : exp2<C>(log2<C>(on) * C(1 / param)), r = v > 0 ? root : V<C>{};
      total.add(r);
      store<C, C>(p + j, r, count - j);
    }
    const double D = total.get();
    for (i64 j = 0; j < count; j += W<C>) store<C, C>(p + j, load<C>(p + j, count - j, C(0)) * C(1 / D), count - j);
    return D;
  }

  // By how much more the sum that escort divides by moves than that of the p of entmax, both relative to themselves.
  double moved(const T* weight, i64 count) const {
    Total<T> total;
    const T D = T(state[2]);
    for (i64 j = 0; j < count; j += W<T>) {  // d^(k - 1)
      const V<T> v = load<T>(weight + j, count - j, T(0)), on = v > 0 ? v * D : all<T>(1);
      const V<T> power = param == 2 ? all<T>(1) : exp2<T>(log2<T>(on) * T(2 - param));
      total.add(v > 0 ? power : V<T>{});
    }
    return total.get() / (param * state[2] * state[2]);
  }
  // In float, but above alpha = 2, and where the sum of the weights hangs too much on the rounding of each.
  Support<T> norm(T* s, i64 n, T* value, int32_t* index, T* room) {
    T* const scores = room + 2 * (n + PAD);  // behind the doubles
    if constexpr (same<T, float>) __builtin_memcpy(scores, s, n * sizeof(T));
    if (!in_double()) {
      sharpen(s, n);
      const Support<T> found = find_support<T>(s, n, inner(), value, index);
      state[2] = keeps_depth() ? depths(value, found.count) : escort(value, found.count);
      if (same<T, double> || bears_rounding<T>(moved(value, found.count))) return found;
    }
    double *const wide = (double*)room, *const p = (double*)value;
    for (i64 j = 0; j < n; j++) wide[j] = (double(scores[j]) - state[0]) * (param / (param - 1));
    const auto d = find_support<double>(wide, n, inner(), p, index);
    state[2] = keeps_depth() ? depths(p, d.count) : escort(p, d.count);
    narrow_in_place(value, d.count);
    return {d.status, value, d.index, d.count, d.max, d.theta, d.pz, d.edge};
  }
  // The same to d; returns sum d^k. Its padding is 0, as theirs.
  template <class C> double depths(C* p, i64 count) const {
    Total<C> total;
    for (i64 j = 0; j < count; j += W<C>) {
      const V<C> v = load<C>(p + j, count - j, C(0)), l = log2<C>(v > 0 ? v : all<C>(1));
      total.add(v > 0 ? exp2<C>(l * C(1 / param)) : V<C>{});
      store<C, C>(p + j, v > 0 ? exp2<C>(l * C(1 - 1 / param)) : V<C>{}, count - j);
    }
    return total.get();
  }
  V<double> shares(V<double> d) const {  // d to p
    const V<double> p = exp2<double>(log2<double>(d > 0 ? d : all<double>(1)) / (param - 1)) / state[2];
    return d > 0 ? p : V<double>{};
  }

  Support<T> topk(T* s, i64 n, T* value, int32_t* index, T* copy) {
    const i64 k = i64(param);
    Support<T> found = find_support<T>(s, n, Alpha(2), value, index);
    state[1] = found.edge.E, state[2] = state[3] = 0;
    i64 c = compact<T>(found, index);
    if (c > k) {
      for (i64 i = 0; i < c; i++) copy[i] = s[index[i]];
      const T least = select(copy, c, c - k);
      i64 above = 0, kept = 0;
      for (i64 i = 0; i < c; i++) above += s[index[i]] > least;
      i64 ties = k - above;
      state[2] = least, state[3] = double(ties);
      double mass = 0;
      for (i64 i = 0; i < c; i++)
        if (s[index[i]] > least || (s[index[i]] == least && ties-- > 0))
          mass += value[i], value[kept] = value[i], index[kept++] = index[i];
      const double share = (1 - mass) / double(kept);
      for (i64 i = 0; i < kept; i++) value[i] = T(value[i] + share);
      state[1] += share;
      c = kept;
    }
    store<T, T>(value + c, V<T>{});
    found.count = c, found.index = index;
    return found;
  }

  Support<T> budget(T* s, i64 n, const Peak<T>& k, T* value, int32_t* index, T* room) {
    double* z = (double*)room;
    Support<T> found{};
    found.status = FOUND, found.value = value, found.index = index;
    i64 allowed = 0;
    for (i64 j = 0; j < n; j += W<T>)
      allowed += __builtin_popcount(gt_bits<T>(load<T>(s + j, n - j, -INF<T>), all<T>(-INF<double>)));
    state[0] = 0, state[1] = INF<double>;
    if (param == 0) return found;
    const auto place = [](double b) { return i64(b) + (double(i64(b)) < b); };
    // The entry at the place in question of c numbers, all of them relative to it.
    const auto centre = [&](double* v, double* copy, i64 c) {
      __builtin_memcpy(copy, v, c * sizeof(double));
      const double pivot = select(copy, c, c - place(param));
      for (i64 i = 0; i < c; i++) v[i] -= pivot;
      store<double, double>(v + c, all<double>(-INF<double>));
      return pivot;
    };
    double least = -INF<double>;
    if (param < double(allowed)) {
      constexpr i64 L = 4 * W<T>;
      double lanes[L + W<double>], copy[L];
      i64 c = 0;
      for (int u = 0; u < 4; u++)
        for (int j = 0; j < W<T>; j++)
          if (k.lanes[u][j] > -INF<T>) lanes[c++] = double(k.lanes[u][j]);
      if (param < double(c)) {  // fewer numbers, so a lower threshold
        least = centre(lanes, copy, c);
        least += clipped_root(lanes, c, param);
        least -= 1e-6 * (1 + (least < 0 ? -least : least));
      }
    }
    const i64 c = gather_some<T>(s, n, T(0), least, n, value, index);
    for (i64 i = 0; i < c; i++) z[i] = double(value[i]);
    if (param < double(allowed)) {
      state[0] = centre(z, z + c + W<double>, c);
      state[1] = clipped_root(z, c, param);
    } else state[1] = -INF<double>;  // all of them are wanted
    for (i64 i = 0; i < c; i++) value[i] = clipped(double(value[i]));
    store<T, T>(value + c, V<T>{});
    found.count = c;
    return found;
  }
  double budget_gradient(i64 n, const T* p, T* g) const {  // only what lies between 0 and 1 moves
    double total = 0, count = 0;
    for (i64 j = 0; j < n; j++)
      if (p[j] > 0 && p[j] < 1) total += double(g[j]), count++;
    const double mean = count > 0 ? total / count : 0;
    for (i64 j = 0; j < n; j++) g[j] = p[j] > 0 && p[j] < 1 ? T(double(g[j]) - mean) : T(0);
    return mean;
  }

  Support<T> rsoftmax(T* s, i64 n, T* value, int32_t* index, T* room) {
    i64 allowed = 0;
    for (i64 j = 0; j < n; j += W<T>)
      allowed += __builtin_popcount(gt_bits<T>(load<T>(s + j, n - j, -INF<T>), all<T>(-INF<double>)));
    const double place = param * double(allowed - 1);
    const i64 first = i64(place), last = first + 1 < allowed ? first + 1 : first;
    const double part = place - double(first);
    T low, high;
    two_ranks<T>(s, n, n - allowed + first, n - allowed + last, room, (n + 2 * W<T>), low, high);
    const double under = low - state[0], over = high - state[0];  // a difference of doubles can overflow
    const double bottom = under > -INF<double> ? under : -1e300, top = over > -INF<double> ? over : -1e300;
    const double most = same<T, float> ? 1e30 : 1e290;  // from there on the cut is below all that e^z leaves
    state[1] = -(bottom + part * (top - bottom));
    if (state[1] > most) state[1] = most;
    state[3] = part;
    i64 at = 0;
    for (; s[at] != low; at++) {}  // of equal scores, the first
    state[4] = double(at);
    for (at = 0; s[at] != high; at++) {}
    state[5] = double(at);
    state[6] = (top - bottom) * double(allowed - 1);
    const Support<T> found = keep(s, n, value, index);
    T upper = high;  // in the support, unless the quantile is rounded there or e^z is 0
    bool fine;
    cut(state[1] > 0 ? low : high).keep(&upper, 1, fine);
    state[7] = state[5] != state[4] && !(upper > 0);
    return found;
  }
  Support<T> tsoftmax(T* s, i64 n, T* value, int32_t* index) {
    i64 ties = 0, at = 0;
    const T m = T(state[0]);
    for (i64 j = 0; j < n; j++) ties += s[j] == m;
    for (; s[at] != m; at++) {}
    state[1] = param, state[4] = double(at), state[5] = double(ties);
    return keep(s, n, value, index);
  }
  Support<T> keep(T* s, i64 n, T* value, int32_t* index) {
    Support<T> found{};
    found.status = FOUND, found.value = value;
    const i64 count = cut_of(s).gather(s, n, value, index);
    found.index = count < 0 ? nullptr : index;
    found.count = count < 0 ? n : count;
    bool fine = true;
    if (count < 0) __builtin_memcpy(value, s, n * sizeof(T));
    state[2] = cut_of(s).keep(value, found.count, fine);
    if (fine) return found;
    for (i64 j = 0; j < found.count; j++) value[j] = s[count < 0 ? j : index[j]];
    state[2] = -1;
    state[2] = -cut_of(s).keep(value, found.count, fine);
    return found;
  }
  // With q = max - t and c = 1 / (x - q) on the support: dx = p (g - mean)(1 + c), dq = -sum p (g - mean) c, and dq
  // goes to what the cut hangs on: two order statistics, or the maxima. At t = 0 it is softmax over the maxima alone.
  double cut_gradient(i64 n, const T* kept, T* p, const int32_t* at, T* g, T* slope) const {
    cut().template weights<true>(kept, p, slope, n);
    const bool flat = !(state[1] > 0);
    Total<T> along, down;
    for (i64 j = 0; j < n; j += W<T>) {
      const V<T> v = load<T>(p + j, n - j, T(0));
      along.add(v > 0 ? v * load<T>(g + j, n - j, T(0)) : V<T>{});
    }
    const T mean = T(along.get());
    for (i64 j = 0; j < n; j += W<T>) {
      const V<T> v = load<T>(p + j, n - j, T(0)), c = flat ? V<T>{} : load<T>(slope + j);
      const V<T> h = (flat ? v : c) > 0 ? load<T>(g + j, n - j, T(0)) - mean : V<T>{};
      down.add(h * c);
      store<T, T>(g + j, h * (v + c), n - j);
    }
    const double dq = -down.get();
    const auto give = [&](i64 column, double much) {
      i64 j = column;
      if (at)
        for (j = 0; j < n && at[j] != column; j++) {}
      if (j < n) g[j] += T(much);
    };
    if (a.mapping == Attention::rsoftmax) {
      give(i64(state[4]), (1 - state[3]) * dq);
      give(i64(state[5]), state[3] * dq);
      return dq * state[6];
    }
    if (state[5] == 1) give(i64(state[4]), dq);
    else {  // evenly, as amax of torch does
      T top = 0;
      i64 ties = 0;
      for (i64 j = 0; j < n; j++) top = p[j] > top ? p[j] : top;
      for (i64 j = 0; j < n; j++) ties += p[j] == top;
      for (i64 j = 0; j < n; j++) g[j] += p[j] == top ? T(dq / double(ties)) : T(0);
    }
    return -dq;
  }
  // dp_i = u_i (dz_i - <p, dz>) - p_i (...) with u = k p / d: dz = e - p sum e, e = u (g - mean).
  template <class C> double norm_gradient(i64 n, const T* p, T* g, C* e) const {
    const double D = state[2];
    return through_norm(
        n, g, e, [&](i64 j) { return load<C>(p + j, n - j, T(0)); },
        [&](i64, V<C> v) { return log2<C>((v > 0 ? v : all<C>(1)) * C(D)) * C(param - 1); });
  }
  double depth_gradient(i64 n, const T* kept, T* p, T* g, double* e, double* log_d) const {
    using C = double;
    for (i64 j = 0; j < n; j += W<C>) {
      const V<C> d = load<C>(kept + j, n - j, T(0));
      store<C, C>(log_d + j, log2<C>(d > 0 ? d : all<C>(1)));
      store<T, C>(p + j, shares(d), n - j);
    }
    return through_norm(
        n, g, e, [&](i64 j) { return load<C>(p + j, n - j, T(0)); }, [&](i64 j, V<C>) { return load<C>(log_d + j); });
  }
  // weight(j): p from column j on; depth(j, p): log2 d.
  template <class C, class F, class L> double through_norm(i64 n, T* g, C* e, F weight, L depth) const {
    const double k = 1 / (param - 1);
    Total<C> along, all_e, by_log, entropy;
    for (i64 j = 0; j < n; j += W<C>) {
      const V<C> v = weight(j);
      along.add(v > 0 ? v * load<C>(g + j, n - j, T(0)) : V<C>{});
    }
    const C mean = C(along.get());
    for (i64 j = 0; j < n; j += W<C>) {
      const V<C> v = weight(j), h = v > 0 ? load<C>(g + j, n - j, T(0)) - mean : V<C>{};
      const V<C> l = depth(j, v), d = exp2<C>(l), u = v / d * C(k) * h;
      all_e.add(u);
      by_log.add(v * h * l);
      entropy.add(v * d * l);
      store<C, C>(e + j, u);
    }
    const double sum_e = all_e.get(), ln2 = 0.69314718055994530942;
    for (i64 j = 0; j < n; j += W<C>) store<T, C>(g + j, load<C>(e + j) - weight(j) * C(sum_e), n - j);
    return -k * k * ln2 * (by_log.get() - sum_e * entropy.get() / (k + 1));
  }
};
}  // namespace attention
}  // namespace

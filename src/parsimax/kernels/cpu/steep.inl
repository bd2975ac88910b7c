// alpha > 2: p leaves the edge with an infinite slope, so that an entry can appear between two neighbouring doubles w.
// The search closes a bracket around w. What lies near the edge is then measured from one entry c there, the lowest one
// in the support, and not from the maximum: with t = (z - c) / -c, whose differences are exact, and c itself at
// delta = u^b above the edge,
//   y = delta + (1 - delta) t,  E = -b c / (1 - delta),  p = e^w y^(1/b),  p_c = e^w u,
// and the sum is smooth in u, which is found between 0 and 1. Included by support.inl.
#pragma once
#include "proof.inl"
namespace {
// The norm is not convex, so a Newton step can be tiny far from the root. It is taken only inside the bracket, and only
// while two steps halve the bracket.
template <class T> inline void solve_steep(const Alpha& a, const T* z, i64 count, Edge& e) {
  double low = -log(double(count ? count : 1)) - 1e-9, high = e.w, before = INF<double>;
  for (int it = 0; it < 300 && high - low > tolerance(parsimax::STEEP_ROW, 1e-16); it++) {
    double slope, R = pass_general<T>(a, z, count, e.E, slope);
    const double excess = log(R) + e.w;
    if (excess == 0) break;
    (excess > 0 ? high : low) = e.w;
    double next = e.w + log1p(expm1(-a.b * excess) * (R / slope)) / a.b;
    const bool slow = it % 2 && high - low > before / 2;
    if (it % 2) before = high - low;
    if (slow || !(next > low && next < high)) next = low + (high - low) / 2;
    if (next == e.w) break;
    e.w = next;
    e.E = exp(a.b * e.w);
  }
}

struct Brim {
  using T = double;
  const double b, *z;
  const i64 count;
  double c = 0, u = 0, ties = 0;
  bool alone = false;  // only the maxima are in the support

  double top() const { return exp(log(-b * c / (1 - depth())) / b); }
  double depth() const { return u > 0 ? exp(b * log(u)) : 0; }
  // y^(1/b), and 1/y for the slope; c itself has u.
  V<T> share(V<T> v, double delta, V<T>* over = nullptr) const {
    const V<T> t = (v - c) / -c, y = delta + (1 - delta) * t, on = v > c ? y : all<T>(1), r = exp2<T>(log2<T>(on) / b);
    if (over) *over = 1 / on;
    return v > c ? r : v == c ? all<T>(u) : V<T>{};
  }
  // The sum of p less 1 at u, and its slope by u.
  double excess(double& slope) {
    const double delta = depth(), scale = top();
    V<T> mass{}, more{}, equal{}, over;
    for (i64 i = 0; i < count; i += W<T>) {
      const V<T> v = load<T>(z + i), r = share(v, delta, &over);
      mass += r;
      more += v > c ? r * over : V<T>{};
      equal += v == c ? all<T>(1) : V<T>{};
    }
    ties = sum<T>(equal);
    slope = scale * (ties + (u > 0 ? sum<T>(more) * delta / u : 0)) / (1 - delta);
    return scale * sum<T>(mass) - 1;
  }
  // The nearest other entry above c, or below it; 0 or -inf if there is none.
  double neighbour(bool above) const {
    V<T> best = all<T>(above ? 0 : INF<T>);
    for (i64 i = 0; i < count; i += W<T>) {
      const V<T> v = load<T>(z + i), w = above ? v : -v;
      best = ((above ? v > c : v < c) & (w < best)) ? w : best;
    }
    const double nearest = -max<T>(-best);
    return above ? nearest : -nearest;
  }
  // True if the sum of p is 1.
  bool find(double start) {
    const double enough = tolerance(parsimax::STEEP_ROW, 4e-16);
    c = start;
    double slope, off, out = -INF<double>;  // out: known to be outside
    for (i64 moves = 0; moves <= count; moves++) {
      u = 0;
      off = excess(slope);
      if (off > 0) {  // c is outside
        out = c;
        c = neighbour(true);
        if (c == 0) return alone = true;
        continue;
      }
      double low = 0, high = 1;
      for (int it = 0; it < 200 && !small(off, enough); it++) {
        (off > 0 ? high : low) = u;
        double next = u - off / slope;
        if (!(next > low && next < high)) next = low + (high - low) / 2;
        if (next == low || next == high) break;
        u = next;
        off = excess(slope);
      }
      const double below = neighbour(false), delta = depth();
      if (below <= out || !(delta + (1 - delta) * ((below - c) / -c) > 0))
        return small(off, tolerance(parsimax::STEEP_ROW, PROOF<T>));
      c = below;
    }
    return false;
  }
};
// z -> p, in place. True if the sum of p is 1. Away from the edge what rounding leaves of the mass goes along the
// slope.
inline bool evaluate_steep(const Alpha& a, const Edge& e, double* z, i64 count, double& pz) {
  using T = double;
  const double K = a.b / e.E, scale = exp(e.w);
  const Curve<T> curve(a.b, K);
  V<T> y, nearest = all<T>(0.05), brim = all<T>(1), mass{}, slopes{}, along{};
  for (i64 i = 0; i < count; i += W<T>) {
    const V<T> v = load<T>(z + i), far = fma<T>(v, all<T>(K), all<T>(1)), size = far < 0 ? -far : far,
               r = curve.at(v, y);
    brim = size < nearest ? v : brim;
    nearest = size < nearest ? size : nearest;
    mass += r;
    slopes += r / y;
  }
  Brim edge{a.b, z, count};
  double least = 0.05, close = 1;
  for (int j = 0; j < W<T>; j++)
    if (nearest[j] < least) least = nearest[j], close = brim[j];
  const bool measured = close < 0;
  bool proved = measured && edge.find(close);
  const double slope = sum<T>(slopes), delta = measured ? edge.depth() : 0,
               top = edge.alone ? 0
                     : measured ? edge.top()
                                : scale;
  double tilt = (1 - scale * sum<T>(mass)) / slope, equal = 0;
  if (edge.alone)
    for (i64 i = 0; i < count; i++) equal += z[i] == 0;
  const auto weight = [&](V<T> v) {
    if (edge.alone) return v == 0 ? all<T>(1 / equal) : V<T>{};
    if (measured) return edge.share(v, delta) * top;
    const V<T> r = curve.at(v, y);
    return positive<T>(r * top + r / y * tilt);
  };
  for (int turn = 0; turn < 4 && !proved && !measured; turn++) {
    V<T> whole{};
    for (i64 i = 0; i < count; i += W<T>) whole += weight(load<T>(z + i));
    const double off = 1 - sum<T>(whole);
    proved = small(off, tolerance(parsimax::STEEP_ROW, PROOF<T>));
    if (!proved) tilt += off / slope;
  }
  for (i64 i = 0; i < count; i += W<T>) {
    const V<T> v = load<T>(z + i), p = weight(v);
    along += p > 0 ? p * v : V<T>{};
    store<T, T>(z + i, p);
  }
  pz = sum<T>(along);
  return proved;
}
}  // namespace

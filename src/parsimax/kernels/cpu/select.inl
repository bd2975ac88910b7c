// Selection: the number at a place of a sorted row, without sorting it. A guess from a few numbers gives two walls;
// what lies between them is gathered in one pass, and what is left is parted around pivots, a vector at a time.
#pragma once
#include "simd.inl"
namespace {
struct Neighbours {
  double at, next;  // places k and k + 1
};
// The numbers that stand at places k and k + 1 (from 0) when the n numbers of v are sorted upwards, none of them NaN;
// the second is +inf where k is the last. Both arrays are written to, and have room for W numbers more.
template <class T> inline Neighbours select_parted(T* v, T* other, i64 n, i64 k) {
  constexpr i64 L = W<T>;
  T above_all = INF<T>;  // the least of what was left aside as too large: the pivot that it was parted by, or none yet
  for (;;) {
    T a = v[0], b = v[n / 2], c = v[n - 1];
    const T pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
    const V<T> wall = all<T>(pivot);
    i64 less = 0, more = 0;  // the lesser ones move to the front of v: what is written there has been read
    for (i64 i = 0; i < n; i += L) {
      const V<T> x = load<T>(v + i);
      const unsigned there = n - i < L ? (1u << (n - i)) - 1 : (1u << L) - 1;
      const unsigned below = gt_bits<T>(wall, x) & there, above = gt_bits<T>(x, wall) & there;
      push<T>(other + more, x, above);
      more += __builtin_popcount(above);
      push<T>(v + less, x, below);
      less += __builtin_popcount(below);
    }
    if (k < less) n = less, above_all = pivot;
    else if (k < n - more) {
      if (k + 1 < n - more) return {pivot, pivot};
      V<T> least = all<T>(above_all);
      for (i64 i = 0; i < more; i += L) {
        const V<T> x = load<T>(other + i, more - i, INF<T>);
        least = x < least ? x : least;
      }
      return {pivot, -double(max<T>(-least))};
    } else {
      k -= n - more;
      n = more;
      T* const swap = v;
      v = other, other = swap;
    }
  }
}
// Each lane of 8 vectors in order.
template <class T> inline void sort_lanes(V<T>* s) {
  constexpr int PAIRS[19][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {1, 2}, {5, 6},
                                {0, 4}, {1, 5}, {2, 6}, {3, 7}, {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
  for (auto& pair : PAIRS) {
    const V<T> a = s[pair[0]], b = s[pair[1]];
    s[pair[0]] = a < b ? a : b;
    s[pair[1]] = a < b ? b : a;
  }
}
// The same in one array, for attention, which has no room for another; after it v is parted around place k. Hoare's
// selection with the median of three: linear on average.
template <class T> inline T select(T* v, i64 n, i64 k) {
  i64 lo = 0, hi = n - 1;
  while (lo < hi) {
    T a = v[lo], b = v[lo + (hi - lo) / 2], c = v[hi];
    const T pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
    i64 i = lo, j = hi;
    while (i <= j) {
      while (v[i] < pivot) i++;
      while (pivot < v[j]) j--;
      if (i <= j) {
        const T t = v[i];
        v[i++] = v[j];
        v[j--] = t;
      }
    }
    if (k <= j) hi = j;
    else if (k >= i) lo = i;
    else break;
  }
  return v[k];
}
template <class T> struct Walls {
  T low = -INF<T>, high = INF<T>;
};
// Between which numbers place k of a row is likely to stand: the eighths of its lanes, in 8 vectors from all over it.
template <class T, class S> inline Walls<T> guess(const S* x, i64 n, i64 k) {
  constexpr i64 L = W<T>;
  V<T> s[8];
  for (i64 j = 0; j < 8; j++) s[j] = load<T>(x + (n - L) * j / 7);
  sort_lanes<T>(s);
  const double at = 9 * (double(k) + 0.5) / double(n) - 1;  // the j-th of 8 stands at (j + 1) / 9
  const i64 j = at < 0 ? 0 : at > 6 ? 6 : i64(at);
  const T part = T(at < 0 ? 0 : at > 7 ? 1 : at - double(j));
  const V<T> eighth = s[j] + part * (s[j + 1] - s[j]);
  double mean = 0, square = 0, lanes = 0;
  for (i64 l = 0; l < L; l++)
    if (eighth[l] > -INF<T> && eighth[l] < INF<T>) mean += eighth[l], lanes += 1;
  if (lanes < 2) return {};
  mean /= lanes;
  for (i64 l = 0; l < L; l++)
    if (eighth[l] > -INF<T> && eighth[l] < INF<T>) square += (eighth[l] - mean) * (eighth[l] - mean);
  const double reach = (same<T, float> ? 0.9 : 1.3) * __builtin_sqrt(square / (lanes - 1));
  return {at < 0.2 ? -INF<T> : T(mean - reach), at > 6.8 ? INF<T> : T(mean + reach)};
}
constexpr i64 SELECT_WHOLE = 96;  // shorter rows are not worth a guess
// Numbers of a row at places k and k + 1 < n (or k twice at the end); none is NaN. What is gathered between the walls
// is a piece of the sorted row, and the counts prove that place k is in it. `room` and `other` have room for n + PAD
// numbers.
template <class T, class S> inline Neighbours select_neighbours(const S* x, i64 n, i64 k, T* room, T* other) {
  constexpr i64 L = W<T>;
  i64 less = 0, held = 0;
  bool inside = false;
  if (n > SELECT_WHOLE) {
    const Walls<T> walls = guess<T>(x, n, k);
    const V<T> low = all<T>(walls.low), high = all<T>(walls.high);
    for (i64 i = 0; i < n; i += L) {
      const V<T> v = load<T>(x + i, n - i, INF<T>);
      const unsigned there = n - i < L ? (1u << (n - i)) - 1 : (1u << L) - 1;
      const unsigned below = gt_bits<T>(low, v), kept = there & ~below & ~gt_bits<T>(v, high);
      less += __builtin_popcount(below);
      push<T>(room + held, v, kept);
      held += __builtin_popcount(kept);
    }
    inside = less <= k && k < less + held;
  }
  if (!inside) {
    for (i64 i = 0; i < n; i += L) store<T, T>(room + i, load<T>(x + i, n - i, INF<T>));
    less = 0, held = n;
  }
  const Neighbours found = select_parted<T>(room, other, held, k - less);
  if (k + 1 >= n) return {found.at, found.at};
  if (k + 1 < less + held) return found;
  const V<T> wall = all<T>(found.at);  // the next one is the least above the higher wall
  V<T> least = all<T>(INF<T>);
  for (i64 i = 0; i < n; i += L) {
    const V<T> v = load<T>(x + i, n - i, INF<T>), rest = v > wall ? v : all<T>(INF<T>);
    least = rest < least ? rest : least;
  }
  return {found.at, -double(max<T>(-least))};
}
template <class T, class S> inline i64 count_allowed(const S* x, i64 n) {
  i64 count = 0, i = 0;
  const V<T> none = all<T>(-INF<T>);
  for (; i + 4 * W<T> <= n; i += 4 * W<T>) {
    V<T> least = load<T>(x + i);
    for (int u = 1; u < 4; u++) {
      const V<T> v = load<T>(x + i + u * W<T>);
      least = v < least ? v : least;
    }
    if (gt_bits<T>(least, none) == (1u << W<T>)-1) count += 4 * W<T>;
    else
      for (int u = 0; u < 4; u++) count += __builtin_popcount(gt_bits<T>(load<T>(x + i + u * W<T>), none));
  }
  for (; i < n; i += W<T>) count += __builtin_popcount(gt_bits<T>(load<T>(x + i, n - i, -INF<T>), none));
  return count;
}
template <class T, class S> inline double count_of(const S* x, i64 n, T value) {
  i64 others = 0;
  for (i64 i = 0; i < n; i += W<T>)
    others += __builtin_popcount(ne_bits<T>(load<T>(x + i, n - i, -INF<T>), all<T>(value)));
  return double((n + W<T> - 1) / W<T> * W<T> - others);
}
// The first place of a number in a row that has it.
template <class T, class S> inline i64 first_of(const S* x, i64 n, T value) {
  constexpr i64 L = W<T>;
  for (i64 i = 0; i < n; i += L) {
    const unsigned other = ne_bits<T>(load<T>(x + i, n - i, __builtin_nan("")), all<T>(value)), all_of = (1u << L) - 1;
    if (other != all_of) return i + __builtin_ctz(~other);
  }
  return 0;
}
}  // namespace

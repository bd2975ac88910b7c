// Work on one row through its support, shared by attention and the linear loss.
#pragma once
#include "grad.inl"
namespace {
template <class T> inline void fill(T* p, i64 n, T value) {
  for (i64 j = 0; j < n; j++) p[j] = value;
}
// n is a multiple of 16 in the ones below: the callers pad the features.
template <class T, class X, class Y> inline T dot(const X* x, const Y* y, i64 n) {
  V<T> a{}, b{};
  i64 i = 0;
  for (; i + 2 * W<T> <= n; i += 2 * W<T>) {
    a += load<T>(x + i) * load<T>(y + i);
    b += load<T>(x + i + W<T>) * load<T>(y + i + W<T>);
  }
  if (i < n) a += load<T>(x + i) * load<T>(y + i);
  return sum<T>(a + b);
}
template <class T, class S> inline void accumulate(T c, const S* x, T* y, i64 n) {
  for (i64 i = 0; i < n; i += W<T>) store<T, T>(y + i, load<T>(y + i) + c * load<T>(x + i));
}
template <class T, int N, class S>
inline void combine_block(i64 count, const T* c, const int32_t* at, const S* x, i64 stride, T* out) {
  V<T> acc[N] = {};
  for (i64 j = 0; j < count; j++) {
    const S* row = x + at[j] * stride;
#pragma GCC unroll 4
    for (int v = 0; v < N; v++) acc[v] += c[j] * load<T>(row + v * W<T>);
  }
#pragma GCC unroll 4
  for (int v = 0; v < N; v++) store<T, T>(out + v * W<T>, acc[v]);
}
// out = sum_j c[j] x[at[j]]
template <class T, class S>
inline void combine(i64 count, const T* c, const int32_t* at, const S* x, i64 stride, i64 n, T* out) {
  i64 i = 0;
  for (; i + 4 * W<T> <= n; i += 4 * W<T>) combine_block<T, 4>(count, c, at, x + i, stride, out + i);
  for (; i < n; i += W<T>) combine_block<T, 1>(count, c, at, x + i, stride, out + i);
}
// What a matrix product made of c times the rows x, unless a NaN or infinity in them met a coefficient of 0: a row
// whose coefficient is 0 does not count, whatever it holds.
template <class T, class S> inline void mend(T* out, i64 n, i64 count, const T* c, const S* x, i64 stride) {
  V<T> worst{};
  for (i64 i = 0; i < n; i += W<T>) worst += load<T>(out + i) - load<T>(out + i);
  if (__builtin_expect(!ne_bits<T>(worst, worst), 1)) return;
  fill<T>(out, n, 0);
  for (i64 j = 0; j < count; j++)
    if (c[j] != 0) accumulate<T>(c[j], x + j * stride, out, n);
}
// Rows of n numbers in the compute type: as they are, or converted into `room`.
template <class T> struct Block {
  T* data;
  i64 stride;
};
template <class T, class S> inline Block<const T> widened(const S* x, i64 stride, i64 rows, i64 n, T* room) {
  if constexpr (same<S, T>) return {x, stride};
  else {
    for (i64 r = 0; r < rows; r++)
      for (i64 i = 0; i < n; i += W<T>) store<T, T>(room + r * n + i, load<T>(x + r * stride + i));
    return {room, n};
  }
}
template <class T, class S> inline void narrowed(const T* x, i64 count, S* out) {  // count: a multiple of W
  if constexpr (!same<S, T>)
    for (i64 i = 0; i < count; i += W<T>) store<S, T>(out + i, load<T>(x + i));
}

// The weights of a row of scores whose maximum and edge are known, in place; in double where float has no proof of
// their sum. wide: room for n + PAD doubles.
template <class T> inline void row_weights(T* x, i64 n, const Alpha& a, double max, const Edge& edge, void* wide) {
  T* const scores = (T*)wide + (sizeof(double) / sizeof(T) - 1) * n;  // at the end of the room, where no double is yet
  if constexpr (!same<T, double>) __builtin_memcpy(scores, x, n * sizeof(T));
  if (!needs_double<T>(a)) {
    for (i64 j = 0; j < n; j += W<T>) store<T, T>(x + j, load<T>(x + j, n - j, -INF<T>) - T(max));
    if (evaluate<T, false>(a, edge, x, n, x, (double*)nullptr) || same<T, double>) return;
  }
  if constexpr (!same<T, double>) {
    double* const z = (double*)wide;
    for (i64 j = 0; j < n; j++) z[j] = double(scores[j]) - max;  // reads what the double before it does not reach
    store<double, double>(z + n, all<double>(-INF<double>));
    evaluate<double, false>(a, edge, z, n, z, (double*)nullptr);
    for (i64 j = 0; j < n; j++) x[j] = T(z[j]);
  }
}

// What is in the support among the candidates, packed to the front of value and index; without an index the
// candidates are the columns in order.
template <class T> inline i64 compact(const Support<T>& s, int32_t* index) {
  i64 count = 0;
  if (!s.index) {  // what is pushed never reaches beyond what was read
    for (i64 j = 0; j < s.count; j += W<T>) {
      const V<T> v = load<T>(s.value + j, s.count - j, T(0));
      const unsigned in = gt_bits<T>(v, V<T>{});
      push<T>(s.value + count, v, in);
      push_index<T>(index + count, j, in);
      count += __builtin_popcount(in);
    }
    return count;
  }
  for (i64 j = 0; j < s.count; j++) {
    const T p = s.value[j];
    index[count] = s.index[j];
    s.value[count] = p;
    count += p > 0;
  }
  return count;
}
template <class T> inline i64 count_positive(const T* p, i64 n) {
  i64 count = 0;
  for (i64 j = 0; j < n; j += W<T>) count += __builtin_popcount(gt_bits<T>(load<T>(p + j, n - j, T(0)), V<T>{}));
  return count;
}

// From dweight = dL/dp to dL/dscore, in place, by the same sums as the mapping's own backward, in precision C. Returns
// dL/dalpha if BY_ALPHA. slope, rho: room for n numbers of C and a vector more.
template <class C, bool BY_ALPHA, class T>
double weight_gradient(i64 n, const Alpha& alpha, const T* p, T* dweight, C* slope, C* rho) {
  Sums<C> sums;
  for (i64 j = 0; j < n; j += W<C>)
    store<C, C>(slope + j, weigh<C, BY_ALPHA>(alpha, load<C>(p + j, n - j, C(0)), load<C>(dweight + j, n - j, C(0)),
                                              rho + j, sums));
  const double total = sums.s.get(), mean = total == 0 ? 0 : sums.sg.get() / total;
  const double middle = BY_ALPHA && total != 0 ? sums.sr.get() / total : 0;
  Total<C> by_alpha;
  for (i64 j = 0; j < n; j += W<C>) {
    const V<C> s = load<C>(slope + j), d = s * (load<C>(dweight + j, n - j, C(0)) - C(mean)),
               kept = s != 0 ? d : V<C>{};
    if constexpr (BY_ALPHA) by_alpha.add(kept * (load<C>(rho + j) - C(middle)));
    store<T, C>(dweight + j, kept, n - j);
  }
  return by_alpha.get();
}
// Nearly equal weights: by alpha they differ by less than float leaves of the difference.
template <class T> inline bool nearly_equal(i64 n, const T* p) {
  V<T> low = all<T>(n > 0 ? p[0] : 0), high = low;
  for (i64 j = 0; j < n; j += W<T>) {
    const V<T> v = load<T>(p + j, n - j, p[0]);
    low = v < low ? v : low;
    high = v > high ? v : high;
  }
  return -max<T>(-low) > max<T>(high) / 16;
}
template <class T>
double weight_gradient(i64 n, const Alpha& alpha, bool by_alpha, const T* p, T* dweight, void* slope, void* rho) {
  const auto run = [&]<class C>(C* s, C* r) {
    return by_alpha ? weight_gradient<C, true, T>(n, alpha, p, dweight, s, r)
                    : weight_gradient<C, false, T>(n, alpha, p, dweight, s, r);
  };
  return needs_double<T>(alpha) || (same<T, float> && by_alpha && nearly_equal<T>(n, p))
             ? run((double*)slope, (double*)rho)
             : run((T*)slope, (T*)rho);
}
}  // namespace

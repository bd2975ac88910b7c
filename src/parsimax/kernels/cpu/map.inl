// Rows of alpha-entmax forward, one at a time.
#pragma once
#include "support.inl"
#include "rows.h"
namespace {
constexpr double LOG2_E = 1.4426950408889634;
template <class S> struct ComputeOf {
  using type = float;
};
template <> struct ComputeOf<double> {
  using type = double;
};
template <class S> using Compute = typename ComputeOf<S>::type;

inline double at(const parsimax::Param& p, i64 row) {
  if (!p.data) return p.value;
  return p.wide ? ((const double*)p.data)[row * p.stride] : ((const float*)p.data)[row * p.stride];
}
// The scratch of one thread, cut into three arrays of n numbers and their columns.
struct Scratch {
  char* base;
  i64 n;
  i64 part() const { return ((n + 7) / 8 * 8 + parsimax::SCRATCH_PAD) * 8; }  // a multiple of 64 bytes
  template <class T> T* numbers(int k) const { return (T*)(base + k * part()); }
  int32_t* index() const { return (int32_t*)(base + 3 * part()); }
  char* rest() const { return base + 4 * part(); }
};
template <class S> inline void fill_row(S* p, i64 n, double v) {
  const S s = from_float<S>(v);
  for (i64 i = 0; i < n; i++) p[i] = s;
}
template <class T, class S> inline void scatter(S* p, i64 n, const T* value, const int32_t* index, i64 count) {
  __builtin_memset((void*)p, 0, n * sizeof(S));
  for (i64 i = 0; i < count; i++) p[index[i]] = from_float<S>(value[i]);
}

template <class T, class S>
inline void map_row(const S* x, S* p, i64 n, const Alpha& a, const Scratch& sc, DenseRow* keep = nullptr) {
  if constexpr (same<T, float>)
    if (maybe_narrow(x, n, a) && map_narrow(x, p, n, a, keep)) return;
  const Peak<T> k = peak<T>(x, n);
  if (k.bad || a.kind == INVALID) return fill_row(p, n, __builtin_nan(""));
  if (k.max == -INF<T>) return fill_row(p, n, 0);
  T* value = sc.numbers<T>(0);
  Edge e = start<T>(a, k);
  const double least = cut(a, e);
  // Short rows are always gathered: their bits then do not depend on how many forbidden entries follow (segments.cpp).
  const i64 limit = n <= parsimax::SHORT ? n : n / 2;
  const Gathered g = gather<T>(x, n, k.max, least, value, sc.index(), limit);
  if constexpr (same<T, float>)
    if (g.dense && try_wide<false>(a, value, n, e, p, (double*)nullptr)) {
      if (keep) *keep = {a.b / e.E, k.max, DenseRow::WIDE};
      return;
    }
  auto finish = [&] {
    return g.dense ? evaluate<T, false>(a, e, value, n, p, (double*)nullptr)
                   : evaluate<T, false>(a, e, value, g.count, value, (double*)nullptr);
  };
  solve<T>(a, value, g.count, e);
  if (!finish()) {
    if constexpr (same<T, float>) return map_row<double>(x, p, n, a, sc);
    else {
      gather<T>(x, n, k.max, least, value, sc.index(), limit);
      bisect(a, value, g.count, e);
      finish();
    }
  }
  if (!g.dense) scatter(p, n, value, sc.index(), g.count);
}
}  // namespace

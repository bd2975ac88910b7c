// Rows whose numbers lie apart, as along another dimension than the last: some of them at a time are turned into rows
// of their own, and back.
#pragma once
#include "rows.h"
#include "simd.inl"
namespace {
// to[r * n + j] = from[j * apart + r], or the other way round.
template <class S, bool BACK> inline void turn(const S* from, i64 apart, i64 n, i64 rows, S* to) {
  const auto one = [&](i64 r, i64 j) {
    if constexpr (BACK) to[j * apart + r] = from[r * n + j];
    else to[r * n + j] = from[j * apart + r];
  };
  i64 whole_rows = 0, whole = 0;
  if constexpr (same<S, float> || same<S, double>) {
    constexpr i64 L = W<S>;
    whole_rows = rows / L * L, whole = n / L * L;
    for (i64 j = 0; j < whole; j += L)
      for (i64 r = 0; r < whole_rows; r += L) {
        V<S> v[L];
        for (i64 k = 0; k < L; k++) v[k] = load<S>(BACK ? from + (r + k) * n + j : from + (j + k) * apart + r);
        transpose<S>(v);
        for (i64 k = 0; k < L; k++) store<S, S>(BACK ? to + (j + k) * apart + r : to + (r + k) * n + j, v[k]);
      }
  } else {
    constexpr i64 SIDE = 16;  // a line of the cache is read or written whole
    whole_rows = rows / SIDE * SIDE, whole = n / SIDE * SIDE;
    for (i64 j = 0; j < whole; j += SIDE)
      for (i64 r = 0; r < whole_rows; r += SIDE)
        for (i64 a = 0; a < SIDE; a++)
          for (i64 b = 0; b < SIDE; b++) BACK ? one(r + b, j + a) : one(r + a, j + b);
  }
  for (i64 j = 0; j < n; j++)
    for (i64 r = j < whole ? whole_rows : 0; r < rows; r++) one(r, j);
}
template <class S> void take_rows(const void* from, i64 apart, i64 n, i64 rows, void* to) {
  turn<S, false>((const S*)from, apart, n, rows, (S*)to);
}
template <class S> void put_rows(const void* from, i64 apart, i64 n, i64 rows, void* to) {
  turn<S, true>((const S*)from, apart, n, rows, (S*)to);
}
}  // namespace

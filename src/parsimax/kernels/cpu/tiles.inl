// Rows whose numbers lie apart, as along another dimension than the last: some of them at a time are turned into rows
// of their own, and back.
#pragma once
#include "rows.h"
#include "simd.inl"
namespace {
// to[r * stride + j] = from[j * apart + r], or the other way round.
template <class S, bool BACK> inline void turn(const S* from, i64 apart, i64 n, i64 rows, i64 stride, S* to) {
  if (apart == 1)
    for (i64 r = 0; r < rows; r++) __builtin_memcpy((void*)(to + r * stride), from + r * stride, n * sizeof(S));
  if (apart == 1) return;
  const auto one = [&](i64 r, i64 j) {
    if constexpr (BACK) to[j * apart + r] = from[r * stride + j];
    else to[r * stride + j] = from[j * apart + r];
  };
  i64 whole_rows = 0, whole = 0;
  if constexpr (same<S, float> || same<S, double>) {
    constexpr i64 L = W<S>;
    const auto block = [&](i64 j, i64 r) {
      transpose<S>([&](i64 k) { return load<S>(BACK ? from + (r + k) * stride + j : from + (j + k) * apart + r); },
                   [&](i64 k, V<S> v) { store<S, S>(BACK ? to + (j + k) * apart + r : to + (r + k) * stride + j, v); });
    };
    if (n >= L && rows >= L) {  // what is left over is the end of a whole block, some of it for the second time
      whole_rows = rows, whole = n;
      for (i64 j = 0; j < n; j += L)
        for (i64 r = 0; r < rows; r += L) block(j + L <= n ? j : n - L, r + L <= rows ? r : rows - L);
    }
  } else {
    constexpr i64 SIDE = 16;  // a line of the cache is read or written whole
    whole_rows = rows / SIDE * SIDE, whole = n / SIDE * SIDE;
    for (i64 j = 0; j < whole; j += SIDE)
      for (i64 r = 0; r < whole_rows; r += SIDE)
        for (i64 a = 0; a < SIDE; a++)
          for (i64 b = 0; b < SIDE; b++) BACK ? one(r + b, j + a) : one(r + a, j + b);
  }
  for (i64 j = whole_rows < rows ? 0 : whole; j < n; j++)
    for (i64 r = j < whole ? whole_rows : 0; r < rows; r++) one(r, j);
}
template <class S> void take_rows(const void* from, i64 apart, i64 n, i64 rows, i64 stride, void* to) {
  turn<S, false>((const S*)from, apart, n, rows, stride, (S*)to);
}
template <class S> void put_rows(const void* from, i64 apart, i64 n, i64 rows, i64 stride, void* to) {
  turn<S, true>((const S*)from, apart, n, rows, stride, (S*)to);
}
}  // namespace

// Rows whose numbers lie apart, as along another dimension than the last: some of them at a time are turned into rows
// of their own, and back.
#pragma once
#include "rows.h"
#include "simd.inl"
namespace {
// Fewer rows than a vector has numbers, a block of L numbers of each at a time. A vector that is read reaches past
// their numbers, but not past the last of them. The result is how many numbers of each row were turned.
template <int ROWS, bool BACK, class S> inline i64 turn_few(const S* from, i64 apart, i64 n, i64 stride, S* to) {
  constexpr i64 L = W<S>;
  const i64 past = BACK ? 0 : (L - ROWS + apart - 1) / apart, last = n - L - past;  // past apart >= L - ROWS
  for (i64 j = 0; j <= last;) {
    if constexpr (BACK)
      transpose<S>([&](i64 r) { return r < ROWS ? load<S>(from + r * stride + j) : V<S>{}; },
                   [&](i64 k, V<S> v) { __builtin_memcpy(to + (j + k) * apart, &v, ROWS * sizeof(S)); });
    else
      transpose<S>([&](i64 k) { return load<S>(from + (j + k) * apart); },
                   [&](i64 r, V<S> v) {
                     if (r < ROWS) store<S, S>(to + r * stride + j, v);
                   });
    j = j < last && j + L > last ? last : j + L;  // what is left over is the end of a whole block
  }
  return last < 0 ? 0 : last + L;
}
template <int ROWS, bool BACK, class S>
[[gnu::noinline]] i64 turn_few(const S* from, i64 apart, i64 n, i64 rows, i64 stride, S* to) {
  if constexpr (ROWS > 1) {
    if (rows == ROWS) return turn_few<ROWS, BACK, S>(from, apart, n, stride, to);
    return turn_few<ROWS - 1, BACK, S>(from, apart, n, rows, stride, to);
  }
  return 0;
}
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
    if (rows < L) {
      whole_rows = rows, whole = turn_few<L - 1, BACK, S>(from, apart, n, rows, stride, to);
    } else if (n >= L && rows >= L) {  // what is left over is the end of a whole block, some of it for the second time
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

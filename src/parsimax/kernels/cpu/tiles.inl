// Rows whose numbers lie apart, as along another dimension than the last: some of them at a time are turned into rows
// of their own, and back.
#pragma once
#include "rows.h"
#include "simd.inl"
namespace {
template <int L, class S> inline VL<S, L> some(const S* p) {
  VL<S, L> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
// Fewer rows than a vector has numbers, a block of L numbers of each at a time. A vector that is read reaches past
// their numbers, but not past the last of them. The result is how many numbers of each row were turned.
template <int L, int ROWS, bool BACK, class S> inline i64 turn_few(const S* from, i64 apart, i64 n, i64 stride, S* to) {
  const i64 past = BACK ? 0 : (L - ROWS + apart - 1) / apart, last = n - L - past;  // past apart >= L - ROWS
  for (i64 j = 0; j <= last;) {
    if constexpr (BACK)
      transpose<S, L>([&](i64 r) { return r < ROWS ? some<L>(from + r * stride + j) : VL<S, L>{}; },
                      [&](i64 k, VL<S, L> v) { __builtin_memcpy(to + (j + k) * apart, &v, ROWS * sizeof(S)); });
    else
      transpose<S, L>([&](i64 k) { return some<L>(from + (j + k) * apart); },
                      [&](i64 r, VL<S, L> v) {
                        if (r < ROWS) __builtin_memcpy(to + r * stride + j, &v, sizeof v);
                      });
    j = j < last && j + L > last ? last : j + L;  // what is left over is the end of a whole block
  }
  return last < 0 ? 0 : last + L;
}
template <int L, int ROWS, bool BACK, class S>
[[gnu::noinline]] i64 turn_few(const S* from, i64 apart, i64 n, i64 rows, i64 stride, S* to) {
  if constexpr (ROWS > 1) {
    if (rows == ROWS) return turn_few<L, ROWS, BACK, S>(from, apart, n, stride, to);
    return turn_few<L, ROWS - 1, BACK, S>(from, apart, n, rows, stride, to);
  }
  return 0;
}
// All rows, in blocks of L x L. The result is how many numbers of each were turned.
template <int L, bool BACK, class S>
inline i64 turn_blocks(const S* from, i64 apart, i64 n, i64 rows, i64 stride, S* to) {
  if (rows < L) return turn_few<L, L - 1, BACK, S>(from, apart, n, rows, stride, to);
  if (n < L) return 0;
  for (i64 j = 0; j < n; j += L)
    for (i64 r = 0; r < rows;
         r += L) {  // what is left over is the end of a whole block, some of it for the second time
      const i64 a = j + L <= n ? j : n - L, b = r + L <= rows ? r : rows - L;
      transpose<S, L>([&](i64 k) { return some<L>(BACK ? from + (b + k) * stride + a : from + (a + k) * apart + b); },
                      [&](i64 k, VL<S, L> v) {
                        __builtin_memcpy(BACK ? to + (a + k) * apart + b : to + (b + k) * stride + a, &v, sizeof v);
                      });
    }
  return n;
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
  i64 whole = 0;
  if constexpr (same<S, float> || same<S, double>) {
    constexpr int L = W<S>, HALF = L == 16 ? 8 : L;  // few rows, or short ones, fill half a vector
    whole = rows <= HALF || n < L ? turn_blocks<HALF, BACK>(from, apart, n, rows, stride, to)
                                  : turn_blocks<L, BACK>(from, apart, n, rows, stride, to);
  } else {
    whole = turn_blocks<8, BACK>((const uint16_t*)from, apart, n, rows, stride, (uint16_t*)to);
  }
  for (i64 j = whole; j < n; j++)
    for (i64 r = 0; r < rows; r++) one(r, j);
}
template <class S> void take_rows(const void* from, i64 apart, i64 n, i64 rows, i64 stride, void* to) {
  turn<S, false>((const S*)from, apart, n, rows, stride, (S*)to);
}
template <class S> void put_rows(const void* from, i64 apart, i64 n, i64 rows, i64 stride, void* to) {
  turn<S, true>((const S*)from, apart, n, rows, stride, (S*)to);
}
}  // namespace

// Which weights dropout keeps. A counter-based function of (seed, row, key), so that the backward and a second forward
// see the mask of the first without storing it; the same at every instruction set. The seed and the row give 64 bits by
// splitmix64; a key passes two rounds of a 32-bit mixer, half of those bits going in before each, as in the cipher of
// Even and Mansour. _attention/dropout.py has the same function in plain torch.
#pragma once
#include "attention.h"
#include "simd.inl"
namespace {
inline uint64_t splitmix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352d;
  x = (x ^ (x >> 15)) * 0x846ca68b;
  return x ^ (x >> 16);
}
struct Dropout {
  uint32_t first, second, least;
  double scale;
  Dropout(const parsimax::Attention& a, i64 row) : least(a.dropped), scale(a.kept_scale) {
    const uint64_t key = splitmix(a.seed + (uint64_t(row) + 1) * 0x9e3779b97f4a7c15);
    first = uint32_t(key), second = uint32_t(key >> 32);
  }
  bool keeps(uint32_t key) const { return mixed(mixed(key ^ first) ^ second) >= least; }
  // What the weights of these keys (all of them, if `at` is null) are multiplied by: 0 or the scale.
  template <class T> void factors(const int32_t* at, i64 n, T* out) const {
    const T kept = T(scale);
    if (at)
      for (i64 j = 0; j < n; j++) out[j] = keeps(uint32_t(at[j])) ? kept : T(0);
    else
      for (i64 j = 0; j < n; j++) out[j] = keeps(uint32_t(j)) ? kept : T(0);
  }
};
// A dropped number may be infinite or NaN.
template <class T> inline void multiply(T* x, const T* factor, i64 n) {
  for (i64 j = 0; j < n; j++) x[j] = factor[j] != 0 ? x[j] * factor[j] : T(0);
}
}  // namespace

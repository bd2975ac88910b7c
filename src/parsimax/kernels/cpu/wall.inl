// Where the support of a row ends whose scores are cut off at max - t, in the type of the scores.
#pragma once
#include "simd.inl"
namespace {
// The largest number of T that is not above q, or that is below it: x > q if and only if x is above it.
template <class T> inline T not_above(double q, bool below = false) {
  T t = T(q);
  if (!(double(t) > q) && !below) return t;
  if (t == 0) return -T(same<T, float> ? 1e-45 : 5e-324);
  I<T> bits;
  __builtin_memcpy(&bits, &t, sizeof t);
  bits += t > 0 ? -1 : 1;
  __builtin_memcpy(&t, &bits, sizeof t);
  return t;
}
// The largest number of T that is not above max - t.
template <class T> inline T wall_under(double max, double t) {
  const double q = max - t, back = q - max, left = (max - (q - back)) - (t + back);
  return not_above<T>(left < 0 ? not_above<double>(q, true) : q);
}
}  // namespace

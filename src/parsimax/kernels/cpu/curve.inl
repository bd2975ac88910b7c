// exp2, log2 and the curve r(z) = (1 + K z)^(1/b) of alpha-entmax as polynomials on vectors.
//
//   exp2<T>(t)               2^t for t <= 127 (1023), to 1e-7 (float) or 3e-16 (double) relative; 0 far below
//   log2<T>(y)               y > 0 and normal, the same precision relative to max(1, |log2 y|)
//   Curve<T>(alpha - 1, K)   .at(z, y): r and y = 1 + K z for z <= 0; r = 0 where y <= 0 or z = -inf
#pragma once
#include "simd.inl"
#include <type_traits>
namespace {
template <class T> inline V<T> horner(V<T>, V<T> acc) { return acc; }
template <class T, class... R> inline V<T> horner(V<T> x, V<T> acc, double c, R... rest) {  // highest first
  return horner<T>(x, fma<T>(acc, x, all<T>(c)), rest...);
}
template <class T> constexpr double MAGIC = same<T, float> ? 0x1.8p23 : 0x1.8p52;  // adding it rounds to an integer
template <class T> inline V<T> nearest(V<T> t) {
#if defined(__AVX512F__)
  if constexpr (same<T, float>) return _mm512_roundscale_ps(t, 8);
  else return _mm512_roundscale_pd(t, 8);
#else
  const V<T> r = t + T(MAGIC<T>);
  return r - T(MAGIC<T>);
#endif
}
template <class T> constexpr int BIAS = same<T, float> ? 127 : 1023;
// 2^n of n + MAGIC for a whole number n >= -BIAS, and 0 for n = -BIAS. The lowest bits of the sum are those of n; what
// else there is of MAGIC is shifted out.
template <class T> inline V<T> power2(V<T> sum) {
  VL<std::make_unsigned_t<I<T>>, W<T>> bits;
  __builtin_memcpy(&bits, &sum, VB);
  bits = (bits + BIAS<T>) << (same<T, float> ? 23 : 52);
  V<T> power;
  __builtin_memcpy(&power, &bits, VB);
  return power;
}
template <class T>
inline V<T> scale2(V<T> v, V<T> n) {  // v 2^n, n a whole number; flushed to 0 below the normal numbers
#if defined(__AVX512F__)              // what falls below the normal numbers is slow, but not in a lane that is masked
  const unsigned normal = nle_bits<T>(n, all<T>(-BIAS<T>));
  if constexpr (same<T, float>) return _mm512_maskz_scalef_ps(normal, v, n);
  else return _mm512_maskz_scalef_pd(normal, v, n);
#else
  return v * power2<T>(vmax<T>(n, all<T>(-BIAS<T>)) + T(MAGIC<T>));
#endif
}
template <class T> inline V<T> exp2_part(V<T> f) {  // |f| <= 1/2
  if constexpr (same<T, float>)
    return horner<T>(f, all<T>(1.534580752e-04), 1.339993118e-03, 9.618488974e-03, 5.550328777e-02, 2.402264689e-01,
                     6.931472057e-01, 1.0);
  else  // log(2)^k / k!
    return horner<T>(f, all<T>(1.3691488853904128e-12), 2.5678435993488196e-11, 4.4455382718708113e-10,
                     7.0549116208011211e-09, 1.0178086009239699e-07, 1.3215486790144307e-06, 1.5252733804059838e-05,
                     1.5403530393381606e-04, 1.3333558146428443e-03, 9.6181291076284769e-03, 5.5504108664821576e-02,
                     2.4022650695910072e-01, 6.9314718055994529e-01, 1.0);
}
template <class T> inline V<T> exp2(V<T> t) {
#if defined(__AVX512F__)
  const V<T> low = all<T>(same<T, float> ? -160 : -1200);
  t = t > low ? t : low;
  const V<T> n = nearest<T>(t);
  return scale2<T>(exp2_part<T>(t - n), n);
#else
  t = vmax<T>(t, all<T>(-BIAS<T>));
  const V<T> sum = t + T(MAGIC<T>);
  return exp2_part<T>(t - (sum - T(MAGIC<T>))) * power2<T>(sum);
#endif
}
// y = 2^e (1 + f) with f in [-1/4, 1/2)
template <class T> inline V<T> split(V<T> y, V<T>& f) {
  constexpr int MANT = same<T, float> ? 23 : 52;
  constexpr I<T> THREE_QUARTERS = same<T, float> ? I<T>(0x3f400000) : I<T>(0x3fe8000000000000);
  using U = VL<std::make_unsigned_t<I<T>>, W<T>>;  // lanes with y <= 0 wrap around; their result is not used
  U i;
  __builtin_memcpy(&i, &y, VB);
  const U above = i - U(VI<T>{} + THREE_QUARTERS);
  VI<T> e;
  __builtin_memcpy(&e, &above, VB);
  e >>= MANT;
  i -= U(e) << MANT;
  __builtin_memcpy(&f, &i, VB);
  f -= 1;
  return __builtin_convertvector(e, V<T>);
}
template <class T> inline V<T> log2_part(V<T> f) {  // log2(1 + f), precise relative to itself
  if constexpr (same<T, float>)
    return f * horner<T>(f, all<T>(7.806572213e-02), -1.742292175e-01, 2.163247097e-01, -2.427236216e-01,
                         2.881915286e-01, -3.605759187e-01, 4.809020798e-01, -7.213484784e-01, 1.442695032);
  else {  // the series of atanh
    const V<T> s = f / (f + 2), q = s * s;
    constexpr double C = 2.8853900817779268;  // 2 / log(2)
    return s * horner<T>(q, all<T>(C / 25), C / 23, C / 21, C / 19, C / 17, C / 15, C / 13, C / 11, C / 9, C / 7, C / 5,
                         C / 3, C);
  }
}
template <class T> inline V<T> log2(V<T> y) {
  V<T> f;
  const V<T> e = split<T>(y, f);
  return e + log2_part<T>(f);
}

// K in two parts, because 1 + K z is a difference of near numbers at the edge of the support, and a million equal
// scores there move together. 1/b stays in front of the exponent e, the fraction beside it, for the same reason.
template <class T> struct Curve {
  V<T> hi, lo, inv_b;
  bool exponential;  // alpha = 1: r = e^z
  Curve(double b, double K) {
    const double top = same<T, float> ? 1e37 : 1e300;
    if (K > top) K = top;
    hi = all<T>(K);
    lo = all<T>(K - double(T(K)));
    exponential = b == 0;
    inv_b = all<T>(exponential ? 1.4426950408889634 : 1 / b);
  }
  V<T> at(V<T> z, V<T>& y, V<T>* log2_y = nullptr) const {
    V<T> t, f;
    if (exponential) {
      y = all<T>(1);
      return exp2<T>(z * inv_b);
    }
    y = fma<T>(z, lo, fma<T>(z, hi, all<T>(1)));
    const V<T> e = split<T>(y, f), x = fma<T>(z, hi, z * lo);
    f = e == 0 ? x : f;  // near 1 the difference itself, not what is left of it after adding 1
    const V<T> l = log2_part<T>(f), g = l * inv_b;
    if (log2_y) *log2_y = e + l;
    t = fma<T>(e, inv_b, g);
    const V<T> low = all<T>(same<T, float> ? -160 : -1200);
    t = t > low ? t : low;
    const V<T> n = nearest<T>(t), part = fma<T>(e, inv_b, -n) + g;
    const V<T> r = scale2<T>(exp2_part<T>(t > low ? part : V<T>{}), n);
    const V<T> live = y > 0 ? r : V<T>{}, out = z > -INF<T> ? live : V<T>{};
    y = out > 0 ? y : all<T>(1);  // so that r / y is 0 there
    return out;
  }
};
}  // namespace

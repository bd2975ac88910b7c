// Vectors of one instruction set. Included once per translation unit, inside no namespace of its own users: everything
// is in an unnamed namespace and no inline function of std is called, so code compiled for AVX-512 cannot leak into
// what another machine runs. GCC/clang vector types keep reductions explicit: NaN and inf keep their meaning.
//
//   V<T>              a vector of W<T> numbers of the compute type T (float or double)
//   load<T>(p)        W<T> numbers of storage type S (float, double, bf16, f16), widened to T
//   load<T>(p, k, f)  the first k of them, the rest f (0 or -inf); k may be <= 0 or >= W. Never reads past p[k-1]
//   store(p, v), store(p, v, k)   the way back, rounded once to nearest even
//   gt_bits, ne_bits  one bit a lane;  push(out, v, bits) appends the lanes in bits (writes up to W, returns the end)
//   sum(v), max(v)    across the lanes;  fma(a, b, c) has one rounding everywhere (two products in double on SSE2)
#pragma once
#include <cstdint>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
namespace {
#if defined(__AVX512F__)
constexpr int VB = 64;  // bytes in a vector
#elif defined(__AVX2__)
constexpr int VB = 32;
#else
constexpr int VB = 16;  // SSE2, NEON
#endif
// Where GCC goes through memory, or takes half a vector at a time, the instructions are called by name.
#if defined(__AVX512F__) && !defined(PARSIMAX_EMULATE)
#define BY_NAME_512
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define BY_NAME_256
#endif
using i64 = int64_t;
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class T, int LANES> struct Lanes {
  typedef T type __attribute__((vector_size(sizeof(T) * LANES)));
};
template <class T, int LANES> using VL = typename Lanes<T, LANES>::type;
template <class T> constexpr int W = VB / sizeof(T);
template <class T> using V = VL<T, W<T>>;
template <class T> struct IntOf {
  using type = int32_t;
};
template <> struct IntOf<double> {
  using type = int64_t;
};
template <class T> using I = typename IntOf<T>::type;
template <class T> using VI = VL<I<T>, W<T>>;
template <class T> constexpr T INF = T(__builtin_inf());
template <class T> inline V<T> all(double a) { return V<T>{} + T(a); }

inline float scalar_float(float a) { return a; }
inline double scalar_float(double a) { return a; }
inline float scalar_float(bf16 a) {
  const uint32_t u = uint32_t(a.bits) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline float scalar_float(f16 a) {  // the exponent moves by a product, which also makes subnormals right
  const uint32_t sign = uint32_t(a.bits & 0x8000) << 16, mag = uint32_t(a.bits & 0x7fff) << 13;
  float f;
  __builtin_memcpy(&f, &mag, 4);
  f *= 0x1p112f;
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  if (mag >= 0x0f800000) u |= 0x7f800000;
  u |= sign;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline bf16 to_bf16(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  if (f != f) return {uint16_t(u >> 16 | 64)};
  return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline f16 to_f16(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  const uint32_t sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return {uint16_t(sign | 0x7e00)};
  if (u >= 0x477ff000) return {uint16_t(sign | 0x7c00)};
  if (u < 0x38800000) {  // subnormal: adding 0.5 rounds at the right bit
    float a;
    __builtin_memcpy(&a, &u, 4);
    a += 0.5f;
    __builtin_memcpy(&u, &a, 4);
    return {uint16_t(sign | (u - 0x3f000000))};
  }
  return {uint16_t(sign | ((u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13))};
}
template <class S> inline S from_float(double a) {
  if constexpr (same<S, bf16>) return to_bf16(float(a));
  else if constexpr (same<S, f16>) return to_f16(float(a));
  else return S(a);
}

inline V<double> as_doubles(VL<float, W<double>> v) {
#if defined(BY_NAME_512)
  return _mm512_cvtps_pd(v);
#elif defined(BY_NAME_256)
  return _mm256_cvtps_pd(v);
#else
  return __builtin_convertvector(v, V<double>);
#endif
}
template <class T, class S> inline V<T> load(const S* p) {
  constexpr int L = W<T>;
  if constexpr (same<S, T>) {
    V<T> v;
    __builtin_memcpy(&v, p, VB);
    return v;
  } else if constexpr (same<S, float> || same<S, double>) {
    VL<S, L> v;
    __builtin_memcpy(&v, p, sizeof v);
    if constexpr (same<S, float>) return as_doubles(v);
    else return __builtin_convertvector(v, V<T>);
  } else {
    VL<float, L> f;
    if constexpr (same<S, bf16>) {
      VL<uint32_t, L> u;
#if defined(BY_NAME_512)
      if constexpr (L == 16) u = (VL<uint32_t, L>)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
      else
#endif
#if defined(__AVX2__)
          if constexpr (L == 8)
        u = (VL<uint32_t, L>)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
      else
#endif
      {
        VL<uint16_t, L> h;
        __builtin_memcpy(&h, p, sizeof h);
        u = __builtin_convertvector(h, VL<uint32_t, L>);
      }
      u <<= 16;
      __builtin_memcpy(&f, &u, sizeof f);
    } else {
#if defined(__AVX512F__)
      if constexpr (L == 16) f = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
      else f = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
      if constexpr (L == 8) f = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
      else f = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)p));
#else
      for (int j = 0; j < L; j++) f[j] = scalar_float(p[j]);
#endif
    }
    if constexpr (same<T, float>) return f;
    else return as_doubles(f);
  }
}
template <class S, class T> inline void store(S* p, V<T> v) {
  constexpr int L = W<T>;
  if constexpr (same<S, T>) __builtin_memcpy(p, &v, VB);
  else if constexpr (same<S, float> || same<S, double>) {
    const VL<S, L> f = __builtin_convertvector(v, VL<S, L>);
    __builtin_memcpy(p, &f, sizeof f);
  } else {
    VL<float, L> f;
    if constexpr (same<T, float>) f = v;
    else f = __builtin_convertvector(v, VL<float, L>);
    if constexpr (same<S, bf16>) {
      VL<uint32_t, L> u;
      __builtin_memcpy(&u, &f, sizeof u);
      const VL<uint32_t, L> rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 64,
                            bits = f == f ? rounded : quiet;
#if defined(BY_NAME_512)
      if constexpr (L == 16) return _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)bits));
#endif
#if defined(__AVX2__)  // none has more than 16 bits, which GCC does not know
      if constexpr (L == 8) {
        const __m256i wide = (__m256i)bits;
        const __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
        return _mm_storeu_si128((__m128i*)p, h);
      }
#endif
      const VL<uint16_t, L> h = __builtin_convertvector(bits, VL<uint16_t, L>);
      __builtin_memcpy(p, &h, sizeof h);
    } else {
#if defined(__AVX512F__)
      if constexpr (L == 16) _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(f, 0));
      else _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(f, 0));
#elif defined(__AVX2__)
      if constexpr (L == 8) _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(f, 0));
      else _mm_storel_epi64((__m128i*)p, _mm_cvtps_ph(f, 0));
#else
      for (int j = 0; j < L; j++) p[j] = to_f16(f[j]);
#endif
    }
  }
}
template <class T, class S> inline V<T> load(const S* p, i64 k, T fill) {
  if (__builtin_expect(k >= W<T>, 1)) return load<T>(p);
#if defined(__AVX512F__)
  const unsigned m = k < 0 ? 0 : (1u << k) - 1;
  if constexpr (same<S, float> && same<T, float>) return _mm512_mask_loadu_ps(all<T>(fill), m, p);
  if constexpr (same<S, double> && same<T, double>) return _mm512_mask_loadu_pd(all<T>(fill), m, p);
#endif
  S part[W<T>];
  for (int j = 0; j < W<T>; j++) part[j] = from_float<S>(fill);
  for (i64 j = 0; j < k; j++) part[j] = p[j];
  return load<T>(part);
}
template <class S, class T> inline void store(S* p, V<T> v, i64 k) {
  if (__builtin_expect(k >= W<T>, 1)) return store<S, T>(p, v);
#if defined(__AVX512F__)
  const unsigned m = k < 0 ? 0 : (1u << k) - 1;
  if constexpr (same<S, float> && same<T, float>) return _mm512_mask_storeu_ps(p, m, v);
  if constexpr (same<S, double> && same<T, double>) return _mm512_mask_storeu_pd(p, m, v);
#endif
  S part[W<T>];
  store<S, T>(part, v);
  for (i64 j = 0; j < k; j++) p[j] = part[j];
}

enum { GT = 30, NE = 4, NLE = 22 };  // _CMP_GT_OQ, _CMP_NEQ_UQ, _CMP_NLE_UQ
template <class T, int OP> inline unsigned cmp_bits(V<T> a, V<T> b) {
#if defined(__AVX512F__)
  if constexpr (same<T, float>) return _mm512_cmp_ps_mask(a, b, OP);
  else return _mm512_cmp_pd_mask(a, b, OP);
#elif defined(__AVX2__)
  if constexpr (same<T, float>) return _mm256_movemask_ps(_mm256_cmp_ps(a, b, OP));
  else return _mm256_movemask_pd(_mm256_cmp_pd(a, b, OP));
#else
  unsigned m = 0;
  for (int j = 0; j < W<T>; j++) m |= unsigned(OP == GT ? a[j] > b[j] : OP == NE ? a[j] != b[j] : !(a[j] <= b[j])) << j;
  return m;
#endif
}
template <class T> inline unsigned gt_bits(V<T> a, V<T> b) { return cmp_bits<T, GT>(a, b); }
template <class T> inline unsigned nle_bits(V<T> a, V<T> b) { return cmp_bits<T, NLE>(a, b); }  // a > b, or one is NaN
template <class T> inline unsigned ne_bits(V<T> a, V<T> b) { return cmp_bits<T, NE>(a, b); }

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each set of 8 lanes: their numbers in order (a byte each), and the rank of each lane among them.
struct Orders {
  uint64_t lanes[256] = {}, ranks[256] = {};
  constexpr Orders() {
    for (int m = 0; m < 256; m++)
      for (int j = 0, k = 0; j < 8; j++)
        if (m >> j & 1) lanes[m] |= uint64_t(j) << 8 * k, ranks[m] |= uint64_t(k++) << 8 * j;
  }
};
constexpr Orders ORDERS;
inline __m256i eight(uint64_t bytes) { return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(bytes))); }
#endif
template <class T> inline T* push(T* out, V<T> v, unsigned m) {
#if defined(__AVX512F__)
  if constexpr (same<T, float>) {
    const __m512 c = _mm512_maskz_compress_ps(m, v);
    if (__builtin_expect(__builtin_popcount(m) <= 8, 1))
      _mm256_storeu_ps(out, _mm512_castps512_ps256(c));  // seldom crosses a line
    else _mm512_storeu_ps(out, c);
  } else store<T, T>(out, _mm512_maskz_compress_pd(m, v));
  return out + __builtin_popcount(m);
#else
#if defined(__AVX2__)
  if constexpr (same<T, float>) {
    _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(v, eight(ORDERS.lanes[m])));
    return out + __builtin_popcount(m);
  }
#endif
  for (; m; m &= m - 1) *out++ = v[__builtin_ctz(m)];
  return out;
#endif
}
// The way back: what lies at `from` spread to the lanes in m, zeros elsewhere. Reads W numbers, and moves on by those
// it used.
template <class T> inline V<T> spread(const T*& from, unsigned m) {
#if defined(__AVX2__) || defined(__AVX512F__)
  const T* at = from;
#endif
#if defined(__AVX512F__)
  from += __builtin_popcount(m);
  if constexpr (same<T, float>) return _mm512_maskz_expand_ps(m, load<T>(at));
  else return _mm512_maskz_expand_pd(m, load<T>(at));
#else
#if defined(__AVX2__)
  if constexpr (same<T, float>) {
    from += __builtin_popcount(m);
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128),
                  on = _mm256_and_si256(_mm256_set1_epi32(int(m)), bit);
    const __m256 v = _mm256_permutevar8x32_ps(_mm256_loadu_ps(at), eight(ORDERS.ranks[m]));
    return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(on, bit)));
  }
#endif
  V<T> v{};
  for (; m; m &= m - 1) v[__builtin_ctz(m)] = *from++;
  return v;
#endif
}
template <class T> inline void push_index(int32_t* out, i64 first, unsigned m) {  // first + lane, for the lanes in m
#if defined(__AVX512F__)
  if constexpr (same<T, float>) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i v = _mm512_maskz_compress_epi32(m, _mm512_add_epi32(lane, _mm512_set1_epi32(int(first))));
    __builtin_memcpy(out, &v, 64);
  } else {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i v = _mm256_maskz_compress_epi32(m, _mm256_add_epi32(lane, _mm256_set1_epi32(int(first))));
    __builtin_memcpy(out, &v, 32);
  }
#else
#if defined(__AVX2__)
  if constexpr (same<T, float>) {
    const __m256i v = _mm256_add_epi32(eight(ORDERS.lanes[m]), _mm256_set1_epi32(int(first)));
    __builtin_memcpy(out, &v, 32);
    return;
  }
#endif
  for (; m; m &= m - 1) *out++ = int32_t(first + __builtin_ctz(m));
#endif
}

template <class T> inline V<T> vmax(V<T> a, V<T> b) {  // b where either is NaN
#if defined(__AVX512F__)                               // GCC makes two instructions of the other
  if constexpr (same<T, float>) return _mm512_max_ps(a, b);
  else return _mm512_max_pd(a, b);
#elif defined(__AVX2__)
  if constexpr (same<T, float>) return _mm256_max_ps(a, b);
  else return _mm256_max_pd(a, b);
#else
  return a > b ? a : b;
#endif
}
template <class T> inline V<T> positive(V<T> a) { return vmax<T>(a, V<T>{}); }  // NaN becomes 0
template <class T> inline V<T> vroot(V<T> v) {
#if defined(__AVX512F__)
  if constexpr (same<T, float>) return _mm512_sqrt_ps(v);
  else return _mm512_sqrt_pd(v);
#else
  for (int j = 0; j < W<T>; j++) v[j] = same<T, float> ? T(__builtin_sqrtf(float(v[j]))) : T(__builtin_sqrt(v[j]));
  return v;
#endif
}
// The root of v > 0 to a rounding or two; anything where v = 0.
template <class T> inline V<T> vroot_quick(V<T> v) {
#if defined(__AVX512F__)
  if constexpr (same<T, float>) {  // a root takes ten cycles
    const V<T> r = _mm512_rsqrt14_ps(v), s = v * r;
    return s + (r * T(0.5)) * (v - s * s);
  }
#endif
  return vroot<T>(v);
}
// Whether rows of n can be written past the cache: head(p) numbers as usual, then whole vectors by stream(p, v), then
// what is left as usual; stream_fence before others look.
template <class S> inline bool streams(bool wanted, i64 n) {
#if defined(__AVX512F__)
  return wanted && same<S, float> && n >= 64;
#else
  return false;
#endif
}
inline i64 head(const void* p) { return i64(-(uintptr_t)p % VB / sizeof(float)); }
template <class S, class T> inline void stream(S* p, V<T> v) {
#if defined(__AVX512F__)
  if constexpr (same<S, float> && same<T, float>) return _mm512_stream_ps(p, v);
#endif
  store<S, T>(p, v);
}
inline void stream_fence() {
#if defined(__AVX512F__)
  _mm_sfence();
#endif
}
// Asks for the lines of N numbers from p on, which may lie past the end of the memory.
template <i64 N, class S> inline void fetch(const S* p) {
  for (i64 i = 0; i < N; i += 64 / i64(sizeof(S))) __builtin_prefetch(p + i);
}
template <bool MAX, class T, int L> inline T reduce(VL<T, L> v) {
  if constexpr (L == 2) return MAX ? (v[0] > v[1] ? v[0] : v[1]) : v[0] + v[1];
  else {
    VL<T, L / 2> h[2];
    __builtin_memcpy(h, &v, sizeof v);
    return reduce<MAX, T, L / 2>(MAX ? (h[0] > h[1] ? h[0] : h[1]) : h[0] + h[1]);
  }
}
template <class T> inline T sum(V<T> v) { return reduce<false, T, W<T>>(v); }
template <class T> inline T max(V<T> v) { return reduce<true, T, W<T>>(v); }

template <class T> inline V<T> fma(V<T> a, V<T> b, V<T> c) {
#if defined(__AVX512F__)
  if constexpr (same<T, float>) return _mm512_fmadd_ps(a, b, c);
  else return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
  if constexpr (same<T, float>) return _mm256_fmadd_ps(a, b, c);
  else return _mm256_fmadd_pd(a, b, c);
#elif defined(__FP_FAST_FMA) || defined(__aarch64__)
  for (int j = 0; j < W<T>; j++)
    a[j] = same<T, float> ? T(__builtin_fmaf(a[j], b[j], c[j])) : T(__builtin_fma(a[j], b[j], c[j]));
  return a;
#else
  if constexpr (same<T, float>) {
    using D = VL<double, W<T>>;
    return __builtin_convertvector(
        __builtin_convertvector(a, D) * __builtin_convertvector(b, D) + __builtin_convertvector(c, D), V<T>);
  } else {  // Dekker's product, then the sum of three with its rounding errors
    const V<T> sa = a * 134217729.0, ah = sa - (sa - a), al = a - ah;
    const V<T> sb = b * 134217729.0, bh = sb - (sb - b), bl = b - bh;
    const V<T> p = a * b, e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
    const V<T> s = p + c, t = s - p, r = (p - (s - t)) + (c - t);
    return s + (r + e);
  }
#endif
}

// 1 / v: STEPS = 0 is good to 1e-3 (a Newton slope needs no more), 1 to a rounding or two; v normal.
template <class T, int STEPS> inline V<T> recip(V<T> v) {
#if defined(__AVX512F__) || defined(__AVX2__)
  if constexpr (same<T, float>) {
#if defined(__AVX512F__)
    V<T> r = _mm512_rcp14_ps(v);
#else
    V<T> r = _mm256_rcp_ps(v);
    if constexpr (STEPS > 0) r = r * (2 - v * r);  // 12 bits need one step more
#endif
    if constexpr (STEPS > 0) r = r * (2 - v * r);
    return r;
  }
#endif
  return 1 / v;
}

template <class T, int L, int STEP, int... J>
inline void butterfly(VL<T, L>& a, VL<T, L>& b, std::integer_sequence<int, J...>) {
  const VL<T, L> first = __builtin_shufflevector(a, b, (J & STEP ? L + J - STEP : J)...);
  b = __builtin_shufflevector(a, b, (J & STEP ? L + J : J + STEP)...);
  a = first;
}
template <class T, int L, int STEP = 1> [[gnu::always_inline]] inline void butterflies(VL<T, L>* v) {
  if constexpr (STEP < L) {
    for (int i = 0; i < L; i++)
      if (!(i & STEP)) butterfly<T, L, STEP>(v[i], v[i + STEP], std::make_integer_sequence<int, L>{});
    butterflies<T, L, 2 * STEP>(v);
  }
}
// 16-bit numbers in vectors of 16 bytes, where every instruction set can put two vectors together by their numbers.
template <int TIMES = 3> [[gnu::always_inline]] inline void interleave(VL<uint16_t, 8>* v) {
  VL<uint16_t, 8> w[8];
  for (int i = 0; i < 4; i++) {
    w[2 * i] = __builtin_shufflevector(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
    w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i++) v[i] = w[i];
  if constexpr (TIMES > 1) interleave<TIMES - 1>(v);
}
#if defined(__AVX2__)
template <class F, class G> [[gnu::always_inline]] inline void transpose_8(F get, G put) {
  const __m256 r0 = get(0), r1 = get(1), r2 = get(2), r3 = get(3), r4 = get(4), r5 = get(5), r6 = get(6), r7 = get(7);
  const __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
  const __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
  const __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
  const __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
  const __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b4 = _mm256_shuffle_ps(a4, a6, 0x44);
  put(0, _mm256_permute2f128_ps(b0, b4, 0x20)), put(4, _mm256_permute2f128_ps(b0, b4, 0x31));
  const __m256 b1 = _mm256_shuffle_ps(a0, a2, 0xee), b5 = _mm256_shuffle_ps(a4, a6, 0xee);
  put(1, _mm256_permute2f128_ps(b1, b5, 0x20)), put(5, _mm256_permute2f128_ps(b1, b5, 0x31));
  const __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b6 = _mm256_shuffle_ps(a5, a7, 0x44);
  put(2, _mm256_permute2f128_ps(b2, b6, 0x20)), put(6, _mm256_permute2f128_ps(b2, b6, 0x31));
  const __m256 b3 = _mm256_shuffle_ps(a1, a3, 0xee), b7 = _mm256_shuffle_ps(a5, a7, 0xee);
  put(3, _mm256_permute2f128_ps(b3, b7, 0x20)), put(7, _mm256_permute2f128_ps(b3, b7, 0x31));
}
#endif
#if defined(BY_NAME_512)
// Four rows from `row` on, in columns of four: part k of the result has numbers k, k + 4, k + 8 and k + 12 of each.
struct Quad {
  __m512 a, b, c, d;
  template <class F> [[gnu::always_inline]] Quad(F get, int row) {
    const __m512 r0 = get(row), r1 = get(row + 1), r2 = get(row + 2), r3 = get(row + 3);
    const __m512 low = _mm512_unpacklo_ps(r0, r1), high = _mm512_unpackhi_ps(r0, r1);
    const __m512 low2 = _mm512_unpacklo_ps(r2, r3), high2 = _mm512_unpackhi_ps(r2, r3);
    a = _mm512_shuffle_ps(low, low2, 0x44), b = _mm512_shuffle_ps(low, low2, 0xee);
    c = _mm512_shuffle_ps(high, high2, 0x44), d = _mm512_shuffle_ps(high, high2, 0xee);
  }
};
template <class F, class G> [[gnu::always_inline]] inline void transpose_16(F get, G put) {
  const Quad x(get, 0), y(get, 4), z(get, 8), w(get, 12);
  const auto four = [&](int k, __m512 x, __m512 y, __m512 z, __m512 w) {
    const __m512 p = _mm512_shuffle_f32x4(x, y, 0x88), q = _mm512_shuffle_f32x4(z, w, 0x88);
    const __m512 s = _mm512_shuffle_f32x4(x, y, 0xdd), t = _mm512_shuffle_f32x4(z, w, 0xdd);
    put(k, _mm512_shuffle_f32x4(p, q, 0x88)), put(k + 8, _mm512_shuffle_f32x4(p, q, 0xdd));
    put(k + 4, _mm512_shuffle_f32x4(s, t, 0x88)), put(k + 12, _mm512_shuffle_f32x4(s, t, 0xdd));
  };
  four(0, x.a, y.a, z.a, w.a), four(1, x.b, y.b, z.b, w.b), four(2, x.c, y.c, z.c, w.c), four(3, x.d, y.d, z.d, w.d);
}
#endif
// L x L numbers: get(i) is row i, put(j, v) takes column j.
template <class T, int L = W<T>, class F, class G> [[gnu::always_inline]] inline void transpose(F get, G put) {
#if defined(__AVX2__)
  if constexpr (same<T, float> && L == 8) return transpose_8(get, put);
#endif
#if defined(BY_NAME_512)
  if constexpr (same<T, float> && L == 16) return transpose_16(get, put);
#endif
  VL<T, L> v[L];
  for (int i = 0; i < L; i++) v[i] = get(i);
  if constexpr (same<T, uint16_t> && L == 8) interleave(v);
  else butterflies<T, L>(v);
  for (int j = 0; j < L; j++) put(j, v[j]);
}

// As many doubles as V<T> has numbers: what must not be rounded to float between steps. Two vectors, each with its
// name: a vector type longer than a register, or an array of them, GCC keeps in memory.
template <class T> struct Wide {
  V<double> low{}, high{};
  void set(int j, double value) { (j < W<double> ? low[j] : high[j - W<double>]) = value; }
};
template <> struct Wide<double> {
  V<double> low{};
  void set(int j, double value) { low[j] = value; }
};
template <class T, class F, class... R> inline Wide<T> each_part(F f, const Wide<T>& a, const R&... rest) {
  if constexpr (same<T, double>) return {f(a.low, rest.low...)};
  else return {f(a.low, rest.low...), f(a.high, rest.high...)};
}
template <class T> inline Wide<T> operator+(const Wide<T>& a, const Wide<T>& b) {
  return each_part([](V<double> x, V<double> y) { return x + y; }, a, b);
}
template <class T> inline Wide<T> operator-(const Wide<T>& a, const Wide<T>& b) {
  return each_part([](V<double> x, V<double> y) { return x - y; }, a, b);
}
template <class T> inline Wide<T> operator*(const Wide<T>& a, const Wide<T>& b) {
  return each_part([](V<double> x, V<double> y) { return x * y; }, a, b);
}
template <class T> inline Wide<T> operator-(const Wide<T>& a, double b) {
  return each_part([b](V<double> x) { return x - b; }, a);
}
template <class T> inline Wide<T> operator*(const Wide<T>& a, double b) {
  return each_part([b](V<double> x) { return x * b; }, a);
}
template <class T> inline void operator+=(Wide<T>& a, const Wide<T>& b) { a = a + b; }
template <class T> inline Wide<T> widen(V<T> v) {
  if constexpr (same<T, double>) return {v};
  else {
#if defined(BY_NAME_512)
    return {as_doubles(_mm512_castps512_ps256(v)), as_doubles(_mm512_extractf32x8_ps(v, 1))};
#elif defined(BY_NAME_256)
    return {as_doubles(_mm256_castps256_ps128(v)), as_doubles(_mm256_extractf128_ps(v, 1))};
#else
    VL<float, W<double>> half[2];
    __builtin_memcpy(half, &v, sizeof v);
    return {as_doubles(half[0]), as_doubles(half[1])};
#endif
  }
}
template <class T> inline V<T> narrow(const Wide<T>& d) {
  if constexpr (same<T, double>) return d.low;
  else {
#if defined(BY_NAME_512)
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(d.low)), _mm512_cvtpd_ps(d.high), 1);
#elif defined(BY_NAME_256)
    return _mm256_set_m128(_mm256_cvtpd_ps(d.high), _mm256_cvtpd_ps(d.low));
#else
    using Half = VL<float, W<double>>;
    const Half half[2] = {__builtin_convertvector(d.low, Half), __builtin_convertvector(d.high, Half)};
    V<T> v;
    __builtin_memcpy(&v, half, sizeof v);
    return v;
#endif
  }
}
// A sum of many numbers: T inside a block, double between blocks, so that a million equal numbers add up.
template <class T> struct Total {
  Wide<T> parts;
  void add(V<T> v) { parts += widen<T>(v); }
  double get() const {
    if constexpr (same<T, double>) return sum<double>(parts.low);
    else return sum<double>(parts.low + parts.high);
  }
};
// The sum of finite numbers in [0, inf) that must be right to an ulp: doubles are added with what rounding takes away.
template <class T> struct Mass : Total<T> {
  V<double> lost{};
  void add(V<T> v) {
    if constexpr (same<T, double>) {
      V<double>& total = this->parts.low;
      const V<double> more = v - lost, now = total + more;
      lost = (now - total) - more;
      total = now;
    } else Total<T>::add(v);
  }
};
}  // namespace

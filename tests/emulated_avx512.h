// AVX-512 as the kernels use it, in plain vectors: level_avx512.cpp runs on a machine that has AVX2 only, slowly. Included
// before everything else (PARSIMAX_EMULATE=1, setup.py). Approximate instructions are as coarse as their manual allows.
#pragma once
#include <immintrin.h>
#define __AVX512F__ 1
namespace {
namespace emulated {
typedef float F __attribute__((vector_size(64)));
typedef double D __attribute__((vector_size(64)));
typedef int I __attribute__((vector_size(64)));
typedef long long J __attribute__((vector_size(64)));
typedef int H __attribute__((vector_size(32)));
typedef float G __attribute__((vector_size(32)));
template <class V, class F> inline V each(F f) {
  V out{};
  for (unsigned i = 0; i < sizeof(V) / sizeof(out[0]); i++) out[i] = f(i);
  return out;
}
template <class V> inline V load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline F fmadd_ps(const F& a, const F& b, const F& c) {
  return each<F>([&](int i) { return __builtin_fmaf(a[i], b[i], c[i]); });
}
inline D fmadd_pd(const D& a, const D& b, const D& c) {
  return each<D>([&](int i) { return __builtin_fma(a[i], b[i], c[i]); });
}
inline F max_ps(const F& a, const F& b) { return a > b ? a : b; }
inline D max_pd(const D& a, const D& b) { return a > b ? a : b; }
inline F sqrt_ps(const F& a) { return each<F>([&](int i) { return __builtin_sqrtf(a[i]); }); }
inline D sqrt_pd(const D& a) { return each<D>([&](int i) { return __builtin_sqrt(a[i]); }); }
inline F roundscale_ps(const F& a, int) { return each<F>([&](int i) { return __builtin_nearbyintf(a[i]); }); }
inline D roundscale_pd(const D& a, int) { return each<D>([&](int i) { return __builtin_nearbyint(a[i]); }); }
inline double power(double v, double n) {
  const double low = n < -2200 ? -2200 : n;
  return __builtin_ldexp(v, int(__builtin_floor(low > 2200 ? 2200 : low)));
}
inline F scalef_ps(unsigned m, const F& v, const F& n) {
  return each<F>([&](int i) { return m >> i & 1 ? float(power(v[i], n[i])) : 0; });
}
inline D scalef_pd(unsigned m, const D& v, const D& n) {
  return each<D>([&](int i) { return m >> i & 1 ? power(v[i], n[i]) : 0; });
}
inline float coarse(float v) { return v * (1 + 0x1p-14f); }
inline F rcp14_ps(const F& a) { return each<F>([&](int i) { return coarse(1 / a[i]); }); }
inline F rsqrt14_ps(const F& a) { return each<F>([&](int i) { return coarse(1 / __builtin_sqrtf(a[i])); }); }
template <class V> inline unsigned compare(const V& a, const V& b, int op) {
  unsigned m = 0;
  for (unsigned i = 0; i < sizeof(V) / sizeof(a[0]); i++)
    m |= unsigned(op == 30 ? a[i] > b[i] : op == 4 ? a[i] != b[i] : !(a[i] <= b[i])) << i;
  return m;
}
inline unsigned test_epi16(const J& a, const J& b) {
  const J both = a & b;
  short w[32];
  __builtin_memcpy(w, &both, 64);
  unsigned m = 0;
  for (int i = 0; i < 32; i++) m |= unsigned(w[i] != 0) << i;
  return m;
}
template <class V, class T> inline V masked_load(const V& v, unsigned m, const T* p) {
  return each<V>([&](int i) { return m >> i & 1 ? p[i] : v[i]; });
}
template <class V, class T> inline void masked_store(T* p, unsigned m, const V& v) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); i++)
    if (m >> i & 1) p[i] = v[i];
}
template <class V> inline V compress(unsigned m, const V& v) {
  V out{};
  for (unsigned i = 0, k = 0; i < sizeof(V) / sizeof(v[0]); i++)
    if (m >> i & 1) out[k++] = v[i];
  return out;
}
template <class V> inline V expand(unsigned m, V v) {
  V out{};
  for (unsigned i = 0, k = 0; i < sizeof(V) / sizeof(v[0]); i++)
    if (m >> i & 1) out[i] = v[k++];
  return out;
}
inline F two_tables(F a, I at, F b) {
  return each<F>([&](int i) { return at[i] & 16 ? b[at[i] & 15] : a[at[i] & 15]; });
}
inline F from_half(__m256i h) {
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(h)), high = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
  F out;
  __builtin_memcpy(&out, &low, 32);
  __builtin_memcpy((char*)&out + 32, &high, 32);
  return out;
}
inline __m256i to_half(F v) {
  G part[2];
  __builtin_memcpy(part, &v, 64);
  return _mm256_set_m128i(_mm256_cvtps_ph(part[1], 0), _mm256_cvtps_ph(part[0], 0));
}
}  // namespace emulated
}  // namespace
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fmadd_pd emulated::fmadd_pd
#define _mm512_max_ps emulated::max_ps
#define _mm512_max_pd emulated::max_pd
#define _mm512_sqrt_ps emulated::sqrt_ps
#define _mm512_sqrt_pd emulated::sqrt_pd
#undef _mm512_roundscale_ps
#undef _mm512_roundscale_pd
#define _mm512_roundscale_ps emulated::roundscale_ps
#define _mm512_roundscale_pd emulated::roundscale_pd
#define _mm512_maskz_scalef_ps emulated::scalef_ps
#define _mm512_maskz_scalef_pd emulated::scalef_pd
#define _mm512_rcp14_ps emulated::rcp14_ps
#define _mm512_rsqrt14_ps emulated::rsqrt14_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_cmp_pd_mask
#define _mm512_cmp_ps_mask emulated::compare<emulated::F>
#define _mm512_cmp_pd_mask emulated::compare<emulated::D>
#define _mm512_test_epi16_mask emulated::test_epi16
#define _mm512_mask_loadu_ps emulated::masked_load<emulated::F>
#define _mm512_mask_loadu_pd emulated::masked_load<emulated::D>
#define _mm512_mask_storeu_ps emulated::masked_store
#define _mm512_mask_storeu_pd emulated::masked_store
#define _mm512_maskz_compress_ps emulated::compress<emulated::F>
#define _mm512_maskz_compress_pd emulated::compress<emulated::D>
#define _mm512_maskz_compress_epi32(m, v) (__m512i) emulated::compress<emulated::I>(m, (emulated::I)(v))
#define _mm256_maskz_compress_epi32(m, v) (__m256i) emulated::compress<emulated::H>(m, (emulated::H)(v))
#define _mm512_maskz_expand_ps emulated::expand<emulated::F>
#define _mm512_maskz_expand_pd emulated::expand<emulated::D>
#define _mm512_permutex2var_ps(a, at, b) emulated::two_tables(a, (emulated::I)(at), b)
#define _mm512_loadu_ps emulated::load<emulated::F>
#define _mm512_loadu_si512 emulated::load<emulated::J>
#define _mm512_storeu_ps(p, v) (void)__builtin_memcpy(p, &v, 64)
#define _mm512_stream_ps(p, v) (void)__builtin_memcpy(p, &v, 64)
#define _mm512_castps512_ps256(v) emulated::load<emulated::G>(&v)
#define _mm512_add_epi32(a, b) (__m512i)((emulated::I)(a) + (emulated::I)(b))
#define _mm512_set1_epi32(x) (__m512i)(emulated::I{} + (x))
#undef _mm512_setr_epi32
#define _mm512_setr_epi32(...) (__m512i)(emulated::I{__VA_ARGS__})
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(v, mode) emulated::to_half(v)
#define _mm512_cvtph_ps emulated::from_half

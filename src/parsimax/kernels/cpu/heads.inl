// Rows of an output layer: a chunk of logits becomes its losses and, in place, the gradient by the logits.
//
// Softmax and sigsoftmax leave the gradient unnormalised, e^(f - max) f' with the sum taken off at the target: the
// caller scales the narrow factors of the products that follow instead of this wide matrix. A function of pieces needs
// the true gradient here, as its own gradient is summed by piece. NaN and +inf make their row NaN.
#pragma once
#include "curve.inl"
#include "heads.h"
extern "C" {
double log(double) noexcept;
double exp(double) noexcept;
double log1p(double) noexcept;
}
namespace {
namespace heads {
using parsimax::HeadRows;
using parsimax::PieceArgs;
using parsimax::Pieces;
using parsimax::SHARES;
constexpr i64 BLOCK = 1024;  // numbers summed in T before double takes over

// e^x for x <= 88, to a rounding or two; NaN stays NaN.
template <class T> inline V<T> vexp(V<T> x) {
  const V<T> low = all<T>(same<T, float> ? -104 : -746), log2e = all<T>(1.4426950408889634);
  const V<T> rest = all<T>(same<T, float> ? 1.4426950408889634 - double(1.4426950408889634f) : 2.0355273740931033e-17);
  x = x < low ? low : x;
  const V<T> n = nearest<T>(x * log2e);
  return scale2<T>(exp2_part<T>(fma<T>(x, rest, fma<T>(x, log2e, -n))), n);
}
template <class T> inline V<T> vsigmoid(V<T> x) {
  const V<T> u = vexp<T>(x > 0 ? -x : x), r = recip<T, 1>(u + 1);
  return x < 0 ? u * r : r;  // NaN stays NaN
}
template <class T> inline T row_max(const T* z, i64 n) {
  V<T> a = all<T>(-INF<T>), b = a;
  i64 j = 0;
  for (; j + 2 * W<T> <= n; j += 2 * W<T>) a = vmax<T>(load<T>(z + j), a), b = vmax<T>(load<T>(z + j + W<T>), b);
  for (; j < n; j += W<T>) a = vmax<T>(load<T>(z + j, n - j, -INF<T>), a);
  return max<T>(vmax<T>(a, b));
}
// f(j, vector) of every vector of a row gives what is summed; the last one's missing lanes are filled and do not count.
template <class T, class F> inline double row_sum(const T* z, i64 n, T fill, const F& f) {
  double total = 0;
  for (i64 at = 0; at < n; at += BLOCK) {
    const i64 end = at + BLOCK < n ? at + BLOCK : n;
    V<T> s0{}, s1{};
    i64 j = at;
    for (; j + 2 * W<T> <= end; j += 2 * W<T>) s0 += f(j, load<T>(z + j)), s1 += f(j + W<T>, load<T>(z + j + W<T>));
    for (; j < end; j += W<T>) {
      V<T> v = f(j, load<T>(z + j, end - j, fill));
      for (i64 k = end - j; k < W<T>; k++) v[k] = 0;
      s0 += v;
    }
    total += double(sum<T>(s0 + s1));
  }
  return total;
}
template <class T> inline bool skipped(const HeadRows& a, i64 row) {  // no loss, no gradient
  if (a.target[row] >= 0) return false;
  T* z = (T*)a.z + row * a.stride;
  for (i64 j = 0; j < a.n; j++) z[j] = 0;
  if (a.loss) ((T*)a.loss)[row] = 0;
  if (a.inverse) ((T*)a.inverse)[row] = 0;
  return true;
}

template <class T> void softmax(const HeadRows& a, i64 first, i64 last, void*) {
  for (i64 row = first; row < last; row++) {
    if (skipped<T>(a, row)) continue;
    T *z = (T*)a.z + row * a.stride, *own = z + a.target[row];
    const T m = row_max(z, a.n), at = *own;
    const V<T> top = all<T>(m);
    const double s = row_sum<T>(z, a.n, -INF<T>, [&](i64 j, V<T> v) {
      v = vexp<T>(v - top);
      store<T, T>(z + j, v, a.n - j);
      return v;
    });
    ((T*)a.loss)[row] = T(log(s) + (double(m) - double(at)));
    ((T*)a.inverse)[row] = T(1 / s);
    *own -= T(s);
  }
}

// f(x) = x + log sigmoid(x), f' = 2 - sigmoid(x); f increases, so its maximum is at the largest x.
inline double bent(double x) { return x > 0 ? x - log1p(exp(-x)) : 2 * x - log1p(exp(x)); }
inline double sigmoid(double x) { return x > 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }
template <class T> void sigsoftmax(const HeadRows& a, i64 first, i64 last, void*) {
  for (i64 row = first; row < last; row++) {
    if (skipped<T>(a, row)) continue;
    T *z = (T*)a.z + row * a.stride, *own = z + a.target[row];
    const T m = row_max(z, a.n), at = *own;
    // e^(f - f max) = e^(x - m) sigmoid(x) / sigmoid(m); deep below 0, where sigmoids underflow, it is e^(2 (x - m))
    const bool deep = m < -60;
    const V<T> top = all<T>(m), over = all<T>(deep ? 1 : 1 / sigmoid(m));
    const double s = row_sum<T>(z, a.n, -INF<T>, [&](i64 j, V<T> x) {
      const V<T> t = x - top, sig = vsigmoid<T>(x);
      const V<T> w = deep ? vexp<T>(t + t) : vexp<T>(t) * (sig * over);
      store<T, T>(z + j, w * (2 - sig), a.n - j);
      return w;
    });
    ((T*)a.loss)[row] = T(log(s) + (bent(m) - bent(at)));
    ((T*)a.inverse)[row] = T(1 / s);
    *own -= T(s * (2 - sigmoid(at)));
  }
}

// C coefficients of a piece for each lane, as C vectors.
template <class T, int C> struct Lookup {
  const T* table;
  V<T> scale, offset, top;
  explicit Lookup(const Pieces& p)
      : table((const T*)p.table),
        scale(all<T>(p.scale)),
        offset(all<T>(p.offset)),
        top(all<T>(double(p.count - 1))) {}
  void find(V<T> x, VI<T>& piece, V<T>& place) const {
    V<T> u = fma<T>(x, scale, offset);
    u = u > 0 ? u : V<T>{};  // NaN goes to piece 0, at a place that is NaN
    u = u < top ? u : top;
    piece = __builtin_convertvector(u, VI<T>);
    place = fma<T>(x, scale, offset - __builtin_convertvector(piece, V<T>));
  }
  void look(VI<T> piece, V<T>* c) const {
    I<T> at[W<T>];
    __builtin_memcpy(at, &piece, VB);
#if defined(__AVX2__)
    if constexpr (same<T, float> && C == 2) {  // pairs by plain loads, which beat a gather
      const double* t = (const double*)table;
      for (int h = 0; h < W<T> / 8; h++) {
        const I<T>* i = at + 8 * h;
        const __m256 a = _mm256_castpd_ps(_mm256_setr_pd(t[i[0]], t[i[1]], t[i[4]], t[i[5]]));
        const __m256 b = _mm256_castpd_ps(_mm256_setr_pd(t[i[2]], t[i[3]], t[i[6]], t[i[7]]));
        const __m256 even = _mm256_shuffle_ps(a, b, 0x88), odd = _mm256_shuffle_ps(a, b, 0xdd);
        __builtin_memcpy((float*)&c[0] + 8 * h, &even, 32), __builtin_memcpy((float*)&c[1] + 8 * h, &odd, 32);
      }
      return;
    }
#endif
    T part[C][W<T>];
    for (int l = 0; l < W<T>; l++)
      for (int k = 0; k < C; k++) part[k][l] = table[C * i64(at[l]) + k];
    for (int k = 0; k < C; k++) c[k] = load<T>(part[k]);
  }
  // The function, and its slope by x.
  void at(V<T> x, VI<T>& piece, V<T>& f, V<T>& slope) const {
    V<T> place, c[C];
    find(x, piece, place), look(piece, c);
    if constexpr (C == 2) f = fma<T>(place, c[1], c[0]), slope = c[1] * scale;
    else {
      f = fma<T>(place, fma<T>(place, fma<T>(place, c[3], c[2]), c[1]), c[0]);
      slope = fma<T>(place, fma<T>(place, 3 * c[3], 2 * c[2]), c[1]) * scale;
    }
  }
};
// sums[piece] += g place^k, for the first `lanes` lanes.
template <class T, int C> inline void pile(T* sums, VI<T> piece, V<T> g, V<T> place, i64 lanes) {
  I<T> at[W<T>];
  __builtin_memcpy(at, &piece, VB);
  T part[W<T> * C];
  V<T> power = g;
  for (int k = 0; k < C; k++, power *= place)
    for (int l = 0; l < W<T>; l++) part[l * C + k] = power[l];
  for (i64 l = 0; l < lanes && l < W<T>; l++) {
    VL<T, C> sum, own;
    T* to = sums + C * i64(at[l]);
    __builtin_memcpy(&sum, to, sizeof sum), __builtin_memcpy(&own, part + l * C, sizeof own);
    sum += own;
    __builtin_memcpy(to, &sum, sizeof sum);
  }
}
// The row by the function's pieces: f into scratch (and its slope and piece if GRAD); the maximum of f.
template <class T, int C, bool GRAD>
inline T bend(const Lookup<T, C>& look, const T* z, i64 n, T* f, T* slope, I<T>* at) {
  V<T> m = all<T>(-INF<T>);
  for (i64 j = 0; j < n; j += W<T>) {
    VI<T> piece;
    V<T> value, steep;
    look.at(load<T>(z + j, n - j, T(0)), piece, value, steep);
    store<T, T>(f + j, value);
    if constexpr (GRAD) store<T, T>(slope + j, steep), __builtin_memcpy(at + j, &piece, VB);
    for (i64 k = n - j; k < W<T>; k++) value[k] = -INF<T>;
    m = vmax<T>(value, m);
  }
  return max<T>(m);
}
// z <- factor (p - [target]) slope, and the sums by piece; p is to be multiplied by scale.
template <class T, int C>
inline void gradient_row(const HeadRows& a, const Lookup<T, C>& look, i64 row, T* sums, const T* p, double scale,
                         const T* slope, const I<T>* at) {
  T* z = (T*)a.z + row * a.stride;
  const T factor = ((const T*)a.factor)[row];
  const V<T> times = all<T>(scale * double(factor));
  const i64 own = a.target[row], here = own / W<T> * W<T>;
  for (i64 j = 0; j < a.n; j += W<T>) {
    V<T> g = load<T>(p + j) * times;
    if (j == here) g[own - j] -= factor;
    VI<T> piece;
    __builtin_memcpy(&piece, at + j, VB);
    const V<T> place =
        fma<T>(load<T>(z + j, a.n - j, T(0)), look.scale, look.offset - __builtin_convertvector(piece, V<T>));
    pile<T, C>(sums, piece, g, place, a.n - j);
    store<T, T>(z + j, g * load<T>(slope + j), a.n - j);
  }
}
template <class T> struct Scratch {
  T *f, *slope;
  I<T>* at;
  Scratch(void* memory, i64 n) {
    const i64 room = (n + W<T>) / W<T> * W<T>;
    f = (T*)memory, slope = f + room, at = (I<T>*)(slope + room);
  }
};
template <class T> inline double exponentials(T* f, i64 n, T m) {
  const V<T> top = all<T>(m);
  return row_sum<T>(f, n, -INF<T>, [&](i64 j, V<T> v) {
    v = vexp<T>(v - top);
    store<T, T>(f + j, v);
    return v;
  });
}
inline i64 share_start(const HeadRows& a, i64 share) { return a.rows * share / SHARES; }
// The next three go by shares of the rows, each with its own sums.
template <class T, int C> void loss(const HeadRows& a, i64 first, i64 last, void* memory) {
  const Lookup<T, C> look(a.pieces);
  const Scratch<T> s(memory, a.n);
  for (i64 share = first; share < last; share++) {
    T* sums = (T*)a.sums + share * a.pieces.count * C;
    for (i64 row = share_start(a, share); row < share_start(a, share + 1); row++) {
      if (skipped<T>(a, row)) continue;
      const T m = bend<T, C, true>(look, (T*)a.z + row * a.stride, a.n, s.f, s.slope, s.at), own = s.f[a.target[row]];
      const double total = exponentials(s.f, a.n, m);
      ((T*)a.loss)[row] = T(log(total) + (double(m) - double(own)));
      gradient_row<T, C>(a, look, row, sums, s.f, 1 / total, s.slope, s.at);
    }
  }
}
// log sum e^f and f at the target (in the place of the loss and of the inverse); the logits stay.
template <class T, int C> void norms(const HeadRows& a, i64 first, i64 last, void* memory) {
  const Lookup<T, C> look(a.pieces);
  const Scratch<T> s(memory, a.n);
  for (i64 share = first; share < last; share++)
    for (i64 row = share_start(a, share); row < share_start(a, share + 1); row++) {
      ((T*)a.inverse)[row] = ((T*)a.loss)[row] = 0;
      if (a.target[row] < 0) continue;
      const T m = bend<T, C, false>(look, (T*)a.z + row * a.stride, a.n, s.f, nullptr, nullptr);
      ((T*)a.inverse)[row] = s.f[a.target[row]];
      ((T*)a.loss)[row] = T(log(exponentials(s.f, a.n, m)) + double(m));
    }
}
template <class T, int C> void gradient(const HeadRows& a, i64 first, i64 last, void* memory) {
  const Lookup<T, C> look(a.pieces);
  const Scratch<T> s(memory, a.n);
  for (i64 share = first; share < last; share++) {
    T* sums = (T*)a.sums + share * a.pieces.count * C;
    for (i64 row = share_start(a, share); row < share_start(a, share + 1); row++) {
      if (skipped<T>(a, row)) continue;
      bend<T, C, true>(look, (T*)a.z + row * a.stride, a.n, s.f, s.slope, s.at);
      exponentials(s.f, a.n, ((const T*)a.log_sum)[row]);
      gradient_row<T, C>(a, look, row, sums, s.f, 1, s.slope, s.at);
    }
  }
}

// The function alone, of n numbers: forward over any part of them, backward by shares.
template <class T, int C> void forward(const PieceArgs& a, i64 first, i64 last) {
  const Lookup<T, C> look(a.pieces);
  for (i64 j = first; j < last; j += W<T>) {
    VI<T> piece;
    V<T> f, slope;
    look.at(load<T>((const T*)a.x + j, last - j, T(0)), piece, f, slope);
    store<T, T>((T*)a.out + j, f, last - j);
  }
}
template <class T, int C> void backward(const PieceArgs& a, i64 first, i64 last) {
  const Lookup<T, C> look(a.pieces);
  for (i64 share = first; share < last; share++) {
    T* sums = (T*)a.sums + share * a.pieces.count * C;
    const i64 end = a.n * (share + 1) / SHARES;
    for (i64 j = a.n * share / SHARES; j < end; j += W<T>) {
      const V<T> x = load<T>((const T*)a.x + j, end - j, T(0)), g = load<T>((const T*)a.g + j, end - j, T(0));
      VI<T> piece;
      V<T> f, slope, place;
      look.at(x, piece, f, slope), look.find(x, piece, place);
      pile<T, C>(sums, piece, g, place, end - j);
      store<T, T>((T*)a.out + j, g * slope, end - j);
    }
  }
}
}  // namespace heads
}  // namespace
#define BOTH(f) {f<float>, f<double>}
#define EACH(f)                                                \
  {                                                            \
    {f<float, 2>, f<double, 2>}, { f<float, 4>, f<double, 4> } \
  }
const parsimax::HeadKernels parsimax::PARSIMAX_HEADS = {
    BOTH(heads::softmax),  BOTH(heads::sigsoftmax), EACH(heads::loss),     EACH(heads::norms),
    EACH(heads::gradient), EACH(heads::forward),    EACH(heads::backward),
};

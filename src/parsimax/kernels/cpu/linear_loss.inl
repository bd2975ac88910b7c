// Fenchel-Young loss of linear scores. Logits exist for a chunk of rows at a time; the gradient of a row is its support
// minus its target, so only those rows of the weight are touched, unless the support is wide. S is the type of the
// hidden states and the weight, T what it is computed in.
#pragma once
#include "attention_rows.inl"
#include "gemm.inl"
#include "linear_loss.h"
#include "loss.inl"
namespace {
namespace linear_loss {
using parsimax::Chunk;
using parsimax::LinearLoss;
constexpr i64 PANELS = 4;  // packed and multiplied in one task

inline Alpha alpha_of(const LinearLoss& p, i64 row) {
  return Alpha(p.alpha ? p.alpha[row * p.alpha_step] : p.alpha_value);
}

template <class S> void gather_hidden(const LinearLoss& p, const Chunk& c) {
  using T = Compute<S>;
  for (i64 i = 0; i < c.count; i++)
    for (i64 k = 0; k < p.dim; k += W<T>)
      store<T, T>((T*)c.hidden + i * p.dim + k, load<T>((const S*)p.hidden + c.rows[i] * p.hidden_stride + k));
}
#if defined(__AVX512F__)
// Products of bfloat16 two at a time, into float. A pair lies in the place of a float: panels are packed as floats are.
template <int R>
__attribute__((target("avx512bf16"))) void micro_pairs(const char* const* a, const float* b, float* c, i64 ldc,
                                                       i64 depth) {
  __m512 acc[R][NV] = {};
  for (i64 k = 0; k < depth; k++) {
    __m512bh col[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) col[v] = (__m512bh)_mm512_loadu_ps(b + k * NR<float> + v * 16);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      int pair;
      __builtin_memcpy(&pair, a[r] + 4 * k, 4);
      const auto x = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], x, col[v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) _mm512_storeu_ps(c + r * ldc + v * 16, acc[r][v]);
}
template <int R = MR>
inline void pair_rows(i64 rows, const char* const* a, const float* b, float* c, i64 ldc, i64 depth) {
  if constexpr (R > 0) {
    if (rows >= R) return micro_pairs<R>(a, b, c, ldc, depth);
    pair_rows<R - 1>(rows, a, b, c, ldc, depth);
  }
}
inline void score_pairs(const LinearLoss& p, const Chunk& c, i64 task, float* panel) {
  for (i64 j = task * PANELS * NR<float>; j < p.classes && j < (task + 1) * PANELS * NR<float>; j += NR<float>) {
    pack_panel<float>((const float*)((const bf16*)p.weight + j * p.weight_stride), p.weight_stride / 2, p.classes - j,
                      p.dim / 2, panel);
    for (i64 i = 0; i < c.count; i += MR) {
      const char* a[MR];
      const i64 rows = c.count - i < MR ? c.count - i : MR;
      for (i64 r = 0; r < rows; r++) a[r] = (const char*)((const bf16*)p.hidden + c.rows[i + r] * p.hidden_stride);
      pair_rows(rows, a, panel, (float*)c.logits + i * c.stride + j, c.stride, p.dim / 2);
    }
  }
}
#endif
template <class S> void score(const LinearLoss& p, const Chunk& c, i64 task, void* scratch) {
  using T = Compute<S>;
#if defined(__AVX512F__)
  if constexpr (same<S, bf16>)
    if (p.pairs) return score_pairs(p, c, task, (float*)scratch);
#endif
  T* panel = (T*)scratch;
  for (i64 j = task * PANELS * NR<T>; j < p.classes && j < (task + 1) * PANELS * NR<T>; j += NR<T>) {
    pack_panel<T>((const S*)p.weight + j * p.weight_stride, p.weight_stride, p.classes - j, p.dim, panel);
    strip<T, NV>(c.count, (const T*)c.hidden, c.hidden_stride, 1, panel, NR<T>, (T*)c.logits + j, c.stride, p.dim, T(1),
                 Into::set);
  }
}

// cap tanh(x / cap): near 0 by its odd series, where 1 - e^-2x would lose digits.
template <class T> inline V<T> soft_limit(V<T> x, T cap) {
  const V<T> t = x / cap, size = t < 0 ? -t : t, e = exp2<T>(size * T(-2.8853900817779268)), far = (1 - e) / (1 + e),
             s = t * t;
  V<T> near;
  if constexpr (same<T, float>)
    near = horner<T>(s, all<T>(-1382. / 155925), 62. / 2835, -17. / 315, 2. / 15, -1. / 3, 1.);
  else
    near = horner<T>(s, all<T>(-443861162. / 1856156927625.), 6404582. / 10854718875., -929569. / 638512875.,
                     21844. / 6081075, -1382. / 155925, 62. / 2835, -17. / 315, 2. / 15, -1. / 3, 1.);
  const V<T> signed_far = t < 0 ? -far : far;
  return cap * (size < T(same<T, float> ? 0.25 : 0.1) ? t * near : signed_far);
}
template <class T> void finish_logits(const LinearLoss& p, T* z) {
  const T* bias = (const T*)p.bias;
  if (!bias && p.softcap == 0) return;
  for (i64 j = 0; j < p.classes; j += W<T>) {
    V<T> x = load<T>(z + j);
    if (bias) x += load<T>(bias + j, p.classes - j, T(0));
    store<T, T>(z + j, p.softcap == 0 ? x : soft_limit<T>(x, T(p.softcap)));  // rows of logits have room to spare
  }
}

template <class S> void forward(const LinearLoss& p, const Chunk& c, i64 i, void* scratch) {
  using T = Compute<S>;
  const i64 row = c.rows[i], target = p.target[row];
  T* z = (T*)c.logits + i * c.stride;
  T& loss = ((T*)p.loss)[row];
  double* state = p.state + 3 * row;
  state[0] = state[1] = state[2] = 0;
  p.count[row] = 0;
  loss = 0;
  if (target < 0) return;
  finish_logits<T>(p, z);
  const Alpha alpha = alpha_of(p, row);
  T* value = (T*)scratch;
  int32_t* index = (int32_t*)((double*)scratch + p.classes + PAD);
  const auto found = find_support<T>(z, p.classes, alpha, value, index);
  if (found.status == NOT_A_NUMBER || alpha.alpha == 0) {
    p.count[row] = -1;
    loss = T(__builtin_nan(""));
    state[2] = __builtin_nan("");
    return;
  }
  if (found.status == EMPTY) {
    loss = INF<T>;
    return;
  }
  const double gap = found.max - double(z[target]);
  const double rest = alpha.kind == ARGMAX ? 0 : (alpha.b * found.pz + found.theta) / alpha.alpha;
  loss = T(gap + rest > 0 ? gap + rest : 0);
  state[0] = found.max;
  state[1] = alpha.kind == GENERAL ? found.edge.w : found.edge.E;
  const i64 count = compact<T>(found, index);
  store<T, T>(value + count, V<T>{});
  if (p.alpha) state[2] = entropy_slope<T>(alpha, value, count);
  p.count[row] = int32_t(count);
  if (count <= p.cap) {
    __builtin_memcpy(p.index + row * p.cap, index, count * sizeof(int32_t));
    __builtin_memcpy((T*)p.support + row * p.cap, value, count * sizeof(T));
  }
}

// d softcap(x) / dx at the logit of (row, column), computed again: the forward keeps no logits.
template <class S, class T = Compute<S>> T cap_slope(const LinearLoss& p, i64 row, i64 column) {
  T x = dot<T>((const S*)p.hidden + row * p.hidden_stride, (const S*)p.weight + column * p.weight_stride, p.dim);
  if (p.bias) x += ((const T*)p.bias)[column];
  const T t = soft_limit<T>(x - V<T>{}, T(p.softcap))[0] / T(p.softcap);
  return 1 - t * t;
}

// In the compute type, then written once in the type it is stored in. room: n numbers, used only if the types differ.
template <class T, class S>
inline void combine_into(i64 count, const T* c, const int32_t* at, const S* x, i64 stride, i64 n, S* out, T* room) {
  T* sum = same<S, T> ? (T*)out : room;
  combine<T>(count, c, at, x, stride, n, sum);
  narrowed(sum, n, out);
}

template <class S> void sparse_row(const LinearLoss& p, i64 row, void* scratch) {
  using T = Compute<S>;
  const i64 target = p.target[row], known = p.count[row], width = p.cap + 1;
  int32_t* column = p.column + row * width;
  T* c = (T*)p.coefficient + row * width;
  i64 n = 0;
  const bool kept = target >= 0 && known >= 0 && known <= p.cap;  // 0: all classes are forbidden
  if (kept) {
    bool seen = false;
    const T g = T(p.grad[row]);
    for (; n < known; n++) {
      column[n] = p.index[row * p.cap + n];
      c[n] = ((const T*)p.support)[row * p.cap + n];
      if (column[n] == target) c[n] -= 1, seen = true;
      c[n] *= g;
    }
    if (!seen) column[n] = int32_t(target), c[n++] = -g;
    if (p.softcap != 0)
      for (i64 j = 0; j < n; j++) c[j] *= cap_slope<S>(p, row, column[j]);
  }
  p.entries[row] = int32_t(n);
  combine_into<T>(n, c, column, (const S*)p.weight, p.weight_stride, p.dim, (S*)p.dhidden + row * p.dim, (T*)scratch);
}

template <class S> void sort_columns(const LinearLoss& p) {
  using T = Compute<S>;
  const i64 width = p.cap + 1;
  i64* next = p.start + 1;  // where the next entry of a column goes; in the end, where the column ends
  fill<i64>(p.start, p.classes + 2, 0);
  for (i64 row = 0; row < p.rows; row++)
    for (i64 j = 0; j < p.entries[row]; j++) next[p.column[row * width + j] + 1]++;
  for (i64 j = 0; j < p.classes; j++) next[j + 1] += next[j];
  for (i64 row = 0; row < p.rows; row++)
    for (i64 j = 0; j < p.entries[row]; j++) {
      const i64 to = next[p.column[row * width + j]]++;
      p.row_of[to] = int32_t(row);
      ((T*)p.sorted)[to] = ((const T*)p.coefficient)[row * width + j];
    }
}
template <class S> void sparse_columns(const LinearLoss& p, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  for (i64 j = first; j < last; j++) {
    const i64 from = p.start[j], n = p.start[j + 1] - from;
    const T* c = (const T*)p.sorted + from;
    const auto run = [&](auto* out, auto sum) {
      if (n == 0) __builtin_memset((void*)out, 0, p.dim * sizeof *out);
      else sum(out);
    };
    if (p.narrow)
      run((S*)p.dweight + j * p.dim, [&](S* out) {
        combine_into<T>(n, c, p.row_of + from, (const S*)p.hidden, p.hidden_stride, p.dim, out, (T*)scratch);
      });
    else
      run((T*)p.dweight + j * p.dim,
          [&](T* out) { combine<T>(n, c, p.row_of + from, (const S*)p.hidden, p.hidden_stride, p.dim, out); });
    if (!p.dbias) continue;
    T sum = 0;
    for (i64 i = 0; i < n; i++) sum += c[i];
    ((T*)p.dbias)[j] = sum;
  }
}

// Logits of a row to their gradient, in place.
template <class S> void wide_row(const LinearLoss& p, const Chunk& c, i64 i, void* scratch) {
  using T = Compute<S>;
  const i64 row = c.rows[i], target = p.target[row];
  T* z = (T*)c.logits + i * c.stride;
  if (p.count[row] < 0) return fill<T>(z, p.classes, T(__builtin_nan("")));
  finish_logits<T>(p, z);
  T* slope = nullptr;
  if (p.softcap != 0) {
    slope = (T*)((double*)scratch + p.classes + PAD);
    for (i64 j = 0; j < p.classes; j++) slope[j] = 1 - z[j] / T(p.softcap) * (z[j] / T(p.softcap));
  }
  const Alpha alpha = alpha_of(p, row);
  const double* state = p.state + 3 * row;
  Edge edge;
  if (alpha.kind == GENERAL) edge.w = state[1], edge.E = exp(alpha.b * state[1]);
  else edge.E = state[1];
  row_weights<T>(z, p.classes, alpha, state[0], edge, scratch);
  z[target] -= 1;
  const T g = T(p.grad[row]);
  for (i64 j = 0; j < p.classes; j++) z[j] *= slope ? g * slope[j] : g;
}
template <class S> void wide_hidden(const LinearLoss& p, const Chunk& c, i64 first, i64 last) {
  using T = Compute<S>;
  product<T>(last - first, p.dim, p.classes, (const T*)c.logits + first * c.stride, c.stride, 1, (const S*)p.weight,
             p.weight_stride, (T*)c.dhidden + first * p.dim, p.dim, Into::set);
}
template <class S> void wide_weight(const LinearLoss& p, const Chunk& c, i64 first, i64 last) {
  using T = Compute<S>;
  product<T>(last - first, p.dim, c.count, (const T*)c.logits + first, 1, c.stride, (const T*)c.hidden, c.hidden_stride,
             (T*)p.dweight + first * p.dim, p.dim, Into::add);
  if (p.dbias)
    for (i64 i = 0; i < c.count; i++)
      for (i64 j = first; j < last; j++) ((T*)p.dbias)[j] += ((const T*)c.logits)[i * c.stride + j];
}
template <class S> void wide_done(const LinearLoss& p, const Chunk& c) {
  using T = Compute<S>;
  for (i64 i = 0; i < c.count; i++)
    for (i64 k = 0; k < p.dim; k += W<T>)
      store<S, T>((S*)p.dhidden + c.rows[i] * p.dim + k, load<T>((const T*)c.dhidden + i * p.dim + k));
}
}  // namespace linear_loss
}  // namespace

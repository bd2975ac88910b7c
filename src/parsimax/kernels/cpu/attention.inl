// Attention over exact sparse weights. A tile of scores is a matrix product in cache; each of its rows gives its
// support, and only the support touches the values. Rows whose support is a large part of the keys go through matrix
// products instead, so that the dense end costs about what softmax costs. A key with weight 0 does not count, whatever
// its value holds. S is the type of q, k, v, out and dq, T what it is computed in.
#pragma once
#include "attention.h"
#include "attention_maps.inl"
#include "attention_rows.inl"
#include "dropout.inl"
#include "gemm.inl"
#include "short.inl"

namespace {
namespace attention {
using parsimax::Attention;
using parsimax::View;

template <class T> const T* at(const View<const void>& x, i64 b, i64 h, i64 l) {
  return (const T*)x.data + b * x.b + h * x.h + l * x.l;
}
inline double param_of(const Attention& a, i64 b, i64 h, i64 l) {
  return a.alpha.data ? a.alpha.data[b * a.alpha.b + h * a.alpha.h + l * a.alpha.l] : a.alpha_value;
}
inline Alpha alpha_of(const Attention& a, i64 b, i64 h, i64 l) { return Alpha(param_of(a, b, h, l)); }
inline i64 keys_of(const Attention& a, i64 row) { return a.causal && row + 1 < a.keys ? row + 1 : a.keys; }
// From here on a matrix product over all keys is cheaper than walking the support.
inline bool dense(i64 count, i64 keys) { return count > keys / 4; }

template <class T> T* carve(char*& scratch, i64 numbers) {
  T* p = (T*)scratch;
  scratch += (numbers * sizeof(T) + 63) / 64 * 64;
  return p;
}

template <class S> void pack(const Attention& a, bool values, i64 which) {
  using T = Compute<S>;
  const i64 depth = values ? a.value_dim : a.dim, b = which / a.kv_heads, h = which % a.kv_heads;
  const auto& from = values ? a.v : a.k;
  T* to = (T*)(values ? a.value_panels : a.key_panels) + which * parsimax::padded_keys(a.keys) * depth;
  const i64 width = panel_width<T>(a.keys);
  for (i64 j = 0; j < a.keys; j += width)
    pack_panel<T>(at<S>(from, b, h, j), from.l, a.keys - j, depth, to + j * depth, width);
}

// Consecutive query rows of one head.
struct Rows {
  i64 b, h, kv, first, count;
  i64 row(const Attention& a, i64 r) const { return (b * a.heads + h) * a.queries + first + r; }
};
inline Rows rows_of(const Attention& a, i64 head, i64 tile) {
  const i64 first = tile * a.tile, h = head % a.heads, left = a.queries - first;
  return {head / a.heads, h, h / (a.heads / a.kv_heads), first, left < a.tile ? left : a.tile};
}

template <class T> void forbid(const Attention& a, const Rows& w, i64 r, i64 n, T* scores) {
  const i64 offset = w.b * a.mask.b + w.h * a.mask.h + (w.first + r) * a.mask.l;
  if (a.mask_kind == Attention::allowed) {
    const auto m = (const unsigned char*)a.mask.data + offset;
    if (a.mask_key)
      for (i64 j = 0; j < n; j++) scores[j] = m[j] ? scores[j] : -T(__builtin_inf());
    else if (!m[0])
      for (i64 j = 0; j < n; j++) scores[j] = -T(__builtin_inf());
  } else if (a.mask_kind == Attention::bias) {  // -inf forbids whatever the score is
    const auto m = (const T*)a.mask.data + offset;
    for (i64 j = 0; j < n; j++) {
      const T x = m[j * a.mask_key];
      scores[j] = x == -T(__builtin_inf()) ? x : scores[j] + x;
    }
  }
}

// Scores of the rows, with the mask applied; what causality hides is computed in part but never read. Few queries do
// not repay packing the keys: without panels each score is one dot product.
template <class S, class T>
void score(const Attention& a, const Rows& w, const T* q, i64 q_stride, T* scores, i64 stride) {
  const i64 width = keys_of(a, w.first + w.count - 1);
  const S* k = at<S>(a.k, w.b, w.kv, 0);
  if (a.key_panels)
    product_packed<T>(w.count, width, a.dim, T(a.scale), q, q_stride,
                      (const T*)a.key_panels + (w.b * a.kv_heads + w.kv) * parsimax::padded_keys(a.keys) * a.dim,
                      scores, stride, panel_width<T>(a.keys));
  else
    for (i64 r = 0; r < w.count; r++)
      for (i64 j = 0; j < width; j++)
        scores[r * stride + j] = T(a.scale) * dot<T>(q + r * q_stride, k + j * a.k.l, a.dim);
  if (a.mask_kind != Attention::no_mask)
    for (i64 r = 0; r < w.count; r++) forbid<T>(a, w, r, keys_of(a, w.first + r), scores + r * stride);
}

// The edge of a row as one number: the one of its two forms that the solver works on.
inline double edge_number(const Alpha& a, const Edge& e) { return a.kind == GENERAL ? e.w : e.E; }
inline Edge edge_from(const Alpha& a, double x) {
  Edge e;
  if (a.kind == GENERAL) e.w = x, e.E = exp(a.b * x);
  else e.E = x;
  return e;
}

// The weights of rows of few keys, a row of `keys` numbers each, by the kernels of the mappings: these take a vector of
// rows at once. What causality hides is -inf.
template <class T> const T* short_rows(const Attention& a, const Rows& w, const T* scores, i64 stride, char*& scratch) {
  T *x = carve<T>(scratch, a.tile * a.keys), *p = carve<T>(scratch, a.tile * a.keys);
  for (i64 r = 0; r < w.count; r++) {
    const i64 n = keys_of(a, w.first + r);
    __builtin_memcpy(x + r * a.keys, scores + r * stride, n * sizeof(T));
    fill<T>(x + r * a.keys + n, a.keys - n, -T(__builtin_inf()));
  }
  const double* alpha = a.alpha.data ? a.alpha.data + w.b * a.alpha.b + w.h * a.alpha.h + w.first * a.alpha.l : nullptr;
  const parsimax::MapArgs args{x, p, {alpha, true, a.alpha.l, a.alpha_value}, a.keys, false};
  map_rows<T>(&args, 0, w.count, scratch);
  return p;
}

template <class S> struct Forward {
  using T = Compute<S>;
  const Attention& a;
  const Rows& w;
  T *weight, *room;
  int32_t* index;

  RowMap<T> map_of(i64 r) const {
    return {a, param_of(a, w.b, w.h, w.first + r), a.state + a.state_size * w.row(a, r)};
  }
  // The support of a row goes into weight and index, and its size is the result, -1 for NaN. If the support is a large
  // part of the row, `whole`, the weights stand in place of the scores too.
  i64 from_weights(const T* p, i64 n, T* s, bool& whole) {
    if (n && p[0] != p[0]) return -1;
    T* end = weight;
    for (i64 j = 0; j < n; j += W<T>) {
      const V<T> v = load<T>(p + j, n - j, T(0));
      const unsigned in = gt_bits<T>(v, V<T>{});
      push_index<T>(index + (end - weight), j, in);
      end = push<T>(end, v, in);
    }
    const i64 count = end - weight;
    whole = dense(count, n) && count <= parsimax::CAP;
    if (whole) __builtin_memcpy(s, p, n * sizeof(T));
    return count;
  }
  i64 from_scores(T* s, i64 n, i64 r, bool& whole) {
    double* state = a.state + a.state_size * w.row(a, r);
    Support<T> found;
    if (a.mapping != Attention::entmax) found = map_of(r).solve(s, n, weight, index, room);
    else {
      const Alpha alpha = alpha_of(a, w.b, w.h, w.first + r);
      found = find_support<T>(s, n, alpha, weight, index);
      state[0] = found.max;
      state[1] = edge_number(alpha, found.edge);
    }
    if (found.status != FOUND) return found.status == NOT_A_NUMBER ? -1 : 0;
    i64 count = 0;
    whole = !found.index && dense(count = count_positive<T>(weight, n), n);
    if (whole) __builtin_memcpy(s, weight, n * sizeof(T));
    if (whole && count > a.cap) return count;  // nobody asks for its support
    count = compact<T>(found, index);
    if (!whole && dense(count, n)) {
      fill<T>(s, n, 0);
      for (i64 j = 0; j < count; j++) s[index[j]] = weight[j];
      whole = true;
    }
    return count;
  }
};

// What dropout leaves of a support, packed to the front.
template <class T> i64 drop(const Dropout& dropout, i64 count, T* weight, int32_t* index, T* factor) {
  dropout.factors<T>(index, count, factor);
  i64 kept = 0;
  for (i64 j = 0; j < count; j++) {
    weight[kept] = weight[j] * factor[j];
    index[kept] = index[j];
    kept += factor[j] != 0;
  }
  return kept;
}

template <class S> void forward(const Attention& a, i64 task, void* scratch_) {
  using T = Compute<S>;
  const i64 tiles = (a.queries + a.tile - 1) / a.tile, stride = parsimax::score_stride(a.keys);
  char* scratch = (char*)scratch_;
  const Rows w = rows_of(a, task / tiles, task % tiles);
  T* scores = carve<T>(scratch, a.tile * stride);
  T* weight = (T*)carve<double>(scratch, stride + PAD);
  int32_t* index = carve<int32_t>(scratch, stride + PAD);
  T* factor = (T*)carve<double>(scratch, 2 * (stride + PAD));
  Forward<S> f{a, w, weight, factor, index};
  S* result = (S*)a.out + w.row(a, 0) * a.value_dim;
  T* out = same<S, T> ? (T*)result : carve<T>(scratch, a.tile * a.value_dim);
  const S* v = at<S>(a.v, w.b, w.kv, 0);
  const auto q = widened<T>(at<S>(a.q, w.b, w.h, w.first), a.q.l, w.count, a.dim,
                            carve<T>(scratch, same<S, T> ? 0 : a.tile * a.dim));
  score<S, T>(a, w, q.data, q.stride, scores, stride);
  const T* short_p = nullptr;
  if constexpr (same<T, float>)
    if (parsimax::is_short(a)) short_p = short_rows<T>(a, w, scores, stride, scratch);

  i64 run = 0;  // dense rows just before r, their weights written over their scores
  const auto finish_run = [&](i64 r) {
    if (run)
      product<T>(run, a.value_dim, keys_of(a, w.first + r - 1), scores + (r - run) * stride, stride, 1, v, a.v.l,
                 out + (r - run) * a.value_dim, a.value_dim, Into::set);
    for (; run; run--)
      mend<T>(out + (r - run) * a.value_dim, a.value_dim, keys_of(a, w.first + r - run), scores + (r - run) * stride, v,
              a.v.l);
  };
  const i64 width = keys_of(a, w.first + w.count - 1);
  for (i64 r = 0; r < w.count; r++) {
    const i64 n = keys_of(a, w.first + r), row = w.row(a, r);
    T *s = scores + r * stride, *o = out + r * a.value_dim;
    bool whole = false;
    fill<double>(a.state + a.state_size * row, a.state_size, 0);
    i64 count = short_p ? f.from_weights(short_p + r * a.keys, n, s, whole) : 0;
    if (!short_p || count > parsimax::CAP)
      count = f.from_scores(s, n, r, whole);  // a backward asks for such a row's edge
    int32_t extra[2];
    const int extras = count > 0 && a.mapping != Attention::entmax ? f.map_of(r).extras(extra) : 0;
    a.count[row] = int32_t(count + extras);
    if (count > 0 && count + extras <= a.cap) {
      int32_t* columns = a.index + row * a.cap;
      T* kept = (T*)a.weight + row * a.cap;
      __builtin_memcpy(columns, index, count * sizeof(int32_t));
      __builtin_memcpy(kept, weight, count * sizeof(T));
      for (int e = 0; e < extras; e++) columns[count + e] = extra[e], kept[count + e] = 0;
    }
    if (count > 0 && a.mapping != Attention::entmax) f.map_of(r).weights(whole ? s : weight, whole ? n : count);
    if (whole) {
      if (a.dropping) Dropout(a, row).factors<T>(nullptr, n, factor), multiply(s, factor, n);
      fill<T>(s + n, width - n, 0);
      run++;
      continue;
    }
    if (a.dropping && count > 0) count = drop<T>(Dropout(a, row), count, weight, index, factor);
    finish_run(r);
    if (count < 0) fill<T>(o, a.value_dim, T(__builtin_nan("")));
    else combine<T>(count, weight, index, v, a.v.l, a.value_dim, o);
  }
  finish_run(w.count);
  narrowed(out, w.count * a.value_dim, result);
}

// One part of the queries that share a (batch, kv head): the only writer of its block of dk and dv, so the sums have
// one order whatever the number of threads.
template <class S> struct Backward {
  using T = Compute<S>;
  const Attention& a;
  const i64 which, part, stride;
  T *scores, *grads, *weight, *dweight, *p_room, *factor;  // factor: what dropout multiplies the weights by
  double *slope, *rho;                                     // also used as T
  int32_t* index;
  T *dk, *dv, *q_room, *grad_room, *dq_room;
  Block<const T> q_rows, grad_rows;  // of the tile
  Rows w;
  const S *k, *v;

  Backward(const Attention& a, i64 task, char* scratch)
      : a(a),
        which(task / a.parts),
        part(task % a.parts),
        stride(parsimax::score_stride(a.keys)) {
    scores = carve<T>(scratch, a.tile * stride);
    grads = carve<T>(scratch, a.tile * stride);
    weight = (T*)carve<double>(scratch, stride + PAD);
    dweight = (T*)carve<double>(scratch, stride + PAD);
    p_room = (T*)carve<double>(scratch, stride + PAD);
    factor = (T*)carve<double>(scratch, stride + PAD);
    slope = carve<double>(scratch, stride + PAD);
    rho = carve<double>(scratch, stride + PAD);
    index = carve<int32_t>(scratch, stride + PAD);
    dk = (T*)a.dk + task * a.keys * a.dim;
    dv = (T*)a.dv + task * a.keys * a.value_dim;
    fill<T>(dk, a.keys * a.dim, 0);
    fill<T>(dv, a.keys * a.value_dim, 0);
    const i64 rows = same<S, T> ? 0 : a.tile;
    q_room = carve<T>(scratch, rows * a.dim);
    dq_room = carve<T>(scratch, rows * a.dim);
    grad_room = carve<T>(scratch, rows * a.value_dim);
  }
  const T* q(i64 r) const { return q_rows.data + r * q_rows.stride; }
  const T* grad(i64 r) const { return grad_rows.data + r * grad_rows.stride; }
  T* dq(i64 r) const { return same<S, T> ? (T*)a.dq + w.row(a, r) * a.dim : dq_room + r * a.dim; }
  T* dmask(i64 r) const { return a.dmask ? (T*)a.dmask + w.row(a, r) * a.keys : nullptr; }

  void run() {
    const i64 group = a.heads / a.kv_heads, tiles = (a.queries + a.tile - 1) / a.tile;
    const i64 b = which / a.kv_heads, kv = which % a.kv_heads;
    k = at<S>(a.k, b, kv, 0);
    v = at<S>(a.v, b, kv, 0);
    for (i64 t = group * tiles * part / a.parts; t < group * tiles * (part + 1) / a.parts; t++) {
      w = rows_of(a, b * a.heads + kv * group + t / tiles, t % tiles);
      q_rows = widened<T>(at<S>(a.q, w.b, w.h, w.first), a.q.l, w.count, a.dim, q_room);
      grad_rows = widened<T>(at<S>(a.grad, w.b, w.h, w.first), a.grad.l, w.count, a.value_dim, grad_room);
      tile();
      narrowed(dq_room, w.count * a.dim, (S*)a.dq + w.row(a, 0) * a.dim);
    }
  }

  void tile() {
    const int32_t* count = a.count + w.row(a, 0);
    for (i64 r = 0, run = 0; r <= w.count; r++) {  // scores again, for the runs of rows whose support was not kept
      const bool lost = r < w.count && count[r] > a.cap;
      if (!lost && run)
        score<S, T>(a, {w.b, w.h, w.kv, w.first + r - run, run}, q(r - run), q_rows.stride, scores + (r - run) * stride,
                    stride);
      run = lost ? run + 1 : 0;
    }
    i64 dense_rows = 0;
    for (i64 r = 0; r < w.count; r++) {
      const i64 n = keys_of(a, w.first + r), row = w.row(a, r);
      if (T* m = dmask(r)) fill<T>(m, a.keys, 0);
      a.dalpha[row] = 0;
      if (count[r] > a.cap && dense(count[r], n)) {
        dense_rows++;
        continue;
      }
      if (dense_rows) dense_run(r - dense_rows, r);
      dense_rows = 0;
      if (count[r] < 0) poison(r, n);
      else if (count[r] <= a.cap) sparse_row(r, count[r], a.index + row * a.cap, (const T*)a.weight + row * a.cap);
      else sparse_row(r, recover(r, n), index, weight);
    }
    if (dense_rows) dense_run(w.count - dense_rows, w.count);
  }

  RowMap<T> map_of(i64 r) const {
    return {a, param_of(a, w.b, w.h, w.first + r), a.state + a.state_size * w.row(a, r)};
  }
  // The weights of a row (of another mapping than entmax, what it keeps) in place of its scores; the same scores as in
  // the forward, so the same support.
  void weights(i64 r, i64 n) {
    if (a.mapping != Attention::entmax) return map_of(r).again(scores + r * stride, n, weight);
    const double* state = a.state + a.state_size * w.row(a, r);
    const Alpha alpha = alpha_of(a, w.b, w.h, w.first + r);
    row_weights<T>(scores + r * stride, n, alpha, state[0], edge_from(alpha, state[1]), weight);
  }
  i64 recover(i64 r, i64 n) {
    if (a.mapping != Attention::entmax) return map_of(r).recover(scores + r * stride, n, weight, index, p_room);
    weights(r, n);
    const T* p = scores + r * stride;
    i64 count = 0;
    for (i64 j = 0; j < n; j++) {
      weight[count] = p[j];
      index[count] = int32_t(j);
      count += p[j] > 0;
    }
    return count;
  }
  // dL/dp to dL/dscore in place, and what was kept to weights; `at`: the columns, if not all.
  void through_mapping(i64 r, i64 n, const T* kept, T* p, const int32_t* at, T* dweight) {
    double& by_param = a.dalpha[w.row(a, r)];
    if (a.mapping != Attention::entmax) {
      by_param = map_of(r).gradient(n, kept, p, at, dweight, slope, rho);
      return;
    }
    const Alpha alpha = alpha_of(a, w.b, w.h, w.first + r);
    by_param = weight_gradient<T>(n, alpha, a.alpha.data != nullptr, kept, dweight, slope, rho);
  }

  // Scores to weights and dL/dp to dL/dscore, in place.
  void through_dense(i64 r, i64 n, T* p, T* dweight) {
    const Alpha alpha = alpha_of(a, w.b, w.h, w.first + r);
    if constexpr (same<T, float>)
      if (a.mapping == Attention::entmax && a.alpha.data && dense_alpha(alpha)) {
        const double* state = a.state + a.state_size * w.row(a, r);
        const parsimax::DenseRow row{alpha.b / exp(alpha.b * state[1]), T(state[0]), parsimax::DenseRow::WIDE};
        grad_dense<T, true>(p, dweight, dweight, a.dalpha + w.row(a, r), n, alpha, row, (T*)slope, (T*)rho);
        return weights(r, n);
      }
    weights(r, n);
    through_mapping(r, n, p, p, nullptr, dweight);
  }

  void sparse_row(i64 r, i64 count, const int32_t* at, const T* kept) {
    if (a.dropping) Dropout(a, w.row(a, r)).factors<T>(at, count, factor);
    else fill<T>(factor, count, 1);
    for (i64 j = 0; j < count; j++) factor[j] = kept[j] > 0 ? factor[j] : T(0);
    for (i64 j = 0; j < count; j++)  // the value of a key without weight is not read
      dweight[j] = factor[j] != 0 ? factor[j] * dot<T>(grad(r), v + at[j] * a.v.l, a.value_dim) : T(0);
    T* mapped = a.mapping == Attention::entmax ? nullptr : p_room;
    through_mapping(r, count, kept, mapped, at, dweight);
    const T* p = mapped ? mapped : kept;
    if (T* m = dmask(r))
      for (i64 j = 0; j < count; j++) m[at[j]] = dweight[j];
    for (i64 j = 0; j < count; j++) dweight[j] *= T(a.scale);
    combine<T>(count, dweight, at, k, a.k.l, a.dim, dq(r));
    for (i64 j = 0; j < count; j++) {
      if (factor[j] != 0) accumulate<T>(p[j] * factor[j], grad(r), dv + at[j] * a.value_dim, a.value_dim);
      accumulate<T>(dweight[j], q(r), dk + at[j] * a.dim, a.dim);
    }
  }

  void dense_run(i64 first, i64 last) {
    const i64 rows = last - first, width = keys_of(a, w.first + last - 1);
    T *p = scores + first * stride, *g = grads + first * stride;
    const i64 panels = which * parsimax::padded_keys(a.keys) * a.value_dim;
    product_packed<T>(rows, width, a.value_dim, T(1), grad(first), grad_rows.stride, (const T*)a.value_panels + panels,
                      g, stride, panel_width<T>(a.keys));
    for (i64 r = first; r < last; r++) {
      const i64 n = keys_of(a, w.first + r);
      T *pr = scores + r * stride, *gr = grads + r * stride;
      if (a.dropping) Dropout(a, w.row(a, r)).factors<T>(nullptr, n, factor), multiply(gr, factor, n);
      through_dense(r, n, pr, gr);
      if (a.dropping) multiply(pr, factor, n);
      if (T* m = dmask(r)) __builtin_memcpy(m, gr, n * sizeof(T));
      for (i64 j = 0; j < n; j++) gr[j] *= T(a.scale);
      for (i64 j = n; j < width; j++) pr[j] = gr[j] = 0;
    }
    product<T>(rows, a.dim, width, g, stride, 1, k, a.k.l, dq(first), a.dim, Into::set);
    for (i64 r = first; r < last; r++) mend<T>(dq(r), a.dim, keys_of(a, w.first + r), grads + r * stride, k, a.k.l);
    product<T>(width, a.dim, rows, g, 1, stride, q(first), q_rows.stride, dk, a.dim, Into::add);
    product<T>(width, a.value_dim, rows, p, 1, stride, grad(first), grad_rows.stride, dv, a.value_dim, Into::add);
  }

  // A row of NaN weights: whatever it touches is NaN, as it is for softmax.
  void poison(i64 r, i64 n) {
    const T nan = T(__builtin_nan(""));
    fill<T>(dq(r), a.dim, nan);
    fill<T>(dk, n * a.dim, nan);
    fill<T>(dv, n * a.value_dim, nan);
    if (T* m = dmask(r)) fill<T>(m, n, nan);
    a.dalpha[w.row(a, r)] = nan;
  }
};
template <class S> void backward(const Attention& a, i64 task, void* scratch) {
  Backward<S>(a, task, (char*)scratch).run();
}
}  // namespace attention
}  // namespace

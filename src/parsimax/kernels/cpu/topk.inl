// Selection, and sparsemax of the k largest scores of a row.
#pragma once
#include "map.inl"
namespace {
// The number that stands at place k (from 0) when v is sorted upwards; v is reordered. Hoare's selection with the
// median of three: linear on average.
template <class T> inline T select(T* v, i64 n, i64 k) {
  i64 lo = 0, hi = n - 1;
  while (lo < hi) {
    T a = v[lo], b = v[lo + (hi - lo) / 2], c = v[hi];
    const T pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
    i64 i = lo, j = hi;
    while (i <= j) {
      while (v[i] < pivot) i++;
      while (pivot < v[j]) j--;
      if (i <= j) {
        const T t = v[i];
        v[i++] = v[j];
        v[j--] = t;
      }
    }
    if (k <= j) hi = j;
    else if (k >= i) lo = i;
    else break;
  }
  return v[k];
}

// If the support of sparsemax has at most k entries the two are equal, and the row is certain. If not, the k largest
// lie inside it, and what the others had is shared evenly. Of equal scores the first ones are taken.
template <class S> inline bool topk_row(const S* x, S* p, i64 n, i64 k, const Scratch& sc) {
  using T = Compute<S>;
  T *value = sc.numbers<T>(0), *copy = sc.numbers<T>(1);
  int32_t* index = sc.index();
  const Support<T> s = find_support<T>(x, n, Alpha(2), value, index);
  if (s.status == NOT_A_NUMBER) return fill_row(p, n, __builtin_nan("")), false;
  if (s.status == EMPTY) return fill_row(p, n, 0), true;
  i64 c = 0;
  auto score = [&](i64 i) { return T(scalar_float(x[index[i]])); };  // p cannot tell scores apart that differ by 1e-30
  for (i64 i = 0; i < s.count; i++)                                  // only what is in the support
    if (value[i] > 0) {
      value[c] = value[i], index[c] = s.index ? s.index[i] : int32_t(i);
      copy[c] = score(c);
      c++;
    }
  const bool certain = c <= k;
  if (!certain) {
    const T least = select(copy, c, c - k);
    i64 above = 0, kept = 0;
    for (i64 i = 0; i < c; i++) above += score(i) > least;
    i64 ties = k - above;
    double mass = 0;
    for (i64 i = 0; i < c; i++)
      if (score(i) > least || (score(i) == least && ties-- > 0))
        mass += value[i], value[kept] = value[i], index[kept++] = index[i];
    for (i64 i = 0; i < kept; i++) value[i] = T(value[i] + (1 - mass) / kept);
    c = kept;
  }
  scatter(p, n, value, index, c);
  return certain;
}
template <class S> void topk_rows(const void* args_, i64 first, i64 last, void* scratch) {
  const auto& args = *(const parsimax::TopkArgs*)args_;
  const Scratch sc{(char*)scratch, args.n};
  for (i64 r = first; r < last; r++)
    args.certain[r] = topk_row((const S*)args.x + r * args.n, (S*)args.p + r * args.n, args.n, args.k, sc);
}
}  // namespace

// Sparsemax of the k largest scores of a row.
#pragma once
#include "select.inl"
#include "short.inl"
namespace {
// If the support of sparsemax has at most k entries the two are equal, and the row is certain. If not, the k largest
// lie inside it, and what the others had is shared evenly. Of equal scores the first ones are taken.
template <class S> inline bool topk_row(const S* x, S* p, i64 n, i64 k, const Scratch& sc) {
  using T = Compute<S>;
  T *value = sc.numbers<T>(0), *copy = sc.numbers<T>(1), *room = sc.numbers<T>(2);
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
    const T least = T(select_parted<T>(copy, room, c, c - k).at);
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
// Sparsemax of a block of rows as ever, and a count; what has more than k is done again.
template <class S> void topk_rows(const void* args_, i64 first, i64 last, void* scratch) {
  using T = Compute<S>;
  const auto& args = *(const parsimax::TopkArgs*)args_;
  const i64 n = args.n;
  const Scratch sc{(char*)scratch, n};
  const parsimax::MapArgs map{args.x, args.p, {nullptr, true, 0, 2.0}, n, false};
  for (i64 block = first; block < last; block += parsimax::BLOCK) {
    const i64 end = block + parsimax::BLOCK < last ? block + parsimax::BLOCK : last;
    map_block<S>(map, block, end, scratch);
    for (i64 r = block; r < end; r++) {
      S* p = (S*)args.p + r * n;
      i64 held = 0;
      for (i64 i = 0; i < n && held <= args.k; i += W<T>)
        held += __builtin_popcount(ne_bits<T>(load<T>(p + i, n - i, T(0)), V<T>{}));
      args.certain[r] = held <= args.k && !(n > 0 && scalar_float(p[0]) != scalar_float(p[0]));
      if (held > args.k) args.certain[r] = topk_row((const S*)args.x + r * n, p, n, args.k, sc);
    }
  }
}
}  // namespace

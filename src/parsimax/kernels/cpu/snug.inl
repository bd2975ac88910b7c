// How far a row must be padded: a row of `length` numbers and then forbidden ones (-inf; p = g = 0 in the backward) up
// to `width` has the same bits at n = `width`, at every n from the result to SHORT, and at the result of any longer row
// of the same alpha.
//
// What makes it so: sums run over blocks that are counted from the start of the row, or over what was gathered, and a
// forbidden number adds 0 to them; maxima of lanes are taken over the places that are equal modulo a vector. What is
// left is which path a row takes, by its length:
//   alpha = 1    soft_row, whatever the length
//   map_narrow   another alpha, and not with a forbidden number: a shorter row keeps one, as it has at `width`
//   map_columns  if `width`, which is handed on as `longest`, is at most ALL_COLUMNS
//   map_lanes    up to SHORT. Beyond, only in float, above alpha = 1, up to LANE_LONGEST, and on vectors of more than
//                16 bytes; a row of at most LANE_LIMIT numbers has no more candidates than that
//   map_row      what lanes leave: candidates are gathered up to SHORT, and beyond if they are at most half of the
//                row; try_wide and solve_flat begin at 256 numbers that are not gathered
//   grad_plain   a fixed alpha = 1, 1.5 or 2 below GRAD_PLAIN; from there on zeros are counted against n
//   grad_lanes   in float, any other alpha up to 2.5 and these three if alpha is learned: as map_lanes
// All else (most of what is computed in double, alpha above 2) counts its candidates against n.
#pragma once
#include "short.inl"
namespace {
inline bool plain(double alpha) { return alpha == 1 || alpha == 1.5 || alpha == 2; }
template <class S> i64 map_fits(double alpha, bool, i64 length, i64 width) {
  constexpr bool FLOAT = same<Compute<S>, float>;
  if (alpha == 1 || length >= width) return length;
  if (!(plain(alpha) || (FLOAT && alpha >= 0 && alpha <= 2))) return width;
  const i64 least = plain(alpha) ? length : length + 1;
  if (width <= parsimax::SHORT) return least;
  const bool lanes = FLOAT && VB > 16 && width <= LANE_LONGEST && alpha > 1;
  return lanes && length <= LANE_LIMIT && 2 * length <= width ? least : width;
}
template <class S> i64 grad_fits(double alpha, bool by_alpha, i64 length, i64 width) {
  if (plain(alpha) && !by_alpha) return width < GRAD_PLAIN ? length : width;
  const bool lanes = same<Compute<S>, float> && width <= LANE_LONGEST && alpha >= 0 && alpha <= 2.5;
  return lanes && (width <= parsimax::SHORT || length <= LANE_LIMIT) ? length : width;
}
static_assert(LANE_LIMIT + 1 <= parsimax::SHORT && parsimax::SHORT < 256);
}  // namespace

// When a row is done. Its answer is right if its sum is: with the edge off by so much that the sum of p is off by e, no
// p is off by more than e (the entries move in one direction, dp_i = p_i (1/y_i - 1) dK / (K b), and e = sum p_i / y_i
// dK / (K b)). So every path computes the sum of the p that it returns, in double, for the edge that it returns, and
// either that sum is within PROOF of 1 or the row goes on: to another Newton step, from float to double, from Newton to
// bisection.
//
// A build with PARSIMAX_MUTATIONS (make test-mutations) can make one of the exits accept one step too soon: there the
// square root of the tolerance is enough, as Newton squares the error. Some test must notice each of them.
#pragma once
namespace parsimax {
enum Exit {
  NARROW_ROW = 1,
  WIDE_ROW,
  GENERAL_ROW,
  SPARSEMAX_ROW,
  ENTMAX15_ROW,
  STEEP_ROW,
  GENERAL_LANE,
  SPARSEMAX_LANE,
  ENTMAX15_LANE,
  BUDGET_ROW,
  SPARSEMAX_COLUMN,
  ENTMAX15_COLUMN
};
#if defined(PARSIMAX_MUTATIONS)
extern const int mutation;
#else
constexpr int mutation = 0;
#endif
}  // namespace parsimax
namespace {
template <class T> constexpr double PROOF = sizeof(T) == 4 ? 4e-7 : 1e-13;
inline double tolerance(parsimax::Exit exit, double at) { return parsimax::mutation == exit ? __builtin_sqrt(at) : at; }
inline bool small(double x, double at) { return x <= at && -x <= at; }  // false for NaN
// normmax divides by a sum that moves by `moved` times what the sum of p is off by. Each p in that sum is rounded, to
// 2e-7 of it: one leader alone can hide so much, and in float such a sum is no proof where little more would show.
constexpr double ESCORT_MOVED = 8;
template <class T> inline bool bears_rounding(double moved) { return sizeof(T) == 8 || moved <= ESCORT_MOVED; }
}  // namespace

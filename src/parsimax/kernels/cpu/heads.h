// The output heads: what an operator hands to its kernels, and the table of those kernels.
#pragma once
#include <cstdint>
namespace parsimax {
constexpr int64_t SHARES = 8;  // of the rows, each with sums of its own: what is summed does not depend on threads

// A function of each number as polynomials on equal pieces: at place u = x scale + offset, piece i = floor(u) within
// [0, count), it is sum_k table[i][k] (u - i)^k. Two coefficients make it linear, four cubic.
struct Pieces {
  const void* table;
  int64_t count;
  double scale, offset;
};
struct HeadRows {
  void* z;  // (rows, n), in steps of stride: logits, and in their place what the backward pass needs
  int64_t rows, n, stride;
  const int64_t* target;  // -1: the row counts for nothing
  void *loss, *inverse;   // one number a row each
  Pieces pieces;
  const void *factor, *log_sum;  // one number a row each
  void* sums;                    // (SHARES, count, coefficients)
};
struct PieceArgs {
  const void *x, *g;
  void* out;
  int64_t n;
  Pieces pieces;
  void* sums;
};
// Each for float and for double; those with pieces for two coefficients, then for four.
using HeadFunction = void (*)(const HeadRows&, int64_t first, int64_t last, void* scratch);
using PieceFunction = void (*)(const PieceArgs&, int64_t first, int64_t last);
struct HeadKernels {
  HeadFunction softmax[2], sigsoftmax[2];  // over rows; the others over shares
  HeadFunction loss[2][2], norms[2][2], gradient[2][2];
  PieceFunction forward[2][2], backward[2][2];
};
extern const HeadKernels heads_base, heads_avx2, heads_avx512;
}  // namespace parsimax

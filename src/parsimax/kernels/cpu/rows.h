// The row kernels. Types: 0 float, 1 double, 2 bfloat16, 3 float16.
#pragma once
#include <cstdint>
namespace parsimax {
constexpr int64_t BLOCK = 16;   // rows are dealt out in blocks of 16, so that the split never changes a bit
constexpr int64_t SHORT = 192;  // rows up to this length are taken a vector of rows at a time
constexpr int64_t SCRATCH_PAD = 128;
constexpr int64_t CAP = 64;  // numbers of a support that attention and the linear loss keep for the backward, at most

struct Param {  // a float, or one number for all rows or for each of them
  const void* data;
  bool wide;  // float64
  int64_t stride;
  double value;
};
// What the backward needs of a nearly dense row to start from x instead of p (dense.inl); NOT: it is not such a row.
struct DenseRow {
  double v;
  float centre;
  enum : int32_t { NOT, NARROW, WIDE } kind;
};
// stream: the result is too large for the cache, so it may be written past it. longest: the row length that decides how
// rows are computed, if it is not n: that of the padded tensor whose bits they are to have.
struct MapArgs {
  const void* x;
  void* p;
  Param alpha;
  int64_t n;
  bool stream;
  DenseRow* dense = nullptr;
  bool* any_dense = nullptr;
  int64_t longest = 0;
};
struct GradArgs {
  const void *p, *g;
  void* dx;
  double* dalpha;
  Param alpha;
  int64_t n;
  bool stream;
  const void* x = nullptr;
  const DenseRow* dense = nullptr;
};
struct TopkArgs {
  const void* x;
  void* p;
  bool* certain;
  int64_t n, k;
};
// What the backward of the loss needs of a row: its max, edge (w, E), theta, the count of its candidates, d loss / d
// alpha.
struct LossRow {
  double max, w, E, dalpha;
  int64_t count;
};
struct LossArgs {
  const void* x;
  const int64_t* target;
  Param alpha;
  int64_t n, cap;
  void* loss;  // float, or double for double
  LossRow* rows;
  int32_t* index;  // rows x cap: the support, if it fits
  void* value;     // their p, in the type of the loss
  Param g;         // backward: one per row
  void* dx;
  double smoothing;      // the share of the target that is spread over all classes
  const double* weight;  // of the classes, only with smoothing; absent: ones
  double weight_sum;
  const void* soft = nullptr;  // the other kind of target: a coefficient per class, rows x n
};
// The cut of a row of r-softmax, which its backward need not look for again. 7 numbers.
struct Cut {
  double max, t, low, high, part;  // the scores around the quantile, and where it lies between them
  int32_t status, allowed, rank, unused;
};
struct ThresholdArgs {
  const void *x, *p, *g;
  void* out;
  double* dparam;
  Param param;
  int64_t n;
  Cut* cuts = nullptr;
};
using Work = void (*)(const void* args, int64_t first, int64_t last, void* scratch);
using Turn = void (*)(const void* from, int64_t apart, int64_t n, int64_t rows, int64_t stride, void* to);  // tiles.inl
using Fit = int64_t (*)(double alpha, bool by_alpha, int64_t length, int64_t width);                        // snug.inl
struct RowKernels {
  Work map[4], grad[4], topk[4], loss[4], loss_grad[4], soft_loss[4], soft_loss_grad[4], rsoftmax[4], rsoftmax_grad[4],
      budget[4], budget_grad[4];
  Work tsoftmax[4], tsoftmax_grad[4], sigsoftmax[4], sigsoftmax_grad[4], sparsegen[4], sparsegen_grad[4];
  Work hourglass[4], hourglass_grad[4], normmax[4], normmax_grad[4];
  Turn take[4], put[4];
  Fit map_fits[4], grad_fits[4];
};
// n numbers, their columns, and as many again for the backward; 64 columns of vectors for short rows.
static constexpr int64_t scratch_bytes(int64_t n) { return (n + 8 + SCRATCH_PAD) * 8 * 4 + 131072; }
}  // namespace parsimax

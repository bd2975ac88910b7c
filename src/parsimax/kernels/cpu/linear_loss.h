// The loss of hidden @ weight.T + bias without the matrix of logits.
#pragma once
#include <cstdint>
namespace parsimax {
struct LinearLoss {
  int64_t rows, classes, dim;   // dim: a multiple of 16
  int64_t cap;                  // support kept for the backward, entries a row
  double alpha_value, softcap;  // softcap 0: none
  const void *hidden, *weight, *bias;
  int64_t hidden_stride, weight_stride;
  const int64_t* target;  // -1: ignored
  const double* alpha;    // per row, step 0 or 1; absent: alpha_value
  int64_t alpha_step;
  // What the forward leaves, per row: (maximum, edge, d loss / d alpha), entries of the support, how many.
  double* state;
  int32_t *index, *count;
  void *support, *loss;
  // The backward. Rows of up to cap entries become (column, coefficient) lists of cap + 1, the target included.
  const double* grad;
  int32_t *column, *entries;
  void *coefficient, *dhidden, *dweight, *dbias;
  // The same entries by column: those of column j are start[j] up to start[j + 1], in the order of the rows.
  int64_t* start;
  int32_t* row_of;
  void* sorted;
  bool narrow;  // dweight is written once, in the type of the weight; else it is a sum in the compute type
  bool pairs;   // bfloat16 products two at a time (AVX512_BF16)
};

// Rows whose logits are in memory together.
struct Chunk {
  int64_t count, stride;
  const int64_t* rows;
  void* hidden;  // their hidden states, one after the other every hidden_stride
  int64_t hidden_stride;
  void *logits, *dhidden;
};

struct LinearLossKernels {
  int64_t group[2];  // classes scored in one task
  // By the type of hidden and weight: float, double, bfloat16, float16; everything else is in the compute type.
  void (*gather_hidden[4])(const LinearLoss&, const Chunk&);  // of the chunk's rows, in the compute type
  void (*score[4])(const LinearLoss&, const Chunk&, int64_t task, void* scratch);
  void (*forward[4])(const LinearLoss&, const Chunk&, int64_t i, void* scratch);
  // Rows with a kept support: coefficients and dhidden, then the entries sorted by column, then the rows of dweight.
  void (*sparse_row[4])(const LinearLoss&, int64_t row, void* scratch);
  void (*sort_columns[4])(const LinearLoss&);
  void (*sparse_columns[4])(const LinearLoss&, int64_t first, int64_t last, void* scratch);
  // The other rows, a chunk at a time: logits to their gradient, then two products.
  void (*wide_row[4])(const LinearLoss&, const Chunk&, int64_t i, void* scratch);
  void (*wide_hidden[4])(const LinearLoss&, const Chunk&, int64_t first, int64_t last);
  void (*wide_weight[4])(const LinearLoss&, const Chunk&, int64_t first, int64_t last);
  void (*wide_done[4])(const LinearLoss&, const Chunk&);  // dhidden of the chunk to its rows
};

static constexpr int64_t logit_stride(int64_t classes) { return (classes + 63) / 64 * 64 + 16; }
}  // namespace parsimax

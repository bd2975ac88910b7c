// Instruction sets: all kernels are compiled once for each, and the best that the CPU has runs.
#pragma once
#include "attention.h"
#include "linear_loss.h"
#include "rows.h"
namespace parsimax {
struct Level {
  int number;  // 0 base, 1 AVX2, 2 AVX-512
  RowKernels rows;
  AttentionKernels attention;
  LinearLossKernels linear_loss;
};
extern const Level level_base, level_avx2, level_avx512;
const Level& level();
}  // namespace parsimax

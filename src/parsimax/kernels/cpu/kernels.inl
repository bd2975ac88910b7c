// All kernels, for the instruction set that this file is compiled with; PARSIMAX_LEVEL names their table.
#include "attention.inl"
#include "budget.inl"
#include "cut.inl"
#include "level.h"
#include "linear_loss.inl"
#include "loss.inl"
#include "scaled.inl"
#include "short.inl"
#include "snug.inl"
#include "tiles.inl"
#include "topk.inl"
#define TYPES(f) {f<float>, f<double>, f<bf16>, f<f16>}
const parsimax::Level parsimax::PARSIMAX_LEVEL = {
    VB == 64   ? 2
    : VB == 32 ? 1
               : 0,
    {TYPES(map_rows),
     TYPES(grad_rows),
     TYPES(topk_rows),
     TYPES(loss_rows),
     TYPES(loss_grad_rows),
     TYPES(soft_loss_rows),
     TYPES(soft_loss_grad_rows),
     TYPES(rsoftmax_rows),
     TYPES(rsoftmax_grad_rows),
     TYPES(budget_rows),
     TYPES(budget_grad_rows),
     TYPES(tsoftmax_rows),
     TYPES(tsoftmax_grad_rows),
     TYPES(sigsoftmax_rows),
     TYPES(sigsoftmax_grad_rows),
     TYPES(sparsegen_rows),
     TYPES(sparsegen_grad_rows),
     TYPES(hourglass_rows),
     TYPES(hourglass_grad_rows),
     TYPES(normmax_rows),
     TYPES(normmax_grad_rows),
     TYPES(take_rows),
     TYPES(put_rows),
     TYPES(map_fits),
     TYPES(grad_fits)},
    {TYPES(attention::pack), TYPES(attention::forward), TYPES(attention::backward)},
    {{linear_loss::PANELS * NR<float>, linear_loss::PANELS * NR<double>},
     TYPES(linear_loss::gather_hidden),
     TYPES(linear_loss::score),
     TYPES(linear_loss::forward),
     TYPES(linear_loss::sparse_row),
     TYPES(linear_loss::sort_columns),
     TYPES(linear_loss::sparse_columns),
     TYPES(linear_loss::wide_row),
     TYPES(linear_loss::wide_hidden),
     TYPES(linear_loss::wide_weight),
     TYPES(linear_loss::wide_done)},
};

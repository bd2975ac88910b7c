// One table of row kernels, for the instruction set this file is compiled with (ISA names it).
#include "budget.inl"
#include "loss.inl"
#include "rsoftmax.inl"
#include "short.inl"
#include "topk.inl"
#define PARSIMAX_CAT(a, b) a##b
#define PARSIMAX_TABLE(isa) PARSIMAX_CAT(rows_, isa)
#define PARSIMAX_TYPES(f) {f<float>, f<double>, f<bf16>, f<f16>}
const parsimax::RowKernels parsimax::PARSIMAX_TABLE(ISA) = {
    PARSIMAX_TYPES(map_rows),      PARSIMAX_TYPES(grad_rows),          PARSIMAX_TYPES(topk_rows),
    PARSIMAX_TYPES(loss_rows),     PARSIMAX_TYPES(loss_grad_rows),     PARSIMAX_TYPES(rsoftmax_rows),
    PARSIMAX_TYPES(rsoftmax_grad_rows), PARSIMAX_TYPES(budget_rows),   PARSIMAX_TYPES(budget_grad_rows),
};

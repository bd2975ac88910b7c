#define PARSIMAX_LEVEL level_avx512
#include "kernels.inl"

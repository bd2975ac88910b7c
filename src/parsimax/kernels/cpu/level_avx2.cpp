#define PARSIMAX_LEVEL level_avx2
#include "kernels.inl"

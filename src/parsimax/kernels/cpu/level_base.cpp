#define PARSIMAX_LEVEL level_base
#include "kernels.inl"

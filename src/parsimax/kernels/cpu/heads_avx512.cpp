#define PARSIMAX_HEADS heads_avx512
#include "heads.inl"

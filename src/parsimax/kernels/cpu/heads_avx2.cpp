#define PARSIMAX_HEADS heads_avx2
#include "heads.inl"

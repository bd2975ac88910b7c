#define PARSIMAX_HEADS heads_base
#include "heads.inl"

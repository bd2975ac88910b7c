#define ISA avx2
#include "attention.inl"

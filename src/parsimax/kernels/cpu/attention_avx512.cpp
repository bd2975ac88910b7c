#define ISA avx512
#include "attention.inl"

#define ISA avx512
#include "linear_loss.inl"

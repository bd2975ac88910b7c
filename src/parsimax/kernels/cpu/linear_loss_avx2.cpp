#define ISA avx2
#include "linear_loss.inl"

#define ISA base
#include "linear_loss.inl"

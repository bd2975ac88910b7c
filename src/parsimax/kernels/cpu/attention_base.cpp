#define ISA base
#include "attention.inl"

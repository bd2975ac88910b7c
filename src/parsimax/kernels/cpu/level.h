// Which instruction set runs: 0 base, 1 AVX2, 2 AVX-512. PARSIMAX_CPU=base|avx2|avx512 can only lower it.
#pragma once
namespace parsimax {
int cpu_level();
}

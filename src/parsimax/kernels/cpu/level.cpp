#include "level.h"

#include <cstdlib>
#include <cstring>

#include "proof.inl"
namespace parsimax {
#if defined(PARSIMAX_MUTATIONS)
const int mutation = std::getenv("PARSIMAX_MUTATION") ? std::atoi(std::getenv("PARSIMAX_MUTATION")) : 0;
#endif
// PARSIMAX_CPU=base|avx2|avx512 can only lower what the CPU has.
static const Level& choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#define HAS(f) __builtin_cpu_supports(f)
  const char* wanted = std::getenv("PARSIMAX_CPU");
  const auto below = [&](const char* name) { return wanted && !std::strcmp(wanted, name); };
  if (below("base") || !(HAS("avx2") && HAS("fma") && HAS("f16c"))) return level_base;
#if defined(PARSIMAX_EMULATE)
  return below("avx2") ? level_avx2 : level_avx512;
#endif
  if (below("avx2") || !(HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl"))) return level_avx2;
  return level_avx512;
#else
  return level_base;
#endif
}
const Level& level() {
  static const Level& best = choose();
  return best;
}
}  // namespace parsimax

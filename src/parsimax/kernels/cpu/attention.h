// One problem of attention, as the kernels see it.
#pragma once
#include <cstdint>
#include "rows.h"
namespace parsimax {
// (batch, head, row, feature) with unit stride along the feature; strides count numbers, 0 repeats.
template <class P> struct View {
  P* data = nullptr;
  int64_t b = 0, h = 0, l = 0;
};

struct Attention {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;  // dim, value_dim: multiples of 16
  int64_t tile;                                                   // query rows scored at a time
  int64_t cap;                                                    // support kept for the backward, entries a row
  double scale, alpha_value;
  bool causal;
  // attention_maps.inl; `alpha` is the parameter of whichever it is. In the order of MAPPINGS in kernels/schemas.py.
  enum Mapping : int64_t { entmax, sparsegen, topk, budget, rsoftmax, tsoftmax, normmax, mappings } mapping;
  // Dropout (dropout.inl): a key is dropped if its 32 random bits are below `dropped`, else multiplied by the scale.
  bool dropping;
  uint32_t dropped;
  double kept_scale;
  uint64_t seed;
  View<const void> q, k, v;
  View<const void> mask;  // none, allowed (one byte each) or bias (numbers)
  int64_t mask_key;       // stride of the mask along the keys: 0 or 1
  enum { no_mask, allowed, bias } mask_kind;
  View<const double> alpha;  // per row; without data, alpha_value for all
  void *key_panels, *value_panels;
  // What the forward leaves, one row of each per query: numbers of the threshold, `state_size` of them ((maximum, edge)
  // for entmax), entries of the support, how many.
  int64_t state_size;
  double* state;
  int32_t *index, *count;
  void *weight, *out;
  // The backward.
  View<const void> grad;
  void *dq, *dk, *dv, *dmask;  // dk, dv: one block per (batch, kv head, part); dmask may be absent
  double* dalpha;
  int64_t parts;
};

struct AttentionKernels {
  // By the type of q, k, v, out and dq: float, double, bfloat16, float16. The last two are computed in float, in which
  // the mask, the panels, the kept weights, dk and dv are. The panels of the keys (or values) of one (batch, kv head).
  void (*pack[4])(const Attention&, bool values, int64_t which);
  void (*forward[4])(const Attention&, int64_t task, void* scratch);
  void (*backward[4])(const Attention&, int64_t task, void* scratch);
};

constexpr int64_t STATE = 8;  // numbers that a mapping other than entmax may keep of a row
// Numbers in a row of a tile of scores: whole panels, and a line more so that rows do not share cache sets.
static constexpr int64_t score_stride(int64_t keys) { return (keys + 63) / 64 * 64 + 16; }
// Whether the forward solves several rows at once, in float.
static constexpr bool is_short(const Attention& a) { return a.mapping == Attention::entmax && a.keys <= SHORT; }
// What a task carves from its scratch (attention.inl), each piece rounded up to a line.
static constexpr int64_t scratch_bytes(const Attention& a, bool backward, int64_t size) {
  const int64_t stride = score_stride(a.keys), row = (stride + 96) * 8;
  const int64_t rows = !backward && size == 4 && is_short(a) ? 2 * a.tile * a.keys * size + scratch_bytes(a.keys) : 0;
  const int64_t tile = a.tile * (stride * (backward ? 2 : 1) + a.dim * (backward ? 2 : 1) + a.value_dim) * size;
  return tile + row * (backward ? 7 : 4) + rows + 16 * 64;
}
static constexpr int64_t padded_keys(int64_t keys) { return (keys + 63) / 64 * 64; }
}  // namespace parsimax

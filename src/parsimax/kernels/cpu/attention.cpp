// The attention operators. Shapes: q (B, H, L, E), k (B, Hkv, S, E), v (B, Hkv, S, Ev) with H a multiple of Hkv; mask
// broadcastable to (B, H, L, S), boolean (True = may attend) or added to the scores; alpha broadcastable to (B, H, L,
// 1).
#include <optional>
#include <tuple>

#include "level.h"
#include "tasks.h"

using namespace parsimax;
using std::optional;

namespace {
const AttentionKernels& kernels() { return level().attention; }

View<const void> view(const Tensor& x) {  // a dimension of size 1 repeats
  const auto step = [&](int64_t d) { return x.size(d) == 1 ? 0 : x.stride(d); };
  return {x.const_data_ptr(), step(0), step(1), step(2)};
}
bool broadcasts(const Tensor& x, std::initializer_list<int64_t> to) {
  if (x.dim() != int64_t(to.size())) return false;
  int64_t d = 0;
  for (int64_t n : to) {
    if (x.size(d) != n && x.size(d) != 1) return false;
    d++;
  }
  return true;
}

// The problem, and the tensors that its pointers point into.
struct Problem {
  Attention a{};
  ScalarType type, compute;
  int wide, kind;  // wide: float64; kind: which of the kernels' types
  int64_t dim, value_dim;
  Tensor q, k, v, key_panels, value_panels;
  optional<Tensor> mask, alpha;

  Problem(const Tensor& q_, const Tensor& k_, const Tensor& v_, optional<Tensor> mask_, optional<Tensor> alpha_,
          double alpha_value, int64_t mapping, bool causal, double scale, double dropout, optional<Tensor> seed) {
    STD_TORCH_CHECK(q_.dim() == 4 && k_.dim() == 4 && v_.dim() == 4,
                    "parsimax attention: q, k and v have 4 dimensions");
    type = q_.scalar_type();
    compute = compute_type(q_);
    wide = compute == ScalarType::Double;
    kind = wide ? 1 : type == ScalarType::BFloat16 ? 2 : type == ScalarType::Half ? 3 : 0;
    STD_TORCH_CHECK(k_.scalar_type() == type && v_.scalar_type() == type,
                    "parsimax attention: q, k and v have one dtype");
    a.batch = q_.size(0), a.heads = q_.size(1), a.queries = q_.size(2), dim = q_.size(3);
    a.kv_heads = k_.size(1), a.keys = k_.size(2), value_dim = v_.size(3);
    STD_TORCH_CHECK(k_.size(0) == a.batch && v_.size(0) == a.batch && v_.size(1) == a.kv_heads &&
                        v_.size(2) == a.keys && k_.size(3) == dim &&
                        (a.kv_heads ? a.heads % a.kv_heads == 0 : a.heads == 0),
                    "parsimax attention: shapes of q, k and v do not fit");
    a.dim = padded(dim), a.value_dim = padded(value_dim);
    a.scale = scale, a.alpha_value = alpha_value, a.causal = causal;
    q = features(q_, type), k = features(k_, type), v = features(v_, type);
    a.q = view(q), a.k = view(k), a.v = view(v);
    STD_TORCH_CHECK(mapping >= 0 && mapping < Attention::mappings, "parsimax attention: no such mapping");
    a.mapping = Attention::Mapping(mapping);
    a.state_size = a.mapping == Attention::entmax ? 2 : STATE;
    if (dropout > 0) set_dropout(dropout, seed);
    a.mask_kind = Attention::no_mask;
    if (mask_) set_mask(*mask_);
    if (alpha_) {
      STD_TORCH_CHECK(broadcasts(*alpha_, {a.batch, a.heads, a.queries, 1}),
                      "parsimax attention: alpha does not broadcast to (B, H, L, 1)");
      alpha = as_type(*alpha_, ScalarType::Double);
      const auto x = view(*alpha);
      a.alpha = {(const double*)x.data, x.b, x.h, x.l};
    }
  }
  void set_dropout(double p, const optional<Tensor>& seed) {
    STD_TORCH_CHECK(p <= 1, "parsimax attention: dropout is a share, at most 1");
    STD_TORCH_CHECK(seed && seed->numel() == 1 && seed->scalar_type() == ScalarType::Long,
                    "parsimax attention: dropout needs a seed, one int64");
    a.dropping = true;
    a.seed = *(const uint64_t*)seed->const_data_ptr();
    a.dropped = uint32_t(std::min(p * 0x1p32, double(0xffffffff)));
    a.kept_scale = p < 1 ? 1 / (1 - p) : 0;
  }
  void set_mask(const Tensor& m) {
    STD_TORCH_CHECK(broadcasts(m, {a.batch, a.heads, a.queries, a.keys}),
                    "parsimax attention: the mask does not broadcast to (B, H, L, S)");
    const bool boolean = m.scalar_type() == ScalarType::Bool;
    mask = boolean ? m : as_type(m, compute);
    if (mask->size(3) != 1 && mask->stride(3) != 1) mask = torch::stable::contiguous(*mask);
    a.mask = view(*mask);
    a.mask_key = mask->size(3) == 1 ? 0 : 1;
    a.mask_kind = boolean ? Attention::allowed : Attention::bias;
  }
  bool empty() const { return a.batch * a.heads * a.queries == 0; }
  int64_t tiles() const { return (a.queries + a.tile - 1) / a.tile; }
  // As many query rows as keep a tile of scores in the second-level cache, and enough tiles to share out.
  void set_tile(int64_t bytes) {
    const int64_t fit = bytes / (score_stride(a.keys) * (wide ? 8 : 4));
    const int64_t spread = (a.queries * std::max<int64_t>(1, a.batch * a.heads) + 15) / 16;
    a.tile = std::max<int64_t>(12, std::min<int64_t>({fit, spread, 96}) / 12 * 12);
  }
  void pack(bool values) {
    if (!values && a.queries * (a.heads / a.kv_heads) < 8) return;  // the backward decides alike: the same bits
    Tensor& panels = values ? value_panels : key_panels;
    panels = new_tensor(q, {a.batch * a.kv_heads, padded_keys(a.keys), values ? a.value_dim : a.dim}, compute);
    (values ? a.value_panels : a.key_panels) = panels.mutable_data_ptr();
    run_tasks(q, a.batch * a.kv_heads, 0, [&](int64_t i, void*) { kernels().pack[kind](a, values, i); });
  }
};
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// out, and for the backward: (maximum, threshold) per row, the indices and weights of the support, its size. Rows with
// more than a capped number of entries keep only their size; the backward computes their scores again.
Five attention_forward(Tensor q, Tensor k, Tensor v, optional<Tensor> mask, optional<Tensor> alpha, double alpha_value,
                       int64_t mapping, bool causal, double scale, double dropout, optional<Tensor> seed,
                       bool need_state) {
  Problem p(q, k, v, mask, alpha, alpha_value, mapping, causal, scale, dropout, seed);
  Attention& a = p.a;
  const int64_t B = a.batch, H = a.heads, L = a.queries;
  a.cap = need_state ? std::min(CAP, a.keys) : 0;
  Tensor out = new_tensor(p.q, {B, H, L, a.value_dim}, p.type),
         state = new_tensor(p.q, {B, H, L, a.state_size}, ScalarType::Double);
  Tensor index = new_tensor(p.q, {B, H, L, a.cap}, ScalarType::Int),
         weight = new_tensor(p.q, {B, H, L, a.cap}, p.compute);
  Tensor count = new_tensor(p.q, {B, H, L}, ScalarType::Int);
  if (!p.empty()) {
    a.out = out.mutable_data_ptr(), a.state = (double*)state.mutable_data_ptr();
    a.index = (int32_t*)index.mutable_data_ptr(), a.weight = weight.mutable_data_ptr();
    a.count = (int32_t*)count.mutable_data_ptr();
    p.set_tile(512 << 10);
    p.pack(false);
    run_tasks(p.q, B * H * p.tiles(), scratch_bytes(a, false, p.wide ? 8 : 4),
              [&](int64_t task, void* scratch) { kernels().forward[p.kind](a, task, scratch); });
  }
  return {restore(out, p.value_dim, p.type), state, index, weight, count};
}

// dq, dk, dv, d alpha per row (float64; empty without alpha), d mask of the full shape (empty unless asked for).
Five attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, optional<Tensor> mask, optional<Tensor> alpha,
                        double alpha_value, int64_t mapping, bool causal, double scale, double dropout,
                        optional<Tensor> seed, Tensor state, Tensor index, Tensor weight, Tensor count,
                        bool mask_grad) {
  Problem p(q, k, v, mask, alpha, alpha_value, mapping, causal, scale, dropout, seed);
  Attention& a = p.a;
  const int64_t B = a.batch, H = a.heads, L = a.queries, S = a.keys, blocks = B * a.kv_heads;
  STD_TORCH_CHECK(grad.dim() == 4 && grad.size(0) == B && grad.size(1) == H && grad.size(2) == L &&
                      grad.size(3) == p.value_dim && count.numel() == B * H * L &&
                      state.numel() == a.state_size * B * H * L && index.numel() == weight.numel(),
                  "parsimax attention: the gradient or the state does not fit");
  a.cap = index.size(3);
  const Tensor g = features(grad, p.type);
  a.grad = view(g);
  Tensor dq = new_tensor(p.q, {B, H, L, a.dim}, p.type);
  Tensor dalpha = new_tensor(p.q, {B, H, L, 1}, ScalarType::Double);
  Tensor dmask = new_tensor(p.q, {B, H, L, mask_grad ? S : 0}, p.compute);
  p.set_tile(512 << 10);
  a.parts = p.empty() ? 1 : std::max<int64_t>(1, std::min((16 + blocks - 1) / blocks, H / a.kv_heads * p.tiles()));
  Tensor dk = new_tensor(p.q, {blocks, a.parts, S * a.dim}, p.compute);
  Tensor dv = new_tensor(p.q, {blocks, a.parts, S * a.value_dim}, p.compute);
  if (p.empty()) {
    torch::stable::zero_(dk), torch::stable::zero_(dv);
  } else {
    a.state = (double*)state.const_data_ptr(), a.index = (int32_t*)index.const_data_ptr();
    a.weight = (void*)weight.const_data_ptr(), a.count = (int32_t*)count.const_data_ptr();
    a.dq = dq.mutable_data_ptr(), a.dk = dk.mutable_data_ptr(), a.dv = dv.mutable_data_ptr();
    a.dalpha = (double*)dalpha.mutable_data_ptr();
    a.dmask = mask_grad ? dmask.mutable_data_ptr() : nullptr;
    if (*std::max_element(a.count, a.count + B * H * L) > a.cap) p.pack(false), p.pack(true);
    run_tasks(p.q, blocks * a.parts, scratch_bytes(a, true, p.wide ? 8 : 4),
              [&](int64_t task, void* scratch) { kernels().backward[p.kind](a, task, scratch); });
  }
  const auto whole = [&](Tensor parts, int64_t width, int64_t n) {
    Tensor total = a.parts == 1 ? parts : add_parts(parts);
    const int64_t size[] = {B, a.kv_heads, S, width};
    return restore(torch::stable::view(total, {size, 4}), n, p.type);
  };
  return {restore(dq, p.dim, p.type), whole(dk, a.dim, p.dim), whole(dv, a.value_dim, p.value_dim), dalpha, dmask};
}
}  // namespace

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_attention_fwd", TORCH_BOX(&attention_forward));
  m.impl("_attention_bwd", TORCH_BOX(&attention_backward));
}

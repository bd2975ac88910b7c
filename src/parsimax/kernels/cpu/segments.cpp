// entmax on rows of any length that lie one behind the other.
#include "run.h"

using namespace parsimax;

// Rows of any length, one behind the other: row (h, k) is x[h, ends[k] : ends[k + 1]]. Some at a time are padded to
// `width`, that of the longest, so that their bits are those of the padded tensor.
struct Segments {
  int64_t heads, entries, count, width;
  const int64_t* ends;
  Segments(const Tensor& x, const Tensor& ptr, int64_t width)
      : heads(x.size(0)),
        entries(x.size(1)),
        count(ptr.numel() - 1),
        width(width),
        ends((const int64_t*)ptr.const_data_ptr()) {
    bool fine = count >= 0 && ends[0] == 0 && ends[count] == entries;
    for (int64_t k = 0; k < count && fine; k++) fine = ends[k] <= ends[k + 1] && ends[k + 1] - ends[k] <= width;
    STD_TORCH_CHECK(fine, "parsimax: segments must rise from 0 to the number of scores (", entries,
                    "), none longer than ", width);
  }
};
template <class Args>
static void run_segments(Work work, const Args& args, const Segments& s, int t,
                         std::initializer_list<std::pair<const void* Args::*, double>> in, void* Args::* out) {
  static constexpr int64_t SIZES[] = {4, 8, 2, 2};
  const int64_t size = SIZES[t], rows = s.heads * s.count, blocks = (rows + BLOCK - 1) / BLOCK;
  if (rows == 0 || s.width == 0) return;
  const auto place = [&](int64_t r) { return (r / s.count * s.entries + s.ends[r % s.count]) * size; };
  const auto bytes = [&](int64_t r) { return (s.ends[r % s.count + 1] - s.ends[r % s.count]) * size; };
  const auto pad = [&](char* from, char* to, double value) {
    if (value == 0) return void(std::fill(from, to, char(0)));
    if (t == 0) std::fill((float*)from, (float*)to, float(value));
    else if (t == 1) std::fill((double*)from, (double*)to, value);
    else std::fill((uint16_t*)from, (uint16_t*)to, uint16_t(t == 2 ? 0xff80 : 0xfc00));  // -inf
  };
  const auto part = [&](int64_t first, int64_t last) {
    const int64_t row = s.width * size, tile = BLOCK * row;
    std::unique_ptr<double[]> memory(new double[((in.size() + 1) * tile + 64) / 8]);
    for (int64_t b = first * BLOCK; b < std::min(last * BLOCK, rows); b += BLOCK) {
      const int64_t held = std::min(BLOCK, rows - b);
      Args own = args;
      char* at = (char*)memory.get();
      for (auto [member, value] : in) {
        for (int64_t k = 0; k < held; k++) {
          char* to = at + k * row;
          pad(std::copy_n((const char*)(args.*member) + place(b + k), bytes(b + k), to), to + row, value);
        }
        own.*member = at;
        at += tile;
      }
      own.*out = at;
      skip(own, b);
      work(&own, 0, held, scratch_for(s.width));
      for (int64_t k = 0; k < held; k++) std::copy_n(at + k * row, bytes(b + k), (char*)(args.*out) + place(b + k));
    }
  };
  const int64_t grain = std::max<int64_t>(1, 32768 / (s.width * BLOCK));
  if (blocks <= grain) part(0, blocks);
  else torch::stable::parallel_for(0, blocks, grain, part);
}
Tensor segment_fwd(Tensor x, Tensor ptr, std::optional<Tensor> alpha, double alpha_value, int64_t width) {
  const int t = type_of(x);
  x = packed(x);
  ptr = packed(ptr);
  const Segments s(x, ptr, width);
  Tensor p = torch::stable::empty_like(x), hold = x;
  const MapArgs args{x.const_data_ptr(), p.mutable_data_ptr(), param(alpha, alpha_value, s.heads * s.count, hold),
                     width, false};
  run_segments(kernels().map[t], args, s, t, {{&MapArgs::x, -__builtin_inf()}}, &MapArgs::p);
  return p;
}
std::tuple<Tensor, Tensor> segment_bwd(Tensor p, Tensor g, Tensor ptr, std::optional<Tensor> alpha, double alpha_value,
                                       int64_t width, bool need_alpha) {
  const int t = type_of(p);
  STD_TORCH_CHECK(type_of(g) == t && g.numel() == p.numel(), "parsimax: p and its gradient differ in type or size");
  p = packed(p);
  g = packed(g);
  ptr = packed(ptr);
  const Segments s(p, ptr, width);
  const int64_t rows = s.heads * s.count;
  Tensor dx = torch::stable::empty_like(p), dalpha = one_per_row(p, rows, need_alpha), hold = p;
  const GradArgs args{p.const_data_ptr(),
                      g.const_data_ptr(),
                      dx.mutable_data_ptr(),
                      need_alpha ? (double*)dalpha.mutable_data_ptr() : nullptr,
                      param(alpha, alpha_value, rows, hold),
                      width,
                      false};
  run_segments(kernels().grad[t], args, s, t, {{&GradArgs::p, 0.0}, {&GradArgs::g, 0.0}}, &GradArgs::dx);
  return {dx, dalpha};
}

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_segment_fwd", TORCH_BOX(&segment_fwd));
  m.impl("_segment_bwd", TORCH_BOX(&segment_bwd));
}

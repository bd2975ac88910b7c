// entmax on rows of any length that lie one behind the other.
#include "run.h"

using namespace parsimax;

// Rows of any length, one behind the other: of x (entries, heads), row k heads + h is x[ends[k] : ends[k + 1], h]. Some
// at a time are padded to `width`, that of the longest, so that their bits are those of the padded tensor; where the
// bits do not depend on how far a row is padded, to the longest among them.
struct Segments {
  int64_t heads, entries, count, width;
  const int64_t* ends;
  Segments(const Tensor& x, const Tensor& ptr, int64_t width)
      : heads(x.size(1)),
        entries(x.size(0)),
        count(ptr.numel() - 1),
        width(width),
        ends((const int64_t*)ptr.const_data_ptr()) {
    bool fine = count >= 0 && ends[0] == 0 && ends[count] == entries;
    for (int64_t k = 0; k < count && fine; k++) fine = ends[k] <= ends[k + 1] && ends[k + 1] - ends[k] <= width;
    STD_TORCH_CHECK(fine, "parsimax: segments must rise from 0 to the number of scores (", entries,
                    "), none longer than ", width);
  }
  // f(offset in x, length, heads, row) for what rows [first, last) have of each segment.
  template <class F> void each(int64_t first, int64_t last, F f) const {
    for (int64_t row = first; row < last;) {
      const int64_t k = row / heads, h = row % heads, some = std::min(heads - h, last - row);
      f(ends[k] * heads + h, ends[k + 1] - ends[k], some, row - first);
      row += some;
    }
  }
};
template <class Args>
static void run_segments(Work work, const Args& args, const Segments& s, int t,
                         std::initializer_list<std::pair<const void* Args::*, double>> in, void* Args::* out) {
  static constexpr int64_t SIZES[] = {4, 8, 2, 2};
  const int64_t size = SIZES[t], rows = s.heads * s.count;
  if (rows == 0 || s.width == 0) return;
  const auto whole = [](int64_t n) { return (n + 7) / 8 * 8; };  // a part of a vector costs more than a whole one
  const double alpha = args.alpha.data ? 0 : args.alpha.value;
  const bool snug = (alpha == 1 || alpha == 1.5 || alpha == 2) && s.width <= SHORT;
  const int64_t most = snug ? BLOCK : std::clamp<int64_t>(16384 / s.width / BLOCK * BLOCK, BLOCK, 4 * BLOCK),
                tile = most * whole(s.width) * size;
  const auto pad = [&](char* from, char* to, double value) {
    if (value == 0) return void(std::fill(from, to, char(0)));
    if (t == 0) std::fill((float*)from, (float*)to, float(value));
    else if (t == 1) std::fill((double*)from, (double*)to, value);
    else std::fill((uint16_t*)from, (uint16_t*)to, uint16_t(t == 2 ? 0xff80 : 0xfc00));  // -inf
  };
  const auto part = [&](int64_t first, int64_t last) {
    std::unique_ptr<double[]> memory(new double[((in.size() + 1) * tile + 64) / 8]);
    for (int64_t b = first * most; b < std::min(last * most, rows); b += most) {
      const int64_t end = std::min(b + most, rows);
      int64_t width = snug ? 1 : s.width;
      if (snug) s.each(b, end, [&](int64_t, int64_t n, int64_t, int64_t) { width = std::max(width, whole(n)); });
      const int64_t row = width * size;
      Args own = args;
      own.n = width;
      char* at = (char*)memory.get();
      for (auto [member, value] : in) {
        s.each(b, end, [&](int64_t offset, int64_t n, int64_t some, int64_t r) {
          char* to = at + r * row;
          kernels().take[t]((const char*)(args.*member) + offset * size, s.heads, n, some, width, to);
          if (n < width)
            for (int64_t k = 0; k < some; k++) pad(to + k * row + n * size, to + (k + 1) * row, value);
        });
        own.*member = at;
        at += tile;
      }
      own.*out = at;
      skip(own, b);
      work(&own, 0, end - b, scratch_for(width));
      s.each(b, end, [&](int64_t offset, int64_t n, int64_t some, int64_t r) {
        kernels().put[t](at + r * row, s.heads, n, some, width, (char*)(args.*out) + offset * size);
      });
    }
  };
  const int64_t tiles = (rows + most - 1) / most, grain = std::max<int64_t>(1, 32768 / (s.width * most));
  if (tiles <= grain) part(0, tiles);
  else torch::stable::parallel_for(0, tiles, grain, part);
}
Tensor segment_fwd(Tensor x, Tensor ptr, std::optional<Tensor> alpha, double alpha_value, int64_t width) {
  const int t = type_of(x);
  x = packed(x);
  ptr = packed(ptr);
  const Segments s(x, ptr, width);
  Tensor p = torch::stable::empty_like(x), hold = x;
  MapArgs args{x.const_data_ptr(), p.mutable_data_ptr(), param(alpha, alpha_value, s.heads * s.count, hold), width,
               false};
  args.longest = width;
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

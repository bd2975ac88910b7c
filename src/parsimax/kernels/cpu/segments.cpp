// entmax on rows of any length that lie one behind the other.
#include "run.h"

using namespace parsimax;

// Rows of any length, one behind the other: of x (entries, heads), row k heads + h is x[ends[k] : ends[k + 1], h]. Some
// at a time are padded to `width`, that of the longest, so that their bits are those of the padded tensor; where these
// do not depend on how far a row is padded, less far (snug.inl).
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
static bool by_alpha(const MapArgs&) { return false; }
static bool by_alpha(const GradArgs& args) { return args.dalpha; }
template <class Args>
static void run_segments(Work work, Fit fits, const Args& args, const Segments& s, int t,
                         std::initializer_list<std::pair<const void* Args::*, double>> in, void* Args::* out) {
  static constexpr int64_t SIZES[] = {4, 8, 2, 2}, LINE = 64;
  const int64_t size = SIZES[t], rows = s.heads * s.count;
  if (rows == 0 || s.width == 0) return;
  const auto whole = [](int64_t n) { return (n + 7) / 8 * 8; };  // a part of a vector costs more than a whole one
  const int64_t tile =
      (BLOCK * whole(s.width) * size / LINE + 3) * LINE;  // two tiles a page apart would be in each other's way
  const bool differ = args.alpha.data && args.alpha.stride;
  const auto alpha = [&](int64_t row) {
    const Param& a = args.alpha;
    if (!a.data) return a.value;
    return a.wide ? ((const double*)a.data)[row * a.stride] : double(((const float*)a.data)[row * a.stride]);
  };
  const double one = differ ? 0 : alpha(0);
  const bool plain = (one == 1 || one == 1.5 || one == 2) && s.width <= SHORT;  // the longest may be padded too
  const auto padded = [&](int64_t first, int64_t last) {
    int64_t width = 1;
    s.each(first, last, [&](int64_t, int64_t n, int64_t some, int64_t r) {
      for (int64_t k = 0; k < (differ ? some : 1); k++)
        width = std::max(width, fits(differ ? alpha(first + r + k) : one, by_alpha(args), n, s.width));
    });
    if (differ && width > SHORT) return s.width;
    return plain ? whole(width) : std::min(whole(width), s.width);
  };
  const auto pad = [&](char* from, char* to, double value) {
    if (value == 0) return void(std::fill(from, to, char(0)));
    if (t == 0) std::fill((float*)from, (float*)to, float(value));
    else if (t == 1) std::fill((double*)from, (double*)to, value);
    else std::fill((uint16_t*)from, (uint16_t*)to, uint16_t(t == 2 ? 0xff80 : 0xfc00));  // -inf
  };
  const auto part = [&](int64_t first, int64_t last) {
    std::unique_ptr<char[]> memory(new char[(in.size() + 1) * tile + LINE]);
    char* const start = (char*)(((uintptr_t)memory.get() + LINE - 1) / LINE * LINE);
    for (int64_t b = first * BLOCK; b < std::min(last * BLOCK, rows); b += BLOCK) {
      const int64_t end = std::min(b + BLOCK, rows), width = padded(b, end), row = width * size;
      Args own = args;
      own.n = width;
      char* at = start;
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
  const int64_t tiles = (rows + BLOCK - 1) / BLOCK, grain = std::max<int64_t>(1, 32768 / (s.width * BLOCK));
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
  run_segments(kernels().map[t], kernels().map_fits[t], args, s, t, {{&MapArgs::x, -__builtin_inf()}}, &MapArgs::p);
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
  run_segments(kernels().grad[t], kernels().grad_fits[t], args, s, t, {{&GradArgs::p, 0.0}, {&GradArgs::g, 0.0}},
               &GradArgs::dx);
  return {dx, dalpha};
}

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_segment_fwd", TORCH_BOX(&segment_fwd));
  m.impl("_segment_bwd", TORCH_BOX(&segment_bwd));
}

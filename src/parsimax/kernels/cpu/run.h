// What the row operators share: types, layouts, parameters, and rows dealt out to threads.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "level.h"

namespace parsimax {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline const RowKernels& kernels() { return level().rows; }

inline int type_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return 0;
    case ScalarType::Double:
      return 1;
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Half:
      return 3;
    default:
      STD_TORCH_CHECK(false, "parsimax: scores must be float32, float64, bfloat16 or float16");
      return 0;
  }
}
struct Rows {
  int64_t n, rows, apart = 1;  // apart: how far the numbers of a row are from each other
};
inline Rows rows_of(const Tensor& x) {
  STD_TORCH_CHECK(x.dim() > 0, "parsimax: the row kernels need at least one dimension");
  const int64_t n = x.size(x.dim() - 1);
  STD_TORCH_CHECK(n < (int64_t(1) << 31) - 256, "parsimax: rows of 2^31 numbers or more are not supported, got ", n);
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); d++) rows *= x.size(d);
  return {n, rows};
}
// Each thread keeps the scratch of ordinary rows; that of very long ones is given back with the next shorter call.
inline void* scratch_for(int64_t n) {
  struct Buffer {
    std::unique_ptr<char[]> data;
    int64_t size = 0;
  };
  static thread_local Buffer buffer;
  const int64_t bytes = scratch_bytes(n) + 64;
  if (bytes > buffer.size || buffer.size > (int64_t(16) << 20)) {
    buffer.size = 0;
    buffer.data.reset(new char[bytes]);
    buffer.size = bytes;
  }
  return (void*)(((uintptr_t)buffer.data.get() + 63) & ~uintptr_t(63));
}
inline Tensor packed(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }
inline void run(Work work, const void* args, Rows r) {
  if (r.rows == 0 || r.n == 0) return;
  const int64_t blocks = (r.rows + BLOCK - 1) / BLOCK, grain = std::max<int64_t>(1, 32768 / (r.n * BLOCK));
  auto part = [&](int64_t b, int64_t e) { work(args, b * BLOCK, std::min(e * BLOCK, r.rows), scratch_for(r.n)); };
  if (blocks <= grain) part(0, blocks);
  else torch::stable::parallel_for(0, blocks, grain, part);
}
// How far apart the numbers of a row of x (..., n) are, if x is the view of a contiguous tensor whose n stands
// elsewhere; 1 if it is contiguous, and 0 if it is neither.
inline int64_t spacing(const Tensor& x) {
  if (x.is_contiguous()) return 1;
  const int64_t last = x.dim() - 1, n = x.size(last);
  int64_t expected = 1, d = last - 1;
  const auto pass = [&] {
    for (; d >= 0 && (x.size(d) == 1 || x.stride(d) == expected); d--) expected *= x.size(d);
  };
  pass();
  if (n < 2 || x.stride(last) != expected) return 0;
  expected *= n;
  pass();
  return d < 0 ? x.stride(last) : 0;
}
// Tensors of one layout: rows that lie apart in the same way, or else packed.
inline Rows aligned(std::initializer_list<Tensor*> tensors) {
  Rows r = rows_of(**tensors.begin());
  r.apart = spacing(**tensors.begin());
  for (Tensor* t : tensors)
    if (spacing(*t) != r.apart) r.apart = 0;
  if (r.apart) return r;
  for (Tensor* t : tensors) *t = packed(*t);
  r.apart = 1;
  return r;
}
inline void skip(Param& p, int64_t rows) {
  if (p.data) p.data = (const char*)p.data + rows * p.stride * (p.wide ? 8 : 4);
}
inline void skip(MapArgs& a, int64_t rows) { skip(a.alpha, rows), a.dense += a.dense ? rows : 0; }
inline void skip(GradArgs& a, int64_t rows) {
  skip(a.alpha, rows);
  a.dalpha += a.dalpha ? rows : 0;
  a.dense += a.dense ? rows : 0;
}
inline void skip(ThresholdArgs& a, int64_t rows) {
  skip(a.param, rows);
  a.dparam += a.dparam ? rows : 0;
  a.cuts += a.cuts ? rows : 0;
}
// Rows as they lie; where their numbers are apart, some at a time through tiles. `in` and `out` are the members of Args
// that have the layout of x.
template <class Args>
void run(Work work, const Args& args, const Rows& r, int t, std::initializer_list<const void* Args::*> in,
         void* Args::* out) {
  if (r.apart == 1) return run(work, &args, r);
  if (r.rows == 0 || r.n == 0) return;
  static constexpr int64_t SIZES[] = {4, 8, 2, 2};
  const int64_t size = SIZES[t], most = std::clamp<int64_t>(16384 / r.n / BLOCK * BLOCK, BLOCK, 4 * BLOCK);
  const int64_t parts = (r.apart + most - 1) / most, tiles = r.rows / r.apart * parts, tile = most * r.n * size;
  const auto part = [&](int64_t first, int64_t last) {
    std::unique_ptr<char[]> room(new char[(in.size() + 1) * tile + 64]);
    for (int64_t k = first; k < last; k++) {
      const int64_t block = k / parts, begin = k % parts * most, rows = std::min(most, r.apart - begin);
      const int64_t offset = (block * r.n * r.apart + begin) * size;
      Args own = args;
      char* at = room.get();
      for (auto member : in) {
        kernels().take[t]((const char*)(args.*member) + offset, r.apart, r.n, rows, r.n, at);
        own.*member = at;
        at += tile;
      }
      own.*out = at;
      skip(own, block * r.apart + begin);
      work(&own, 0, rows, scratch_for(r.n));
      kernels().put[t](at, r.apart, r.n, rows, r.n, (char*)(args.*out) + offset);
    }
  };
  const int64_t grain = std::max<int64_t>(1, 32768 / (r.n * most));
  if (tiles <= grain) part(0, tiles);
  else torch::stable::parallel_for(0, tiles, grain, part);
}
// A parameter: a float, or a tensor with one number, or one per row. `hold` keeps a contiguous copy alive.
inline Param param(const std::optional<Tensor>& t, double value, int64_t rows, Tensor& hold) {
  if (!t.has_value()) return {nullptr, true, 0, value};
  const auto type = t->scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::Double,
                  "parsimax: a parameter must be float32 or float64");
  const int64_t count = t->numel();
  STD_TORCH_CHECK(count == 1 || count == rows, "parsimax: a parameter needs 1 number or one per row (", rows, "), got ",
                  count);
  hold = packed(*t);
  return {hold.const_data_ptr(), type == ScalarType::Double, count == 1 ? 0 : 1, 0};
}
// Whether a last-level cache is too small for what an operator reads and writes, `tensors` of the size of x: then its
// result will not be found there anyway, and writing past the cache spares reading the lines first. 32 MB is what a
// group of cores shares; sysconf says 320 MB in a virtual machine that has 32.
inline bool streams(const Tensor& x, int64_t tensors) {
  return int64_t(x.numel() * x.element_size()) * tensors > int64_t(32) << 20;
}
// Zeros, so that rows of length 0, which no kernel visits, have a value.
inline Tensor one_per_row(const Tensor& x, int64_t rows, bool wanted, ScalarType type = ScalarType::Double) {
  if (!wanted) return torch::stable::new_empty(x, {0}, type);
  return torch::stable::new_zeros(x, {rows}, type);
}
}  // namespace parsimax

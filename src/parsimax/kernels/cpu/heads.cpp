// The operators of the output heads: rows of a chunk of logits, which they overwrite, and functions made of pieces.
#include <cmath>
#include <tuple>

#include "heads.h"
#include "level.h"
#include "tasks.h"

using namespace parsimax;
namespace {
const HeadKernels& kernels() {
#if defined(__x86_64__)
  return level().number == 2 ? heads_avx512 : level().number == 1 ? heads_avx2 : heads_base;
#else
  return heads_base;
#endif
}
int kind_of(const Tensor& x) {
  const auto type = x.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::Double,
                  "parsimax heads: expected float32 or float64");
  return type == ScalarType::Double;
}
Pieces pieces_of(const Tensor& table, const Tensor& x, double scale, double offset, int& form) {
  STD_TORCH_CHECK(table.dim() == 2 && table.is_contiguous() && table.scalar_type() == x.scalar_type() &&
                      (table.size(1) == 2 || table.size(1) == 4) && table.size(0) > 0 &&
                      table.size(0) <= int64_t(1) << 23,
                  "parsimax heads: the table must be (pieces, 2 or 4), packed, of the type of the numbers");
  form = table.size(1) == 4;
  return {table.const_data_ptr(), table.size(0), scale, offset};
}
HeadRows rows_of(const Tensor& z, const Tensor& target) {
  STD_TORCH_CHECK(z.dim() == 2 && (z.size(1) == 0 || z.stride(1) == 1) && target.is_contiguous() &&
                      target.scalar_type() == ScalarType::Long && target.numel() == z.size(0),
                  "parsimax heads: the logits must be (rows, classes), packed in a row, with one target each");
  HeadRows a{};
  a.z = (void*)z.const_data_ptr(), a.rows = z.size(0), a.n = z.size(1), a.stride = z.stride(0);
  a.target = (const int64_t*)target.const_data_ptr();
  for (int64_t i = 0; i < a.rows; i++)
    STD_TORCH_CHECK(a.target[i] < a.n, "parsimax heads: target ", a.target[i], " is out of range for ", a.n,
                    " classes");
  return a;
}
void check_sums(const Tensor& sums, const Tensor& table) {
  STD_TORCH_CHECK(
      sums.is_contiguous() && sums.numel() == SHARES * table.numel() && sums.scalar_type() == table.scalar_type(),
      "parsimax heads: the sums must be (8, pieces, coefficients), of the type of the table");
}
int64_t scratch_of(const HeadRows& a, int kind) { return 3 * (a.n + 64) * (kind ? 8 : 4); }
void by_share(const Tensor& like, const HeadRows& a, int kind, HeadFunction f) {
  run_tasks(like, SHARES, scratch_of(a, kind), [&](int64_t share, void* scratch) { f(a, share, share + 1, scratch); });
}

std::tuple<Tensor, Tensor> head_rows(Tensor z, Tensor target, bool sigmoid) {
  const int kind = kind_of(z);
  HeadRows a = rows_of(z, target);
  Tensor loss = new_tensor(z, {a.rows}, z.scalar_type()), inverse = new_tensor(z, {a.rows}, z.scalar_type());
  a.loss = loss.mutable_data_ptr(), a.inverse = inverse.mutable_data_ptr();
  const HeadFunction f = sigmoid ? kernels().sigsoftmax[kind] : kernels().softmax[kind];
  torch::stable::parallel_for(0, a.rows, 4, [&](int64_t first, int64_t last) { f(a, first, last, nullptr); });
  return {loss, inverse};
}
Tensor head_pieces(Tensor z, Tensor target, Tensor factor, Tensor table, double scale, double offset, Tensor sums) {
  int form;
  const int kind = kind_of(z);
  HeadRows a = rows_of(z, target);
  a.pieces = pieces_of(table, z, scale, offset, form);
  check_sums(sums, table);
  STD_TORCH_CHECK(factor.numel() == a.rows && factor.is_contiguous() && factor.scalar_type() == z.scalar_type(),
                  "parsimax heads: one factor a row is needed, of the type of the logits");
  Tensor loss = new_tensor(z, {a.rows}, z.scalar_type());
  a.loss = loss.mutable_data_ptr(), a.factor = factor.const_data_ptr(), a.sums = (void*)sums.const_data_ptr();
  by_share(z, a, kind, kernels().loss[form][kind]);
  return loss;
}
std::tuple<Tensor, Tensor> head_norms(Tensor z, Tensor target, Tensor table, double scale, double offset) {
  int form;
  const int kind = kind_of(z);
  HeadRows a = rows_of(z, target);
  a.pieces = pieces_of(table, z, scale, offset, form);
  Tensor log_sum = new_tensor(z, {a.rows}, z.scalar_type()), own = new_tensor(z, {a.rows}, z.scalar_type());
  a.loss = log_sum.mutable_data_ptr(), a.inverse = own.mutable_data_ptr();
  by_share(z, a, kind, kernels().norms[form][kind]);
  return {log_sum, own};
}
void head_gradient(Tensor z, Tensor target, Tensor log_sum, Tensor factor, Tensor table, double scale, double offset,
                   Tensor sums) {
  int form;
  const int kind = kind_of(z);
  HeadRows a = rows_of(z, target);
  a.pieces = pieces_of(table, z, scale, offset, form);
  check_sums(sums, table);
  STD_TORCH_CHECK(factor.numel() == a.rows && factor.is_contiguous() && factor.scalar_type() == z.scalar_type() &&
                      log_sum.numel() == a.rows && log_sum.is_contiguous() && log_sum.scalar_type() == z.scalar_type(),
                  "parsimax heads: one factor and one sum a row are needed, of the type of the logits");
  a.factor = factor.const_data_ptr(), a.log_sum = log_sum.const_data_ptr(), a.sums = (void*)sums.const_data_ptr();
  by_share(z, a, kind, kernels().gradient[form][kind]);
}

Tensor pieces_forward(Tensor x, Tensor table, double scale, double offset) {
  int form;
  const int kind = kind_of(x);
  x = torch::stable::contiguous(x);
  Tensor out = torch::stable::empty_like(x);
  const PieceArgs a{x.const_data_ptr(),
                    nullptr,
                    out.mutable_data_ptr(),
                    x.numel(),
                    pieces_of(table, x, scale, offset, form),
                    nullptr};
  constexpr int64_t STEP = 4096;
  torch::stable::parallel_for(0, (a.n + STEP - 1) / STEP, 4, [&](int64_t first, int64_t last) {
    kernels().forward[form][kind](a, first * STEP, std::min(a.n, last * STEP));
  });
  return out;
}
std::tuple<Tensor, Tensor> pieces_backward(Tensor g, Tensor x, Tensor table, double scale, double offset) {
  int form;
  const int kind = kind_of(x);
  STD_TORCH_CHECK(g.numel() == x.numel() && g.scalar_type() == x.scalar_type(),
                  "parsimax heads: the numbers and the gradient differ in type or size");
  x = torch::stable::contiguous(x), g = torch::stable::contiguous(g);
  Tensor dx = torch::stable::empty_like(x);
  Tensor sums = new_tensor(x, {SHARES, table.size(0), table.size(1)}, x.scalar_type());
  torch::stable::zero_(sums);
  const PieceArgs a{x.const_data_ptr(),
                    g.const_data_ptr(),
                    dx.mutable_data_ptr(),
                    x.numel(),
                    pieces_of(table, x, scale, offset, form),
                    sums.mutable_data_ptr()};
  run_tasks(x, SHARES, 0, [&](int64_t share, void*) { kernels().backward[form][kind](a, share, share + 1); });
  return {dx, sums};
}

// Of raw slopes v (K): (value at the left end, rise) of each piece, f(0) = 0. One scalar function of each slope and
// sums in order, so the number of threads changes no bit.
template <class T> void fill_table(const Tensor& raw, double width, Tensor& table) {
  const int64_t count = raw.numel();
  const T* v = (const T*)raw.const_data_ptr();
  T* t = (T*)table.mutable_data_ptr();
  Tensor rises = new_tensor(raw, {count}, ScalarType::Double);
  double* rise = (double*)rises.mutable_data_ptr();
  torch::stable::parallel_for(0, count, 4096, [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; j++)
      rise[j] =
          width * (v[j] > 0 ? double(v[j]) + std::log1p(std::exp(-double(v[j]))) : std::log1p(std::exp(double(v[j]))));
  });
  const auto set = [&](int64_t j, double left) {
    const T least = std::numeric_limits<T>::min();
    t[2 * j] = T(left), t[2 * j + 1] = T(rise[j]) < least ? least : T(rise[j]);
  };
  double at = 0;
  for (int64_t j = count / 2; j < count; j++) set(j, at), at += rise[j];
  at = 0;
  for (int64_t j = count / 2; j-- > 0;) at -= rise[j], set(j, at);
}
Tensor plif_table(Tensor raw, double bound) {
  kind_of(raw);
  raw = torch::stable::contiguous(raw);
  Tensor table = new_tensor(raw, {raw.numel(), 2}, raw.scalar_type());
  const double width = 2 * bound / double(raw.numel());
  raw.scalar_type() == ScalarType::Double ? fill_table<double>(raw, width, table)
                                          : fill_table<float>(raw, width, table);
  return table;
}
// The way back, from sums (8, K, 2) of g and g place: right of 0 a rise lifts the pieces after it, left of 0 it lowers
// itself and the pieces before it.
template <class T> void fill_slopes(const Tensor& sums, const Tensor& raw, double width, Tensor& out) {
  const int64_t count = raw.numel();
  const T *h = (const T*)sums.const_data_ptr(), *v = (const T*)raw.const_data_ptr();
  T* d = (T*)out.mutable_data_ptr();
  Tensor both = new_tensor(raw, {2, count}, ScalarType::Double);
  double *g = (double*)both.mutable_data_ptr(), *own = g + count;
  torch::stable::parallel_for(0, count, 4096, [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; j++) {
      g[j] = own[j] = 0;
      for (int64_t p = 0; p < SHARES; p++) g[j] += h[(p * count + j) * 2], own[j] += h[(p * count + j) * 2 + 1];
    }
  });
  double run = 0;
  for (int64_t j = count; j-- > count / 2;) own[j] += run, run += g[j];
  run = 0;
  for (int64_t j = 0; j < count / 2; j++) run += g[j], own[j] -= run;
  torch::stable::parallel_for(0, count, 4096, [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; j++) d[j] = T(own[j] * width / (1 + std::exp(-double(v[j]))));
  });
}
Tensor plif_slopes(Tensor sums, Tensor raw, double bound) {
  kind_of(raw);
  STD_TORCH_CHECK(
      sums.is_contiguous() && sums.numel() == 2 * SHARES * raw.numel() && sums.scalar_type() == raw.scalar_type(),
      "parsimax heads: the sums must be (8, pieces, 2), of the type of the slopes");
  raw = torch::stable::contiguous(raw);
  Tensor out = torch::stable::empty_like(raw);
  const double width = 2 * bound / double(raw.numel());
  raw.scalar_type() == ScalarType::Double ? fill_slopes<double>(sums, raw, width, out)
                                          : fill_slopes<float>(sums, raw, width, out);
  return out;
}
}  // namespace

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_head_rows", TORCH_BOX(&head_rows));
  m.impl("_head_pieces", TORCH_BOX(&head_pieces));
  m.impl("_head_norms", TORCH_BOX(&head_norms));
  m.impl("_head_gradient", TORCH_BOX(&head_gradient));
  m.impl("_pieces_fwd", TORCH_BOX(&pieces_forward));
  m.impl("_pieces_bwd", TORCH_BOX(&pieces_backward));
  m.impl("_plif_table", TORCH_BOX(&plif_table));
  m.impl("_plif_slopes", TORCH_BOX(&plif_slopes));
}

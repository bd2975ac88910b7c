// What the operators with scratch memory share: tasks on torch's threads, and tensors as the kernels want them.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace parsimax {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline Tensor new_tensor(const Tensor& like, std::initializer_list<int64_t> size, ScalarType type) {
  return torch::stable::new_empty(like, {size.begin(), size.size()}, type);
}

// f(task, scratch) for every task, each thread taking the next one that is left. A task's result must not depend on
// which thread runs it. The scratch is allocated here because an exception must not cross the threads' C boundary.
template <class F> void run_tasks(const Tensor& like, int64_t tasks, int64_t scratch_bytes, const F& f) {
  if (tasks <= 0) return;
  const int64_t threads = std::min<int64_t>(tasks, torch::stable::get_num_threads());
  const int64_t bytes = (scratch_bytes + 127) / 64 * 64;
  Tensor memory = new_tensor(like, {threads * bytes + 64}, ScalarType::Byte);
  const auto start = ((uintptr_t)memory.mutable_data_ptr() + 63) & ~uintptr_t(63);
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t first, int64_t) {
    for (int64_t task; (task = next++) < tasks;) f(task, (void*)(start + first * bytes));
  });
}

// (blocks, parts, n) summed over the parts, in their order.
inline Tensor add_parts(const Tensor& x) {
  const int64_t blocks = x.size(0), parts = x.size(1), n = x.size(2);
  Tensor total = new_tensor(x, {blocks, n}, x.scalar_type());
  const auto add = [&]<class T>(T*) {
    const T* from = (const T*)x.const_data_ptr();
    T* to = (T*)total.mutable_data_ptr();
    torch::stable::parallel_for(0, blocks * n, 1 << 14, [&](int64_t first, int64_t last) {
      for (int64_t i = first, end; i < last; i = end) {  // of one block
        const int64_t block = i / n;
        end = std::min(last, (block + 1) * n);
        const T* at = from + block * (parts - 1) * n;
        for (int64_t j = i; j < end; j++) to[j] = at[j];
        for (int64_t p = 1; p < parts; p++)
          for (int64_t j = i; j < end; j++) to[j] += at[p * n + j];
      }
    });
  };
  x.scalar_type() == ScalarType::Double ? add((double*)nullptr) : add((float*)nullptr);
  return total;
}

// float64 is computed in float64, everything else in float32.
inline ScalarType compute_type(const Tensor& x) {
  const auto t = x.scalar_type();
  STD_TORCH_CHECK(
      t == ScalarType::Float || t == ScalarType::Double || t == ScalarType::BFloat16 || t == ScalarType::Half,
      "parsimax: expected float32, float64, bfloat16 or float16");
  return t == ScalarType::Double ? t : ScalarType::Float;
}
inline Tensor as_type(const Tensor& x, ScalarType type) {
  return x.scalar_type() == type ? x : torch::stable::to(x, type);
}
constexpr int64_t FEATURES = 16;  // the kernels read features in steps of this many
inline int64_t padded(int64_t n) { return (n + FEATURES - 1) / FEATURES * FEATURES; }
// This type, unit stride along the last dimension, whole steps of features (zeros appended).
inline Tensor features(Tensor x, ScalarType type) {
  x = as_type(x, type);
  const int64_t last = x.dim() - 1, n = x.size(last);
  if (padded(n) != n) {
    const int64_t amount[] = {0, padded(n) - n};
    return torch::stable::pad(x, {amount, 2});
  }
  return n == 0 || x.stride(last) == 1 ? x : torch::stable::contiguous(x);
}
// The way back: drop the appended features, return to the caller's type.
inline Tensor restore(Tensor x, int64_t n, ScalarType type) {
  const int64_t last = x.dim() - 1;
  if (x.size(last) != n) x = torch::stable::narrow(x, last, 0, n);
  return torch::stable::contiguous(as_type(x, type));
}
}  // namespace parsimax

// Matrix products on tiles that stay in cache, for callers that own a thread. Every number of C is one chain of fused
// multiply-adds in the order of k, whatever the tile it falls in, so a product computed again in the backward has the
// same bits.
#pragma once
#include "simd.inl"
namespace {
// Rows and vectors of the register tile: as many accumulators as the registers hold beside a column block of B.
#if defined(__AVX512F__)
constexpr int MR = 6, NV = 4;
#elif defined(__AVX2__)
constexpr int MR = 6, NV = 2;
#elif defined(__aarch64__)
constexpr int MR = 6, NV = 4;
#else
constexpr int MR = 4, NV = 2;
#endif
template <class T> constexpr i64 NR = NV * W<T>;  // columns of a packed panel
// Few columns in all make one narrow panel.
template <class T> inline i64 panel_width(i64 cols) {
  return cols <= W<T> ? W<T> : cols <= 2 * W<T> ? 2 * W<T> : NR<T>;
}

enum class Into { set, add };

// C[m, n] (+)= scale * sum_k A[m, k] B[k, n] for R rows and N vectors of columns. A is read one number at a time, at
// a + m * a_row + k * a_col, so a transposed A costs nothing; B and C have unit stride along n.
template <class T, int R, int N>
inline void micro(const T* a, i64 a_row, i64 a_col, const T* b, i64 ldb, T* c, i64 ldc, i64 depth, T scale, Into into) {
  V<T> acc[R][N] = {};
  for (i64 k = 0; k < depth; k++) {
    V<T> col[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; v++) col[v] = load<T>(b + k * ldb + v * W<T>);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      const T x = a[r * a_row + k * a_col];
#pragma GCC unroll 4
      for (int v = 0; v < N; v++) acc[r][v] += x * col[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < N; v++) {
      T* at = c + r * ldc + v * W<T>;
      store<T, T>(at, into == Into::add ? load<T>(at) + scale * acc[r][v] : scale * acc[r][v]);
    }
}

template <class T, int N, int R = MR>
inline void micro_rows(i64 rows, const T* a, i64 a_row, i64 a_col, const T* b, i64 ldb, T* c, i64 ldc, i64 depth,
                       T scale, Into into) {
  if constexpr (R > 0) {
    if (rows == R) return micro<T, R, N>(a, a_row, a_col, b, ldb, c, ldc, depth, scale, into);
    micro_rows<T, N, R - 1>(rows, a, a_row, a_col, b, ldb, c, ldc, depth, scale, into);
  }
}

// All rows against N vectors of columns. B of one call should fit the first-level cache.
template <class T, int N>
inline void strip(i64 rows, const T* a, i64 a_row, i64 a_col, const T* b, i64 ldb, T* c, i64 ldc, i64 depth, T scale,
                  Into into) {
  for (i64 r = 0; r < rows; r += MR)
    micro_rows<T, N>(rows - r < MR ? rows - r : MR, a + r * a_row, a_row, a_col, b, ldb, c + r * ldc, ldc, depth, scale,
                     into);
}

// Scores: C[rows, cols] = scale * A B with B packed in panels of `width` columns, zero-filled past the last column. C
// is written up to the end of the last panel.
template <class T>
void product_packed(i64 rows, i64 cols, i64 depth, T scale, const T* a, i64 a_row, const T* panels, T* c, i64 ldc,
                    i64 width = NR<T>) {
  if (width < NR<T>) {
    if (width == W<T>) return strip<T, 1>(rows, a, a_row, 1, panels, width, c, ldc, depth, scale, Into::set);
    return strip<T, 2>(rows, a, a_row, 1, panels, width, c, ldc, depth, scale, Into::set);
  }
  for (i64 j = 0; j < cols; j += NR<T>)
    strip<T, NV>(rows, a, a_row, 1, panels + j * depth, NR<T>, c + j, ldc, depth, scale, Into::set);
}

// The same for B of any storage type, converted once.
constexpr i64 DEEPEST = 128;
template <class T, int N, class S>
inline void strip_of(i64 rows, const T* a, i64 a_row, i64 a_col, const S* b, i64 ldb, T* c, i64 ldc, i64 depth,
                     Into into) {
  if constexpr (same<S, T>) strip<T, N>(rows, a, a_row, a_col, b, ldb, c, ldc, depth, T(1), into);
  else {
    T block[DEEPEST * N * W<T>];
    for (i64 k = 0; k < depth; k++)
      for (int v = 0; v < N; v++) store<T, T>(block + (k * N + v) * W<T>, load<T>(b + k * ldb + v * W<T>));
    strip<T, N>(rows, a, a_row, a_col, block, N * W<T>, c, ldc, depth, T(1), into);
  }
}

// C[rows, cols] (+)= A B with B plain, a row of B every ldb; cols is a multiple of W. Blocks of k keep B in cache.
template <class T, class S>
void product(i64 rows, i64 cols, i64 depth, const T* a, i64 a_row, i64 a_col, const S* b, i64 ldb, T* c, i64 ldc,
             Into into) {
  constexpr i64 BLOCK = DEEPEST;
  if (depth == 0 && into == Into::set)
    for (i64 r = 0; r < rows; r++)
      for (i64 j = 0; j < cols; j++) c[r * ldc + j] = 0;
  for (i64 k = 0; k < depth; k += BLOCK) {
    const i64 n = depth - k < BLOCK ? depth - k : BLOCK;
    const Into now = k == 0 ? into : Into::add;
    i64 j = 0;
    for (; j + NR<T> <= cols; j += NR<T>)
      strip_of<T, NV>(rows, a + k * a_col, a_row, a_col, b + k * ldb + j, ldb, c + j, ldc, n, now);
    for (; j + 2 * W<T> <= cols; j += 2 * W<T>)
      strip_of<T, 2>(rows, a + k * a_col, a_row, a_col, b + k * ldb + j, ldb, c + j, ldc, n, now);
    for (; j < cols; j += W<T>)
      strip_of<T, 1>(rows, a + k * a_col, a_row, a_col, b + k * ldb + j, ldb, c + j, ldc, n, now);
  }
}

// Panel of B^T: the rows x, x + stride, ... (n of them, depth numbers each; depth a multiple of W) become columns,
// `width` to a panel.
template <class T, class S> void pack_panel(const S* x, i64 stride, i64 n, i64 depth, T* panel, i64 width = NR<T>) {
  for (i64 j = 0; j < width; j += W<T>)
    for (i64 k = 0; k < depth; k += W<T>)
      transpose<T>([&](int i) { return j + i < n ? load<T>(x + (j + i) * stride + k) : V<T>{}; },
                   [&](int i, V<T> v) { store<T, T>(panel + (k + i) * width + j, v); });
}
}  // namespace

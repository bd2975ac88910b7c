// SparseMAP of one item by the active-set method:
//
//   max over distributions y on vertices a    scores . A y - 1/2 |M y|^2,
//
// where M are the parts that are penalised and A has the extra parts (transitions) below them. The Gram matrix is
// bordered by a constant, G = M'M + 1 1': that changes nothing on sum y = 1, and G is positive definite as soon as the
// vertices are affinely independent, the zero vector among them or not.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "structured_oracles.h"

namespace parsimax::structured {
// The row r that is appended to L, from its products with the rows before it; returns the square of its pivot.
PARSIMAX_LOOP double solve_lower(const double* rows, int64_t stride, int64_t size, const double* products, double self,
                                 double* r) {
  for (int64_t i = 0; i < size; i++) {
    const double* l = rows + i * stride;
    double sums[4] = {0, 0, 0, 0}, rest = products[i];
    int64_t j = 0;
    for (; j + 4 <= i; j += 4)
      for (int64_t lane = 0; lane < 4; lane++) sums[lane] += l[j + lane] * r[j + lane];
    for (; j < i; j++) rest -= l[j] * r[j];
    r[i] = (rest - ((sums[0] + sums[1]) + (sums[2] + sums[3]))) / l[i];
    self -= r[i] * r[i];
  }
  return self;
}
PARSIMAX_LOOP void solve_upper_by_rows(const double* rows, int64_t stride, int64_t size, double* __restrict x) {
  for (int64_t i = size - 1; i >= 0; i--) {
    const double* __restrict l = rows + i * stride, v = x[i] /= l[i];
    for (int64_t j = 0; j < i; j++) x[j] -= v * l[j];
  }
}

// A Cholesky factor whose rows can be appended and removed, with one = L^-1 1 and right = L^-1 theta beside it.
struct Cholesky {
  int64_t size = 0, stride = 0;
  std::vector<double> rows, one, right;

  double* row(int64_t i) { return rows.data() + i * stride; }
  void reserve(int64_t n) {
    if (n <= stride) return;
    const int64_t wider = std::max(n, 2 * stride + 16);
    std::vector<double> moved(wider * wider);
    for (int64_t i = 0; i < size; i++) std::copy_n(row(i), i + 1, moved.data() + i * wider);
    rows.swap(moved);
    stride = wider;
    one.resize(wider), right.resize(wider);
  }
  // Row `size` from the products with the rows before it; returns the square of its pivot, 0 if it depends on them.
  double try_append(const double* products, double self) {
    reserve(size + 1);
    return solve_lower(rows.data(), stride, size, products, self, row(size));
  }
  void append(double pivot, double theta) {
    double *r = row(size), a = 1, b = theta;
    r[size] = std::sqrt(pivot);
    for (int64_t j = 0; j < size; j++) a -= r[j] * one[j], b -= r[j] * right[j];
    one[size] = a / r[size], right[size] = b / r[size];
    size++;
  }
  void solve_upper(double* x) const { solve_upper_by_rows(rows.data(), stride, size, x); }  // L' x = x, in place
  void remove(int64_t at) {  // Givens rotations make the triangle again
    for (int64_t i = at; i + 1 < size; i++) std::copy_n(row(i + 1), i + 2, row(i));
    size--;
    for (int64_t c = at; c < size; c++) {
      const double a = row(c)[c], b = row(c)[c + 1], h = std::hypot(a, b), cosine = a / h, sine = b / h;
      const auto rotate = [&](double& x, double& y) {
        const double z = cosine * x + sine * y;
        y = cosine * y - sine * x, x = z;
      };
      row(c)[c] = h;
      for (int64_t i = c + 1; i < size; i++) rotate(row(i)[c], row(i)[c + 1]);
      rotate(one[c], one[c + 1]);
      rotate(right[c], right[c + 1]);
    }
  }
  // Another theta in the place of the one that came with the rows.
  void load(const double* theta) { solve_lower(rows.data(), stride, size, theta, 0, right.data()); }
  // The multiplier and the y of: G y + tau 1 = theta, sum y = total.
  double solve(std::vector<double>& y, double total) {
    double one_right = 0, one_one = 0;
    for (int64_t i = 0; i < size; i++) one_right += one[i] * right[i], one_one += one[i] * one[i];
    const double tau = (one_right - total) / one_one;
    y.resize(size);
    for (int64_t i = 0; i < size; i++) y[i] = right[i] - tau * one[i];
    solve_upper(y.data());
    return tau;
  }
};

// The products of vertex a with `count` others under the Gram matrix, and with itself.
template <class Oracle, class Unit>
double bordered(const Oracle& oracle, const Unit* others, int64_t count, const Unit* a, std::vector<double>& products) {
  double self;
  products.resize(count);
  oracle.overlaps(others, count, a, products.data());
  oracle.overlaps(a, 1, a, &self);
  for (double& each : products) each += 1;
  return self + 1;
}

struct Limits {
  int64_t iterations, support;
  double tolerance;
};

template <class Oracle> struct ActiveSet {
  using Unit = typename Oracle::Unit;
  // Parts that are fitted tie exactly, and rounding would choose among the vertices of a tie. A fixed direction, far
  // above rounding and far below the scores, chooses instead; the exact oracle is asked before stopping.
  static constexpr double TIE = 1e-9, DEPENDENT = 1e-10, SPENT = 1e-13;
  static constexpr double FACE = 1e-9, NEW = 1e-6, TILTS[2] = {1e-6, 1e-8};
  Oracle& oracle;
  const double* scores = nullptr;
  std::vector<Unit> vertices, fresh;
  std::vector<double> y, target, theta, products, marginals, residual, tilted, across, direction;
  Cholesky factor;
  double origin = 0, multiplier = 0, gap = 0;
  int64_t iterations = 0;

  explicit ActiveSet(Oracle& o)
      : oracle(o),
        fresh(o.len),
        marginals(o.parts),
        residual(o.parts),
        tilted(o.parts),
        across(o.parts),
        direction(o.parts) {
    uint64_t x = 88172645463325252ull;
    for (double& d : direction) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      d = (double)(x >> 11) / (double)(1ull << 53) - 0.5;
    }
  }
  const Unit* vertex(int64_t i) const { return vertices.data() + i * oracle.len; }
  void erase(int64_t i) {
    const auto start = vertices.begin() + i * oracle.len;
    vertices.erase(start, start + oracle.len);
    y.erase(y.begin() + i), theta.erase(theta.begin() + i);
    factor.remove(i);
  }
  void insert(const Unit* a, double weight, double own, double pivot) {
    vertices.insert(vertices.end(), a, a + oracle.len);
    y.push_back(weight), theta.push_back(own);
    factor.append(pivot, own);
  }
  // Take a vertex in. One that depends affinely on the others, a = sum c_i a_i with sum c = 1, leaves the marginals as
  // they are along (-c, 1), where the objective rises: go until a weight is spent.
  bool push(const Unit* a, bool replace, double dependent = DEPENDENT) {
    const double self = bordered(oracle, vertices.data(), factor.size, a, products), score = oracle.value(scores, a);
    if (factor.size == 0) origin = score;
    double pivot = factor.try_append(products.data(), self);
    if (pivot > dependent * self) return insert(a, 0, score - origin, pivot), true;
    if (!replace) return false;
    std::vector<double> c(factor.row(factor.size), factor.row(factor.size) + factor.size);
    factor.solve_upper(c.data());
    int64_t spent = -1;
    double step = INF;
    for (int64_t i = 0; i < factor.size; i++)
      if (c[i] > 1e-12 && y[i] / c[i] < step) step = y[i] / c[i], spent = i;
    if (spent < 0) return false;
    for (int64_t i = 0; i < factor.size; i++) y[i] = std::max(0.0, y[i] - step * c[i]);
    erase(spent);
    products.erase(products.begin() + spent);
    pivot = factor.try_append(products.data(), self);
    if (!(pivot > 1e-12 * self)) return false;
    return insert(a, step, score - origin, pivot), true;
  }
  void find_marginals() {
    std::fill(marginals.begin(), marginals.end(), 0.0);
    oracle.add(vertices.data(), factor.size, y.data(), marginals.data());
    for (int64_t i = 0; i < oracle.parts; i++) residual[i] = scores[i] - marginals[i];
  }
  bool known(const Unit* a) const {
    for (int64_t i = 0; i < factor.size; i++)
      if (std::equal(a, a + oracle.len, vertex(i))) return true;
    return false;
  }
  // Vertices to begin with: those of an earlier answer that are allowed, or the best one.
  bool begin(const Unit* start, const double* weights, int64_t count) {
    vertices.clear(), y.clear(), theta.clear();
    factor.size = 0, iterations = 0;
    double sum = 0, best;
    for (int64_t i = 0; i < count; i++) {
      const Unit* a = start + i * oracle.len;
      if (!(weights[i] > 0) || !(oracle.value(scores, a) > -INF) || !push(a, false)) continue;
      sum += y.back() = weights[i];
    }
    for (double& each : y) each /= sum;
    if (!oracle.map(scores, fresh.data(), best)) return false;
    if (y.empty()) push(fresh.data(), false), y[0] = 1;
    return true;
  }
  // Towards the solution on the active vertices, until a weight is spent; true if none is.
  bool advance() {
    multiplier = factor.solve(target, 1);
    double step = 1;
    int64_t spent = -1;
    for (int64_t i = 0; i < factor.size; i++) {
      if (target[i] > 0) continue;
      const double limit = y[i] > target[i] ? y[i] / (y[i] - target[i]) : 0;
      if (spent < 0 || limit < step) step = limit, spent = i;
    }
    if (spent < 0 || factor.size == 1) return y = target, true;
    for (int64_t i = 0; i < factor.size; i++) y[i] = std::max(0.0, y[i] + step * (target[i] - y[i]));
    erase(spent);
    return false;
  }
  double value_of_answer() const {
    double sum = 0;
    for (int64_t i = 0; i < factor.size; i++) sum += y[i] * oracle.value(residual.data(), vertex(i));
    return sum;
  }
  // The derivative of the marginals is the projection onto the directions of their face, that of all best vertices. The
  // active ones can have the marginals to the last digit and yet span only a part of it: the oracle of bits halves what
  // is left with every vertex. So scores tilted both ways along a direction that is orthogonal to all that is spanned
  // ask for a vertex that is missing, until there is none; it enters with weight 0. The direction is another one each
  // time, as it too would be halved.
  void complete(double top) {
    const double own = value_of_answer();
    bool grew = true;
    for (int64_t turn = 1; grew; turn++) {
      products.resize(factor.size);
      for (int64_t i = 0; i < oracle.parts; i++) across[i] = direction[(i + turn) % oracle.parts];
      for (int64_t i = 0; i < factor.size; i++) products[i] = oracle.sum(across.data(), vertex(i));
      factor.load(products.data());
      factor.solve(target, 0);
      for (double& each : target) each = -each;
      oracle.add(vertices.data(), factor.size, target.data(), across.data());
      grew = ask(own, top, 1);
      grew = ask(own, top, -1) || grew;
    }
  }
  // A tilt can reach a vertex beside the face; a smaller one then may not.
  bool ask(double own, double top, double sign) {
    for (const double size : TILTS) {
      double best;
      for (int64_t i = 0; i < oracle.parts; i++) tilted[i] = residual[i] + sign * size * top * across[i];
      oracle.map(tilted.data(), fresh.data(), best);
      if (own - oracle.value(residual.data(), fresh.data()) <= FACE * top) return push(fresh.data(), false, NEW);
    }
    return false;
  }
  // False if no vertex is allowed. Vertices of weight 0 at the end are there for the derivative alone. gap: how much
  // the best vertex of all gains over the answer, to first order.
  bool run(const double* item, const Limits& limits, const Unit* start, const double* weights, int64_t count) {
    scores = item;
    double top = 1, best = 0;
    for (int64_t i = 0; i < oracle.parts; i++)
      if (item[i] > -INF) top = std::max(top, std::abs(item[i]));
    const double tolerance = limits.tolerance * top, tie = TIE * top;
    if (!begin(start, weights, count)) return false;
    bool settled = false;
    for (; iterations < limits.iterations; iterations++) {
      if (!(settled = advance())) continue;
      find_marginals();
      const double own = multiplier + 1 + origin;  // what every active vertex is worth
      for (int64_t i = 0; i < oracle.parts; i++) tilted[i] = residual[i] + tie * direction[i];
      oracle.map(tilted.data(), fresh.data(), best);
      gap = oracle.value(residual.data(), fresh.data()) - own;
      if (gap <= std::max(tolerance, 4 * tie * (double)oracle.most)) {
        oracle.map(residual.data(), fresh.data(), best);
        gap = best - own;
      }
      if (gap <= tolerance || factor.size >= limits.support || known(fresh.data())) break;
      settled = false;
      if (!push(fresh.data(), true)) break;
    }
    for (double& each : y)
      if (each < SPENT) each = 0;
    if (!settled) {
      double sum = 0;
      for (double each : y) sum += each;
      for (double& each : y) each /= sum;
      find_marginals();
      oracle.map(residual.data(), fresh.data(), best);
      gap = best - value_of_answer();
    }
    gap = std::max(gap, 0.0);
    if (!Oracle::SEPARABLE && gap <= FACE * top) complete(top);
    return true;
  }
};
}  // namespace parsimax::structured

// Structures as the active set sees them: parts with scores, vertices that are sets of parts, and the best vertex.
//
// An oracle is set to one item (`set`) and then answers for any scores r of its parts, the scores of its extra parts
// being fixed: `map` writes the best vertex and its value, and is false where every vertex has a part of score -inf.
// Vertices are `len` units, 64 bits a word or one label a position, and have at most `most` parts. `value` is the score
// of a vertex, `sum` that without its extra parts. Ties go to the first, so that answers repeat. SEPARABLE: the
// marginals have a closed form, which Python takes.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

// These files are compiled once, for the lowest instruction set; the loops that take the time have a second version,
// which the loader of the library chooses.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define PARSIMAX_LOOP __attribute__((target_clones("avx2", "default"))) [[maybe_unused]] static
#else
#define PARSIMAX_LOOP [[maybe_unused]] static
#endif

namespace parsimax::structured {
constexpr double INF = std::numeric_limits<double>::infinity();

using Four = double __attribute__((vector_size(32)));
using Masks = int64_t __attribute__((vector_size(32)));
// The bits of positive scores, and the sum of these; here and below without a branch: half of the bits are on, and
// which cannot be foreseen.
PARSIMAX_LOOP double turn_on_positive(const double* r, int64_t n, uint64_t* a) {
  Four sums = {0, 0, 0, 0};
  double rest = 0;
  for (int64_t first = 0; first < n; first += 64) {
    const int64_t size = std::min<int64_t>(64, n - first);
    Masks words = {0, 0, 0, 0}, bit = {1, 2, 4, 8};
    int64_t i = 0;
    for (; i + 4 <= size; i += 4, bit <<= 4) {
      Four v;
      std::memcpy(&v, r + first + i, sizeof v);
      const Masks on = v > 0;
      words |= on & bit;
      sums += (Four)((Masks)v & on);
    }
    uint64_t word = uint64_t(words[0] | words[1] | words[2] | words[3]);
    for (; i < size; i++) {
      const double v = r[first + i];
      word |= uint64_t(v > 0) << i;
      rest += v > 0 ? v : 0.0;
    }
    a[first >> 6] = word;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest;
}
// The sum of the scores of the bits that are on.
PARSIMAX_LOOP double sum_where_on(const double* r, const uint64_t* a, int64_t n) {
  Four sums = {0, 0, 0, 0};
  double rest = 0;
  for (int64_t first = 0; first < n; first += 64) {
    const Masks word = Masks{} + int64_t(a[first >> 6]);
    const int64_t size = std::min<int64_t>(64, n - first);
    Masks bit = {1, 2, 4, 8};
    int64_t i = 0;
    for (; i + 4 <= size; i += 4, bit <<= 4) {
      Four v;
      std::memcpy(&v, r + first + i, sizeof v);
      sums += (Four)((Masks)v & ((word & bit) != 0));
    }
    for (; i < size; i++) rest += a[first >> 6] >> i & 1 ? r[first + i] : 0.0;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest;
}
// u += the weights of the vectors that have a bit on, four vectors at a time.
PARSIMAX_LOOP void add_where_on(const uint64_t* vectors, int64_t count, int64_t len, int64_t n, const double* weights,
                                double* __restrict u) {
  for (int64_t v = 0; v < count; v += 4)
    for (int64_t first = 0; first < n; first += 64) {
      Masks word[4], weight[4], bit = {1, 2, 4, 8};
      for (int64_t k = 0; k < 4; k++) {
        const bool there = v + k < count;
        word[k] = Masks{} + int64_t(there ? vectors[(v + k) * len + (first >> 6)] : 0);
        weight[k] = (Masks)(Four{} + (there ? weights[v + k] : 0.0));
      }
      const int64_t size = std::min<int64_t>(64, n - first);
      for (int64_t i = 0; i < size; i += 4, bit <<= 4) {
        Four total = {0, 0, 0, 0}, here;
        for (int64_t k = 0; k < 4; k++) total += (Four)(weight[k] & ((word[k] & bit) != 0));
        if (i + 4 <= size) {
          std::memcpy(&here, u + first + i, sizeof here);
          here += total;
          std::memcpy(u + first + i, &here, sizeof here);
        } else
          for (int64_t k = 0; i + k < size; k++) u[first + i + k] += total[k];
      }
    }
}
// How many bits each of `count` vectors shares with a.
PARSIMAX_LOOP void count_shared(const uint64_t* vectors, int64_t count, const uint64_t* a, int64_t len, double* out) {
  for (int64_t i = 0; i < count; i++) {
    int64_t shared = 0;
    for (int64_t w = 0; w < len; w++) shared += std::popcount(vectors[i * len + w] & a[w]);
    out[i] = (double)shared;
  }
}
// Bits of which at least lo and at most hi are on; the parts are the bits.
struct Bits {
  static constexpr bool SEPARABLE = true;
  using Unit = uint64_t;
  int64_t len, parts, most, n, lo, hi;
  std::vector<int64_t> order;
  Bits(int64_t n, int64_t lo, int64_t hi) : len((n + 63) / 64), parts(n), most(n), n(n), lo(lo), hi(hi), order(n) {}

  void set(const double*) {}
  static void turn_on(Unit* a, int64_t i) { a[i >> 6] |= Unit(1) << (i & 63); }
  bool map(const double* r, Unit* a, double& value) {
    value = turn_on_positive(r, n, a);
    int64_t count = 0;
    for (int64_t w = 0; w < len; w++) count += std::popcount(a[w]);
    if (count >= lo && count <= hi) return true;
    const int64_t want = count > hi ? hi : lo;
    if (want < 0 || want > n) return false;
    for (int64_t i = 0; i < n; i++) order[i] = i;
    const auto better = [&](int64_t x, int64_t y) { return r[x] > r[y] || (r[x] == r[y] && x < y); };
    if (want < n) std::nth_element(order.begin(), order.begin() + want, order.begin() + n, better);
    std::fill_n(a, len, 0);
    value = 0;
    for (int64_t j = 0; j < want; j++) turn_on(a, order[j]), value += r[order[j]];
    return value > -INF;
  }
  double sum(const double* r, const Unit* a) const { return sum_where_on(r, a, n); }
  double value(const double* r, const Unit* a) const { return sum(r, a); }
  void add(const Unit* vertices, int64_t count, const double* weights, double* u) const {
    add_where_on(vertices, count, len, n, weights, u);
  }
  void overlaps(const Unit* vertices, int64_t count, const Unit* a, double* out) const {
    count_shared(vertices, count, a, len, out);
  }
};

// Any vector of a few bits, each with a score of its own as extra part, by looking at all of them. In the number of a
// vector, its place in the table, the first bit is the highest.
struct Table : Bits {
  static constexpr bool SEPARABLE = false;
  const double* table = nullptr;
  std::vector<double> sums;
  std::vector<Unit> codes;
  explicit Table(int64_t n) : Bits(n, 0, n), sums(int64_t(1) << n, 0.0), codes(int64_t(1) << n, 0) {}

  void set(const double* extra) { table = extra; }
  bool map(const double* r, Unit* a, double& value) {
    uint64_t best = 0;
    for (uint64_t z = 1; z < sums.size(); z++) {
      const int64_t bit = n - 1 - std::countr_zero(z);
      sums[z] = sums[z & (z - 1)] + r[bit], codes[z] = codes[z & (z - 1)] | Unit(1) << bit;
      if (sums[z] + table[z] > sums[best] + table[best]) best = z;
    }
    a[0] = codes[best], value = sums[best] + table[best];
    return value > -INF;
  }
  double value(const double* r, const Unit* a) const {
    int64_t place = 0;
    for (int64_t i = 0; i < n; i++) place = 2 * place + int64_t(a[0] >> i & 1);
    return sum(r, a) + table[place];
  }
};

PARSIMAX_LOOP void count_equal(const int32_t* vectors, int64_t count, const int32_t* a, int64_t len, double* out) {
  for (int64_t i = 0; i < count; i++) {
    const int32_t* b = vectors + i * len;
    int32_t equal = 0;
    for (int64_t j = 0; j < len; j++) equal += a[j] == b[j];
    out[i] = (double)equal;
  }
}
// One label of `labels` at each of `len` positions; the parts are (position, label).
struct Labels {
  static constexpr bool SEPARABLE = false;
  using Unit = int32_t;
  int64_t len, labels, parts, most;
  Labels(int64_t len, int64_t labels) : len(len), labels(labels), parts(len * labels), most(len) {}

  void set(const double*) {}
  double sum(const double* r, const Unit* a) const {
    double total = 0;
    for (int64_t i = 0; i < len; i++) total += r[i * labels + a[i]];
    return total;
  }
  double value(const double* r, const Unit* a) const { return sum(r, a); }
  void add(const Unit* vertices, int64_t count, const double* weights, double* u) const {
    for (int64_t v = 0; v < count; v++, vertices += len)
      for (int64_t i = 0; i < len; i++) u[i * labels + vertices[i]] += weights[v];
  }
  void overlaps(const Unit* vertices, int64_t count, const Unit* a, double* out) const {
    count_equal(vertices, count, a, len, out);
  }
};

// For each label the best of start[x] + moves[x, label], and which x it was: kept as a double beside the value, so that
// both fit into vectors of one shape. Four labels at a time stay in registers.
PARSIMAX_LOOP void best_moves(int64_t labels, const double* start, const double* moves, double* to, double* origin) {
  int64_t y = 0;
  for (; y + 4 <= labels; y += 4) {
    Four best, from = {0, 0, 0, 0}, v;
    std::memcpy(&best, moves + y, sizeof best);
    best += start[0];
    for (int64_t x = 1; x < labels; x++) {
      std::memcpy(&v, moves + x * labels + y, sizeof v);
      v += start[x];
      const auto better = v > best;
      best = better ? v : best;
      from = better ? Four{} + (double)x : from;
    }
    std::memcpy(to + y, &best, sizeof best);
    std::memcpy(origin + y, &from, sizeof from);
  }
  for (; y < labels; y++) {
    to[y] = start[0] + moves[y], origin[y] = 0;
    for (int64_t x = 1; x < labels; x++)
      if (start[x] + moves[x * labels + y] > to[y]) to[y] = start[x] + moves[x * labels + y], origin[y] = (double)x;
  }
}

// Transitions between neighbours: (len - 1 or 1, labels, labels), from row to column. Viterbi.
struct Chain : Labels {
  const double* transitions = nullptr;
  int64_t step;  // between the transitions of two neighbours; 0 if they are shared
  std::vector<double> best, next, from_next;
  std::vector<int32_t> from;
  Chain(int64_t len, int64_t labels, bool shared)
      : Labels(len, labels),
        step(shared ? 0 : labels * labels),
        best(labels),
        next(labels),
        from_next(labels),
        from(len * labels) {}

  void set(const double* extra) { transitions = extra; }
  bool map(const double* r, Unit* a, double& value) {
    std::copy_n(r, labels, best.data());
    for (int64_t i = 1; i < len; i++) {
      best_moves(labels, best.data(), transitions + (i - 1) * step, next.data(), from_next.data());
      for (int64_t y = 0; y < labels; y++) {
        best[y] = next[y] + r[i * labels + y];
        from[i * labels + y] = (int32_t)from_next[y];
      }
    }
    int32_t y = (int32_t)(std::max_element(best.begin(), best.end()) - best.begin());
    value = best[y];
    for (int64_t i = len - 1; i >= 0; i--) {
      a[i] = y;
      if (i) y = from[i * labels + y];
    }
    return value > -INF;
  }
  double value(const double* r, const Unit* a) const {
    double total = sum(r, a);
    for (int64_t i = 1; i < len; i++) total += transitions[(i - 1) * step + a[i - 1] * labels + a[i]];
    return total;
  }
};

// Independent positions.
struct Each : Labels {
  static constexpr bool SEPARABLE = true;
  using Labels::Labels;
  bool map(const double* r, Unit* a, double& value) {
    value = 0;
    for (int64_t i = 0; i < len; i++) {
      a[i] = (int32_t)(std::max_element(r + i * labels, r + (i + 1) * labels) - (r + i * labels));
      value += r[i * labels + a[i]];
    }
    return value > -INF;
  }
};

// A column of its own for each row, len <= labels: shortest augmenting paths with potentials.
struct Assignment : Labels {
  std::vector<double> row_potential, column_potential, distance;
  std::vector<int64_t> row_of, way;
  std::vector<char> used;
  Assignment(int64_t len, int64_t labels)
      : Labels(len, labels),
        row_potential(len + 1),
        column_potential(labels + 1),
        distance(labels + 1),
        row_of(labels + 1),
        way(labels + 1),
        used(labels + 1) {}

  bool map(const double* r, Unit* a, double& value) {
    std::fill(row_potential.begin(), row_potential.end(), 0.0);
    std::fill(column_potential.begin(), column_potential.end(), 0.0);
    std::fill(row_of.begin(), row_of.end(), 0);
    for (int64_t i = 1; i <= len; i++)
      if (!augment(r, i)) return false;
    for (int64_t j = 1; j <= labels; j++)
      if (row_of[j]) a[row_of[j] - 1] = (int32_t)(j - 1);
    value = Labels::value(r, a);
    return true;
  }
  // Rows and columns count from 1; column 0 stands for the row that is looking for one.
  bool augment(const double* r, int64_t row) {
    row_of[0] = row;
    int64_t at = 0;
    std::fill(distance.begin(), distance.end(), INF);
    std::fill(used.begin(), used.end(), 0);
    do {
      used[at] = 1;
      const int64_t i = row_of[at];
      const double* scores = r + (i - 1) * labels - 1;
      double least = INF;
      int64_t next = 0;
      for (int64_t j = 1; j <= labels; j++) {
        if (used[j]) continue;
        const double cost = -scores[j] - row_potential[i] - column_potential[j];
        if (cost < distance[j]) distance[j] = cost, way[j] = at;
        if (distance[j] < least) least = distance[j], next = j;
      }
      if (!next) return false;  // every column that is left is forbidden
      for (int64_t j = 0; j <= labels; j++) {
        if (used[j]) row_potential[row_of[j]] += least, column_potential[j] -= least;
        else distance[j] -= least;
      }
      at = next;
    } while (row_of[at]);
    for (; at; at = way[at]) row_of[at] = row_of[way[at]];
    return true;
  }
};

// Heads of len words: label 0 is the root, label j the word j - 1. A word's own label must be -inf. Chu–Liu/Edmonds.
struct Tree : Labels {
  bool one_root;
  std::vector<double> weights;
  std::vector<int64_t> heads;
  Tree(int64_t len, bool one_root) : Labels(len, len + 1), one_root(one_root), weights(labels * labels) {}

  bool map(const double* r, Unit* a, double& value) {
    double fine = 0;
    if (one_root) {  // more than any tree can win by a second word under the root
      for (int64_t i = 0; i < parts; i++)
        if (r[i] > -INF) fine = std::max(fine, std::abs(r[i]));
      fine = 1 + 2 * (double)len * fine;
    }
    for (int64_t j = 0; j < labels; j++) weights[j * labels] = -INF;
    for (int64_t i = 0; i < len; i++)
      for (int64_t h = 0; h < labels; h++) weights[h * labels + i + 1] = r[i * labels + h] - (h ? 0 : fine);
    if (!edmonds(weights, labels, heads)) return false;
    int64_t roots = 0;
    for (int64_t i = 0; i < len; i++) a[i] = (int32_t)heads[i + 1], roots += a[i] == 0;
    value = Labels::value(r, a);
    return value > -INF && (!one_root || roots <= 1);
  }
  // w[head * m + node] over m nodes, node 0 the root. False if a node has no allowed head.
  static bool edmonds(const std::vector<double>& w, int64_t m, std::vector<int64_t>& head) {
    head.assign(m, 0);
    for (int64_t v = 1; v < m; v++) {
      for (int64_t h = 1; h < m; h++)
        if (w[h * m + v] > w[head[v] * m + v]) head[v] = h;
      if (w[head[v] * m + v] == -INF) return false;
    }
    std::vector<int64_t> cycle;
    find_cycle(head, cycle);
    if (cycle.empty()) return true;
    std::vector<char> inside(m, 0);
    for (int64_t v : cycle) inside[v] = 1;
    std::vector<int64_t> kept;
    for (int64_t v = 0; v < m; v++)
      if (!inside[v]) kept.push_back(v);
    // The cycle becomes node c; entering it at v costs the edge of the cycle into v.
    const int64_t c = (int64_t)kept.size(), k = c + 1;
    std::vector<double> q(k * k, -INF);
    std::vector<int64_t> enter(c, -1), leave(c, -1), outer;
    for (int64_t a = 0; a < c; a++) {
      for (int64_t b = 1; b < c; b++)
        if (a != b) q[a * k + b] = w[kept[a] * m + kept[b]];
      for (int64_t v : cycle) {
        const double in = w[kept[a] * m + v] - w[head[v] * m + v], out = w[v * m + kept[a]];
        if (in > q[a * k + c]) q[a * k + c] = in, enter[a] = v;
        if (a && out > q[c * k + a]) q[c * k + a] = out, leave[a] = v;
      }
    }
    if (!edmonds(q, k, outer)) return false;
    for (int64_t a = 1; a < c; a++) head[kept[a]] = outer[a] == c ? leave[a] : kept[outer[a]];
    head[enter[outer[c]]] = kept[outer[c]];
    return true;
  }
  static void find_cycle(const std::vector<int64_t>& head, std::vector<int64_t>& cycle) {
    std::vector<int64_t> seen(head.size());  // 0: not yet, v: on the way from v
    for (int64_t v = 1; cycle.empty() && v < (int64_t)head.size(); v++) {
      int64_t at = v;
      while (at && !seen[at]) seen[at] = v, at = head[at];
      if (!at || seen[at] != v) continue;
      for (int64_t z = at; cycle.empty() || z != at; z = head[z]) cycle.push_back(z);
    }
  }
};
}  // namespace parsimax::structured

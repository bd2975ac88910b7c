// The k best structures of each item, best first. An item with fewer has values -inf beyond them, one with NaN has NaN.
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include "structured_items.h"

using namespace parsimax;
using namespace parsimax::structured;
using std::optional;

namespace {
using Two = std::tuple<Tensor, Tensor>;

// Bits without a limit: sets of flips of the best vector, the cheapest first. With costs in order, a set whose last
// member is j has two children, with j + 1 added and with j replaced by j + 1: every set once, never cheaper downwards.
struct Flips {
  struct Node {
    double cost;
    int64_t last, parent;
    bool added;
  };
  std::vector<int64_t> order;
  std::vector<double> least;
  std::vector<Node> nodes;
  std::vector<std::pair<double, int64_t>> heap;

  void put(Node node) {
    nodes.push_back(node);
    heap.push_back({node.cost, (int64_t)nodes.size() - 1});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  // No flip dearer than this is among the k cheapest: each of k groups has one that is no dearer.
  double most(const double* t, int64_t n, int64_t k) {
    if (n < 2 * k) return std::numeric_limits<double>::max();
    least.assign(k, INF);
    for (int64_t i = 0; i + k <= n; i += k)
      for (int64_t j = 0; j < k; j++) least[j] = std::min(least[j], std::abs(t[i + j]));
    return std::min(*std::max_element(least.begin(), least.end()), std::numeric_limits<double>::max());
  }
  void run(const Bits& bits, const double* t, int64_t k, uint64_t* codes, double* values) {
    nodes.clear(), heap.clear(), order.resize(bits.n);
    std::fill_n(codes, bits.len, 0);
    const double limit = most(t, bits.n, k);
    double top = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < bits.n; i++) {  // without a branch that nobody can foresee
      codes[i >> 6] |= uint64_t(t[i] > 0) << (i & 63), top += std::max(t[i], 0.0);
      order[kept] = i, kept += std::abs(t[i]) <= limit;
    }
    order.resize(kept);
    const int64_t m = std::min<int64_t>((int64_t)order.size(), k);
    const auto cheaper = [&](int64_t x, int64_t y) {
      const double a = std::abs(t[x]), b = std::abs(t[y]);
      return a < b || (a == b && x < y);
    };
    std::partial_sort(order.begin(), order.begin() + m, order.end(), cheaper);
    const auto cost = [&](int64_t j) { return std::abs(t[order[j]]); };
    values[0] = top;
    if (m) put({cost(0), 0, -1, true});
    for (int64_t i = 1; i < k && !heap.empty(); i++) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const int64_t id = heap.back().second;
      heap.pop_back();
      const Node node = nodes[id];
      uint64_t* code = codes + i * bits.len;
      std::copy_n(codes, bits.len, code);
      for (int64_t at = id; at >= 0;) {  // a replaced member is passed over: its replacement hangs below it
        code[order[nodes[at].last] >> 6] ^= uint64_t(1) << (order[nodes[at].last] & 63);
        while (!nodes[at].added) at = nodes[at].parent;
        at = nodes[at].parent;
      }
      values[i] = bits.value(t, code);
      const int64_t next = node.last + 1;
      if (next >= m) continue;
      put({node.cost + cost(next), next, id, true});
      put({node.cost - cost(node.last) + cost(next), next, id, false});
    }
  }
};

// Chains: Viterbi with the k best of every (position, label), each list merged from those of its predecessors.
struct Lists {
  struct Entry {
    double value;
    int32_t previous, rank;
  };
  std::vector<Entry> entries, last;
  std::vector<int64_t> sizes, at;
  std::vector<std::pair<double, int32_t>> heap;

  // One list of up to `want` from lists of `from` with `sizes` entries, list x shifted by edge[x * step].
  int64_t merge(const Entry* from, const int64_t* size, int64_t lists, const double* edge, int64_t step, double own,
                int64_t want, Entry* to) {
    heap.clear();
    const auto shift = [&](int64_t x) { return edge ? edge[x * step] : 0.0; };
    for (int64_t x = 0; x < lists; x++) {
      at[x] = 0;
      const double v = size[x] ? from[x * want].value + shift(x) + own : -INF;
      if (v > -INF) heap.push_back({v, (int32_t)-x});
    }
    if ((int64_t)heap.size() > want) {  // a list whose best is not among the best `want` cannot give one
      std::nth_element(heap.begin(), heap.begin() + want, heap.end(), std::greater<>());
      heap.resize(want);
    }
    std::make_heap(heap.begin(), heap.end());
    int64_t got = 0;
    while (got < want && !heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const auto [v, minus] = heap.back();
      const int64_t x = -minus;
      heap.pop_back();
      to[got++] = {v, (int32_t)x, (int32_t)at[x]};
      if (++at[x] >= size[x]) continue;
      heap.push_back({from[x * want + at[x]].value + shift(x) + own, minus});
      std::push_heap(heap.begin(), heap.end());
    }
    return got;
  }
  void run(const Labels& chain, const double* transitions, int64_t step, const double* s, int64_t k, int32_t* codes,
           double* values) {
    const int64_t n = chain.labels;
    entries.resize(chain.len * n * k), sizes.resize(chain.len * n), at.resize(n), last.resize(k);
    for (int64_t y = 0; y < n; y++) entries[y * k] = {s[y], -1, 0}, sizes[y] = s[y] > -INF;
    for (int64_t i = 1; i < chain.len; i++)
      for (int64_t y = 0; y < n; y++) {
        const double* edge = transitions ? transitions + (i - 1) * step + y : nullptr;
        Entry* to = &entries[(i * n + y) * k];
        sizes[i * n + y] = merge(&entries[(i - 1) * n * k], &sizes[(i - 1) * n], n, edge, n, s[i * n + y], k, to);
      }
    const int64_t end = chain.len - 1;
    const int64_t got = merge(&entries[end * n * k], &sizes[end * n], n, nullptr, 0, 0, k, last.data());
    for (int64_t j = 0; j < got; j++) {
      values[j] = last[j].value;
      int32_t y = last[j].previous, rank = last[j].rank;
      for (int64_t i = end; i >= 0; i--) {
        codes[j * chain.len + i] = y;
        const Entry& entry = entries[(i * n + y) * k + rank];
        y = entry.previous, rank = entry.rank;
      }
    }
  }
};

// The others: the set of structures is split at its best one, into those that first differ from it at position i.
// `best(fixed, code, choices, forbidden, value)` is the best that begins with `fixed` units of the code and has none of
// the forbidden choices at the next.
struct Node {
  double value;
  std::vector<int32_t> code, forbidden;
  int64_t fixed;
  bool operator<(const Node& other) const { return value < other.value; }
};
template <class Best> void split(int64_t len, int64_t k, const Best& best, int32_t* codes, double* values) {
  std::priority_queue<Node> queue;
  const auto put = [&](const std::vector<int32_t>& code, int64_t fixed, std::vector<int32_t> forbidden) {
    Node node{0, code, std::move(forbidden), fixed};
    if (best(fixed, node.code, node.forbidden, node.value)) queue.push(std::move(node));
  };
  put(std::vector<int32_t>(len, 0), 0, {});
  for (int64_t j = 0; j < k && !queue.empty(); j++) {
    const Node node = queue.top();
    queue.pop();
    values[j] = node.value;
    std::copy(node.code.begin(), node.code.end(), codes + j * len);
    if (j + 1 == k) return;
    for (int64_t i = node.fixed; i < len; i++) {
      std::vector<int32_t> forbidden;
      if (i == node.fixed) forbidden = node.forbidden;
      forbidden.push_back(node.code[i]);
      put(node.code, i, std::move(forbidden));
    }
  }
}

// Labels by their own oracle on scores in which all that is not allowed is -inf.
template <class Oracle> struct Split {
  std::vector<double> r;
  void run(Oracle& oracle, const double* s, int64_t k, int32_t* codes, double* values) {
    const int64_t n = oracle.labels;
    const auto best = [&](int64_t fixed, std::vector<int32_t>& code, const std::vector<int32_t>& forbidden,
                          double& value) {
      r.assign(s, s + oracle.parts);
      for (int64_t i = 0; i < fixed; i++)
        for (int64_t y = 0; y < n; y++)
          if (y != code[i]) r[i * n + y] = -INF;
      for (int32_t y : forbidden) r[fixed * n + y] = -INF;
      return oracle.map(r.data(), code.data(), value);
    };
    split(oracle.len, k, best, codes, values);
  }
};

// Bits with limits on their number: what is left after the fixed ones are bits with limits of their own.
struct SplitBits {
  std::vector<int32_t> plain;
  std::vector<uint64_t> words;
  void run(const Bits& bits, const double* t, int64_t k, uint64_t* codes, double* values) {
    const int64_t n = bits.n;
    plain.assign(k * n, 0), words.resize(bits.len + 1);
    const auto best = [&](int64_t fixed, std::vector<int32_t>& code, const std::vector<int32_t>& forbidden,
                          double& value) {
      bool may[2] = {true, true};
      for (int32_t bit : forbidden) may[bit] = false;
      double sum = 0, top = -INF;
      int64_t count = 0;
      for (int64_t i = 0; i < fixed; i++) sum += code[i] ? t[i] : 0, count += code[i];
      std::vector<int32_t> found;
      const auto rest = [&](int64_t from, double base, int64_t on, int32_t bit) {
        Bits tail(n - from, std::max<int64_t>(0, bits.lo - on), bits.hi - on);
        double v;
        if (bits.hi < on || !(base > -INF) || !tail.map(t + from, words.data(), v) || !(base + v > top)) return;
        top = base + v;
        found.assign(code.begin(), code.begin() + fixed);
        if (from > fixed) found.push_back(bit);
        for (int64_t i = 0; i < n - from; i++) found.push_back((int32_t)(words[i >> 6] >> (i & 63) & 1));
      };
      if (fixed == n || (may[0] && may[1])) rest(fixed, sum, count, 0);
      else if (may[1]) rest(fixed + 1, sum + t[fixed], count + 1, 1);
      else if (may[0]) rest(fixed + 1, sum, count, 0);
      if (found.empty() && n) return false;
      code = found, value = top;
      return top > -INF;
    };
    split(n, k, best, plain.data(), values);
    std::fill_n(codes, k * bits.len, 0);
    for (int64_t j = 0; j < k; j++)
      for (int64_t i = 0; i < n; i++)
        if (plain[j * n + i]) Bits::turn_on(codes + j * bits.len, i);
  }
};

// A table is searched as a whole.
void whole(Table& oracle, const double* table, const double* s, int64_t k, uint64_t* codes, double* values) {
  double top;
  oracle.set(table);
  oracle.map(s, codes, top);  // which leaves the sums of all behind
  std::vector<std::pair<double, int64_t>> all;
  for (int64_t z = 0; z < (int64_t)oracle.sums.size(); z++)
    if (oracle.sums[z] + table[z] > -INF) all.push_back({oracle.sums[z] + table[z], -z});
  const int64_t count = std::min<int64_t>(k, (int64_t)all.size());
  std::partial_sort(all.begin(), all.begin() + count, all.end(), std::greater<>());
  for (int64_t j = 0; j < count; j++) values[j] = all[j].first, codes[j] = oracle.codes[-all[j].second];
}

template <class Oracle, class Run> Two answer(const Problem& problem, const Oracle& like, int64_t k, const Run& run) {
  using Unit = typename Oracle::Unit;
  const Tensor& on = problem.unary_tensor;
  Tensor codes = new_tensor(on, {problem.items, k, like.len}, sizeof(Unit) == 8 ? ScalarType::Long : ScalarType::Int);
  Tensor values = new_tensor(on, {problem.items, k}, ScalarType::Double);
  std::fill_n((Unit*)codes.mutable_data_ptr(), problem.items * k * like.len, 0);
  each_item(problem.items, [&](const auto& next) {
    auto own = run();
    for (int64_t b; next(b);) {
      double* v = (double*)values.mutable_data_ptr() + b * k;
      const bool clean = problem.is_clean(b);
      std::fill_n(v, k, clean ? -INF : std::nan(""));
      if (clean) own(b, (Unit*)codes.mutable_data_ptr() + b * k * like.len, v);
    }
  });
  return {codes, values};
}

Two kbest(Tensor unary, optional<Tensor> extra, int64_t kind, int64_t low, int64_t high, int64_t k) {
  STD_TORCH_CHECK(k > 0, "parsimax structured: k is at least 1");
  const Problem problem(unary, extra);
  return with_oracle(problem, kind, low, high, [&](const auto& like) {
    using Oracle = std::decay_t<decltype(like)>;
    return answer(problem, like, k, [&] {
      if constexpr (std::is_same_v<Oracle, Table>) {
        return [&, oracle = like](int64_t b, uint64_t* codes, double* values) mutable {
          whole(oracle, problem.extra(b), problem.unary(b), k, codes, values);
        };
      } else if constexpr (std::is_same_v<Oracle, Bits>) {
        const bool free = like.lo <= 0 && like.hi >= like.n;
        return [&, free, flips = Flips(), parts = SplitBits()](int64_t b, uint64_t* codes, double* values) mutable {
          if (free) flips.run(like, problem.unary(b), k, codes, values);
          else parts.run(like, problem.unary(b), k, codes, values);
        };
      } else if constexpr (std::is_same_v<Oracle, Chain> || std::is_same_v<Oracle, Each>) {
        return [&, lists = Lists()](int64_t b, int32_t* codes, double* values) mutable {
          int64_t step = 0;
          if constexpr (std::is_same_v<Oracle, Chain>) step = like.step;
          lists.run(like, problem.extra(b), step, problem.unary(b), k, codes, values);
        };
      } else {
        return [&, oracle = like, parts = Split<Oracle>()](int64_t b, int32_t* codes, double* values) mutable {
          parts.run(oracle, problem.unary(b), k, codes, values);
        };
      }
    });
  });
}
}  // namespace

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) { m.impl("_kbest_structures", TORCH_BOX(&kbest)); }

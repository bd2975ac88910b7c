"""Measures, roles and comparisons of heads, against brute force on dense float64 weights."""

import csv
import math
import sys

import pytest
import torch

import parsimax
from parsimax import analysis
from parsimax.analysis import Recording
from parsimax.analysis.tokens import is_punctuation, is_question_mark, is_separator, is_special, text_of, words

MEASURES, COMPARE = sys.modules["parsimax.analysis.measures"], sys.modules["parsimax.analysis.compare"]
CLOSE = {"rtol": 0, "atol": 1e-9}


def attention(*shape, alpha=1.7, causal=False, seed=0):
    """Weights (examples, heads, queries, keys) as they are stored, in float64, with many zeros."""
    scores = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mask = torch.ones(shape[-2:], dtype=torch.bool).tril(shape[-1] - shape[-2]) if causal else None
    return parsimax.entmax(scores, alpha, mask=mask).float().double()


def entropy(p):
    return -torch.where(p > 0, p * p.log(), 0.0).sum(-1)


def normal(p):
    return p / p.sum(-1, keepdim=True)


def brute_force(p, causal):
    """[density, entropy, support, confidence, diversity] of each head of one example (heads, queries, keys)."""
    heads, queries, keys = p.shape
    table = []
    for own in p:
        rows = [i for i in range(queries) if (own[i] > 0).any()]
        seen = [i + 1 + keys - queries if causal else keys for i in rows]
        counts = [int((own[i] > 0).sum()) for i in rows]
        columns = (
            [count / size for count, size in zip(counts, seen, strict=True)],
            [float(entropy(normal(own[i]))) for i in rows],
            counts,
            [float(own[i].max()) for i in rows],
        )
        table.append([sum(column) / len(rows) for column in columns])
    rows = [i for i in range(queries) if (p[:, i] > 0).any(-1).all()]
    apart = [float(parsimax.jensen_shannon(normal(p[:, i]), base=heads)) for i in rows] if heads > 1 else [math.nan]
    return [[*row, sum(apart) / len(apart)] for row in table]


def found(table):
    return torch.tensor(
        [[row.density, row.entropy, row.support, row.confidence, row.diversity] for row in table], dtype=torch.float64
    )


@pytest.mark.parametrize("chunk", [1, 40, 1 << 20])
@pytest.mark.parametrize("alpha", [1.0, 1.7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 2, 2), (1, 5, 5), (4, 3, 9)])
def test_measures_equal_brute_force(shape, causal, alpha, chunk, monkeypatch):
    monkeypatch.setattr(MEASURES, "CHUNK", chunk)
    p = attention(2, *shape, alpha=alpha, causal=causal)
    recording = Recording.from_weights({"layer.0.self_attn": p})
    if shape != (2, 2, 2):  # so small that it may look causal by chance
        assert recording.causal(0) == causal
    expected = torch.tensor([brute_force(each, recording.causal(0)) for each in p], dtype=torch.float64).mean(0)
    torch.testing.assert_close(found(analysis.measures(recording)), expected, **CLOSE, equal_nan=True)


def test_softmax_is_dense_even_if_causal():
    table = analysis.measures(Recording.from_weights([attention(1, 3, 9, 9, alpha=1.0, causal=True)]))
    assert [row.density for row in table] == [1.0] * 3
    assert [row.support for row in table] == [5.0] * 3


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_density_is_the_share_of_keys_that_a_mask_allows(mapping):
    core, (query, key) = parsimax.AttentionCore(2, mapping), torch.randn(2, 3, 2, 9, 8)
    distance = torch.arange(9).view(-1, 1) - torch.arange(9)
    by_head = torch.stack([(distance >= 0) & (distance < 4), distance.abs() < 3])
    for mask in (distance.abs() < 3, by_head, torch.where(by_head, 0.0, torch.finfo(torch.float32).min)):
        with analysis.record(core) as recording:
            weights = core(query, key, key, attn_mask=mask, return_weights=True)[1]
        visible = (mask if mask.dtype == torch.bool else mask == 0).expand(2, 9, 9).sum(-1)
        expected = ((weights > 0).sum(-1).double() / visible).mean((0, 2))
        torch.testing.assert_close(analysis.measures(recording).matrix("density")[0], expected, **CLOSE)
        if mapping == "softmax":
            assert f"{recording!r}".endswith("density 1.00)")


def test_a_layer_that_may_look_ahead_is_not_causal_by_chance():
    core, x = parsimax.AttentionCore(1, "sparsemax"), 9 * torch.eye(4)[None, None]
    with analysis.record(core) as recording:
        core(x, x, x)  # each token looks at itself only
    assert not recording.causal(0) and analysis.measures(recording)[0].density == 0.25
    weights = {"decoder.0": torch.eye(4)[None, None], "encoder.0": torch.eye(4)[None, None]}
    below = sum(1 / n for n in (1, 2, 3, 4)) / 4
    for causal, expected in ((None, (below, below)), (True, (below, 0.25)), (False, (0.25, 0.25))):
        told = Recording.from_weights(weights, causal=causal)
        assert analysis.measures(told).matrix("density").flatten().tolist() == pytest.approx(expected)
    left = Recording.from_weights([torch.eye(4)[None, None]], attention_mask=torch.tensor([[0, 1, 1, 1]]), causal=True)
    assert analysis.measures(left)[0].density == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_a_query_that_sees_nothing_but_has_weights_is_dense():
    core, x = parsimax.AttentionCore(1, "softmax"), torch.randn(1, 1, 3, 4)
    mask = torch.zeros(3, 3)
    mask[1] = torch.finfo(torch.float32).min
    with analysis.record(core) as recording:
        core(x, x, x, attn_mask=mask)
    assert analysis.measures(recording)[0].density == 1.0


@pytest.mark.parametrize("threshold", [7, -0.1, math.nan])
def test_thresholds_are_shares(threshold):
    with pytest.raises(ValueError, match=r"roles: threshold must be in \[0, 1\], got"):
        analysis.roles(Recording.from_weights([torch.eye(3).expand(1, 2, 3, 3)]), threshold=threshold)


def test_queries_and_examples_without_weights_do_not_count():
    p = attention(3, 2, 5, 5)
    p[0, :, 2:] = 0  # queries that may see nothing
    p[1] = 0
    p[2, 0] = 0  # one head only, so that its layer has no diversity there
    recording = Recording.from_weights([p])
    one = torch.tensor(brute_force(p[0], False), dtype=torch.float64)
    three = torch.tensor(brute_force(p[2, 1:], False), dtype=torch.float64)
    expected = one.clone()
    expected[1, :4] = (one[1, :4] + three[0, :4]) / 2
    torch.testing.assert_close(found(analysis.measures(recording)), expected, **CLOSE)
    empty = analysis.measures(Recording.from_weights([torch.zeros(2, 3, 4, 4)]))
    assert found(empty).isnan().all() and len(empty) == 3


def test_weights_of_another_sum_and_bad_ones():
    p = attention(1, 3, 6, 6)
    ours = found(analysis.measures(Recording.from_weights([p])))
    tripled = found(analysis.measures(Recording.from_weights([3 * p])))
    torch.testing.assert_close(tripled[:, [0, 1, 2, 4]], ours[:, [0, 1, 2, 4]], rtol=0, atol=1e-6)
    torch.testing.assert_close(tripled[:, 3], 3 * ours[:, 3], rtol=0, atol=1e-6)
    p[0, 1, 2, 3] = math.nan
    spoiled = found(analysis.measures(Recording.from_weights([p])))
    assert spoiled[1, 1].isnan() and spoiled[1, 3].isnan() and spoiled[:, 4].isnan().all()
    torch.testing.assert_close(spoiled[[0, 2], :4], ours[[0, 2], :4], **CLOSE)


def test_tables_print_and_export(tmp_path):
    layers = {"a": attention(1, 2, 4, 4), "b": attention(1, 3, 4, 4)}
    table = analysis.measures(Recording.from_weights(layers, alpha={"b": [1.0, 1.25, 2.0]}, mapping="entmax"))
    assert len(table) == 5 and table.layers == ["a", "b"] and table[-1].alpha == 2.0
    alphas = table.matrix("alpha")
    assert alphas.shape == (2, 3) and alphas[0].isnan().all() and alphas[1].tolist() == [1.0, 1.25, 2.0]
    assert table.matrix("density")[0, 2].isnan()
    with pytest.raises(KeyError, match="no column 'x'; there are layer, kind"):
        table.matrix("x")
    text = table.csv(tmp_path / "table.csv")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert len(rows) == 5 and float(rows[3]["density"]) == table[3].density and rows[0]["alpha"] == ""
    assert text.splitlines()[0].startswith("layer,kind,mapping,head,alpha")
    lines = str(table).splitlines()
    assert len(lines) == 6 and len({len(line) for line in lines}) == 1 and "–" in lines[1]
    assert str(analysis.measures(Recording.from_weights([]))) == "(empty)"


def pointing(*targets, keys=None):
    """One head whose query i gives all its weight to key targets[i]."""
    return torch.nn.functional.one_hot(torch.tensor(targets), keys or len(targets)).double()


TEXT = ["[CLS]", "how", "un", "##do", "##able", "is", "it", "?", "[SEP]"]
HEADS = {
    "previous": pointing(0, 0, 1, 2, 3, 4, 5, 6, 7),
    "next": pointing(1, 2, 3, 4, 5, 6, 7, 8, 8),
    "self": pointing(0, 1, 2, 3, 4, 5, 6, 7, 8),
    "first": pointing(0, 0, 0, 0, 0, 0, 0, 0, 0),
    "subword": pointing(8, 6, 3, 4, 2, 8, 4, 0, 6),
    "separator": pointing(8, 8, 8, 8, 8, 8, 8, 8, 8),
    "question": pointing(2, 7, 5, 8, 0, 8, 3, 1, 2),
    None: pointing(2, 5, 5, 8, 0, 8, 3, 1, 2),
}


def test_heads_are_named_by_what_they_do():
    weights = torch.stack(list(HEADS.values()))
    table = analysis.roles(Recording.from_weights([weights[None]], TEXT))
    assert [row.label for row in table] == list(HEADS)
    by_label = {row.label: row for row in table}
    assert by_label["previous"].strength == 1 and by_label[None].strength is None
    assert by_label["subword"].strengths["subword"] == 1
    assert by_label["previous"].strengths["subword"] == pytest.approx(2 / 3)  # two of the three pieces
    assert by_label["self"].strengths["subword"] == 0
    assert by_label["first"].strengths["first"] == 1
    assert by_label["previous"].strengths["first"] == pytest.approx(1 / 8)  # the first query is not counted
    strict = analysis.roles(Recording.from_weights([(0.6 * weights + 0.4 / 9)[None]], TEXT), threshold=0.7)
    assert {row.label for row in strict} == {None}


def test_strengths_equal_brute_force():
    texts = [TEXT, ["[CLS]", "who", "?", "?", ".", "[SEP]"]]
    parts = [attention(1, 4, len(text), len(text), seed=i) for i, text in enumerate(texts)]
    padded = torch.zeros(2, 4, 9, 9, dtype=torch.float64)
    for own, part in zip(padded, parts, strict=True):
        own[:, : part.shape[-1], : part.shape[-1]] = part[0]
    table = analysis.roles(Recording.from_weights([padded], texts), {"mark": lambda token: token in ("?", ".")})
    for head, row in enumerate(table):
        expected = {}
        for text, part in zip(texts, parts, strict=True):
            p, size = part[0, head], len(text)
            expected.setdefault("previous", []).append(sum(p[i, i - 1] for i in range(1, size)) / (size - 1))
            expected.setdefault("self", []).append(p.diagonal().mean())
            expected.setdefault("next", []).append(sum(p[i, i + 1] for i in range(size - 1)) / (size - 1))
            expected.setdefault("first", []).append(p[1:, 0].mean())
            marks = [i for i, token in enumerate(text) if token in ("?", ".")]
            expected.setdefault("mark", []).append(p[:, marks].sum(1).mean())
        pieces = [2, 3, 4]  # in the first text only
        p = parts[0][0, head]
        expected["subword"] = [sum(p[i, j] for i in pieces for j in pieces if i != j) / 3]
        assert set(row.strengths) == set(expected)
        for name, values in expected.items():
            assert row.strengths[name] == pytest.approx(float(sum(values) / len(values)), abs=1e-9), name


def test_a_role_without_evidence_has_no_strength():
    table = analysis.roles(Recording.from_weights([attention(1, 2, 3, 3)], ["a", "b", "c"]))
    for row in table:
        assert all(math.isnan(row.strengths[name]) for name in ("subword", "separator", "punctuation", "question"))
        assert row.label in (None, "previous", "self", "next", "first")
    with pytest.raises(ValueError, match="'next' is a role already"):
        analysis.roles(Recording.from_weights([attention(1, 2, 3, 3)]), {"next": str.isupper})


def test_a_query_that_cannot_see_a_key_does_not_count_for_it():
    causal = torch.stack([pointing(0, 1, 2, 2, 2), pointing(0, 0, 0, 0, 0), pointing(0, 1, 2, 3, 4)])
    recording = Recording.from_weights([causal[None]], ["a", "b", "?", "c", "d"])
    table = analysis.roles(recording, {"mark": is_question_mark})
    assert table[0].strengths["mark"] == 1 and table[0].label == "mark"
    looking_ahead = Recording.from_weights(
        [torch.cat([causal, pointing(4, 4, 4, 4, 4)[None]])[None]], ["a", "b", "?", "c", "d"]
    )
    assert analysis.roles(looking_ahead, {"mark": is_question_mark})[0].strengths["mark"] == pytest.approx(3 / 5)


def test_cross_attention_has_roles_by_tokens_only():
    weights = {"cross.0": torch.stack([pointing(3, 3, keys=4), pointing(0, 0, keys=4)])[None]}
    table = analysis.roles(Recording.from_weights(weights, ["so", "it", "is", "."], ["ja", "."]))
    assert [row.label for row in table] == ["punctuation", "first"]
    assert all(math.isnan(table[0].strengths[name]) for name in ("previous", "self", "next", "subword"))


def test_places_count_from_the_end_of_a_cache():
    p = torch.stack([pointing(3, 4, keys=6), pointing(4, 5, keys=6), pointing(0, 0, keys=6)])[None]
    table = analysis.roles(Recording.from_weights({"self_attn": p}, ["x", "y"]))
    assert [row.label for row in table] == ["previous", "self", "first"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ("[CLS] un ##do it [SEP] ##x", [-1, 0, 0, 1, -1, 2]),
        ("<s> ▁un do ▁it . </s>", [-1, 0, 0, 1, 2, -1]),
        ("un do Ġit ' s Ġ( x )", [0, 0, 1, 2, 3, 4, 5, 6]),
        ("un@@ do@@ able it .", [0, 0, 0, 1, 2]),
        ("un do</w> it</w> <eos>", [0, 0, 1, -1]),
        ("plain words only", [0, 1, 2]),
        ("<|endoftext|> ĠA ĠB b <unk>", [-1, 0, 1, 1, 1]),
    ],
)
def test_words_are_found_in_every_convention(pieces, expected):
    assert words(pieces.split()) == expected


def test_tokens_say_what_they_are():
    assert [is_special(t) for t in ("[SEP]", "</s>", "<|im_end|>", "[UNK]", "<0x0A>", "<", "a", "[", "(s)")] == [
        *([True] * 3),
        *([False] * 6),
    ]
    assert [is_punctuation(t) for t in ("Ġ,", "▁«", "##!", "...", "a.", "[SEP]", "▁", "##ing", "+")] == [
        *([True] * 4),
        *([False] * 5),
    ]
    assert is_separator("</s>") and not is_separator("[CLS]") and text_of("Ġthe") == "the"


def dense_comparison(p, q):
    table = torch.zeros(len(p), len(q), dtype=torch.float64)
    for a, mine in enumerate(p):
        for b, theirs in enumerate(q):
            rows = [i for i in range(len(mine)) if (mine[i] > 0).any() and (theirs[i] > 0).any()]
            table[a, b] = parsimax.jensen_shannon(normal(mine[rows]), normal(theirs[rows]), base=2).mean()
    return table


@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
@pytest.mark.parametrize("alphas", [(1.0, 1.0), (1.0, 2.0), (1.5, 2.0)])
def test_comparison_equals_brute_force(alphas, piece, monkeypatch):
    monkeypatch.setattr(COMPARE, "PIECE", piece)
    monkeypatch.setattr(MEASURES, "CHUNK", 3 * piece)
    one = {"x": attention(2, 3, 7, 7, alpha=alphas[0], seed=1), "y": attention(2, 2, 7, 7, alpha=alphas[0], seed=2)}
    two = {"z": attention(2, 4, 7, 7, alpha=alphas[1], seed=3)}
    one["x"][0, 1, 3] = 0  # a query that sees nothing
    comparison = analysis.compare(Recording.from_weights(one), Recording.from_weights(two))
    for name, weights in one.items():
        expected = torch.stack([dense_comparison(p, q) for p, q in zip(weights, two["z"], strict=True)]).mean(0)
        torch.testing.assert_close(comparison.between(name, "z"), expected, rtol=0, atol=1e-7)
    assert comparison.divergence.shape == (5, 4)


def test_equal_heads_match():
    p = attention(2, 4, 6, 6)
    order = [2, 0, 3, 1]
    comparison = analysis.compare(Recording.from_weights({"a": p}), Recording.from_weights({"b": p[:, order]}))
    matches = comparison.matches()
    assert [(m.head, m.other_head, m.mutual) for m in matches] == [(h, order.index(h), True) for h in range(4)]
    assert all(m.divergence < 1e-12 and (m.layer, m.other_layer) == ("a", "b") for m in matches)
    with pytest.raises(KeyError, match="no layer 'b'; there are a"):
        comparison.between("b", "b")


def test_only_layers_of_one_kind_are_compared():
    layers = {"encoder.0": attention(1, 2, 5, 5), "decoder.0": attention(1, 2, 4, 4), "cross.0": attention(1, 2, 4, 5)}
    recording = Recording.from_weights(layers)
    comparison = analysis.compare(recording, recording)
    there = ~comparison.divergence.isnan()
    assert torch.equal(there, torch.block_diag(*[torch.ones(2, 2)] * 3).bool())
    assert len(comparison.matches()) == 6
    alone = Recording.from_weights({"encoder.0": layers["encoder.0"]}, target_tokens=None)
    with pytest.raises(ValueError, match="the target of example 0 has 4 here"):
        analysis.compare(recording, alone)


def test_recordings_of_other_examples_are_not_compared():
    def recording(tokens, count=1):
        return Recording.from_weights([attention(count, 2, 3, 3)], tokens)

    with pytest.raises(ValueError, match="same examples, got 1 and 2"):
        analysis.compare(recording(None), recording(None, 2))
    with pytest.raises(ValueError, match=r"source of example 0 has 3 here, \['a', 'b', 'c'\], and 3 there"):
        analysis.compare(recording(["a", "b", "c"]), recording(["a", "b", "d"]))
    analysis.compare(recording(["a", "b", "c"]), recording(None))

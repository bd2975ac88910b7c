"""The rank of log-probabilities: bound for linear softmax and for no other head; streamed or not, it is one number."""

import pytest
import torch

import parsimax
from parsimax.analysis import figures, rank

D, V = 6, 80
CONTEXTS = torch.randn(300, D, generator=torch.Generator().manual_seed(0))


def head(kind, **settings):
    torch.manual_seed(0)
    return parsimax.make_head(kind, D, V, bias=False, **settings)


def test_linear_softmax_is_bound_and_the_others_are_not():
    assert rank(head("linear"), [CONTEXTS]).rank == D + 1
    for kind in ("sigsoftmax", "monotonic", "mixture", "mixture-plif"):
        assert rank(head(kind), [CONTEXTS]).rank > 2 * D, kind
    plif = head("plif", knots=100)
    assert rank(plif, [CONTEXTS]).rank == D + 1  # at the start it is linear
    with torch.no_grad():
        plif.function.raw_slopes.normal_()
    assert rank(plif, [CONTEXTS]).rank > 2 * D


def test_streamed_it_is_the_same():
    whole = torch.linalg.svdvals(head("sigsoftmax")(CONTEXTS).double())
    for size in (7, 100, 300):
        found = rank(head("sigsoftmax"), CONTEXTS.split(size))
        torch.testing.assert_close(found.values, whole, rtol=1e-9, atol=1e-9)
        assert found.contexts == 300 and found.classes == V


def test_more_classes_than_columns_leave_the_rank():
    found = rank(head("linear"), CONTEXTS.split(50), width=20)
    assert found.rank == D + 1 and len(found.values) == 20
    exact = rank(head("linear"), [CONTEXTS])
    assert (found.values[: D + 1] / exact.values[: D + 1]).log().abs().max() < 1.0
    assert found.rank_at(0.5) <= found.rank_at(1e-9)


@pytest.mark.parametrize("classes, width", [(300, 2048), (2000, 512)])
def test_float64_counts_no_rounding_of_its_own(classes, width):
    layer = parsimax.LinearHead(D, classes, bias=False, dtype=torch.float64)
    contexts = torch.randn(1500, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert rank(layer, contexts.split(100), width=width).rank == D + 1


def test_a_causal_model_and_what_is_no_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=90, n_embd=8, n_layer=1, n_head=2, n_positions=32)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(90, (8, 30))
    # The last layer norm of this model leaves 7 of the 8 dimensions.
    assert rank(model, [{"input_ids": ids}]).rank == rank(model, ids.split(2)).rank == 8
    with pytest.raises(TypeError, match="must give log-probabilities"):
        rank(lambda batch: "words", [ids])
    for nothing in ([], [CONTEXTS[:0]]):
        with pytest.raises(ValueError, match="no contexts"):
            rank(head("linear"), nothing)
    assert rank(head("linear"), [CONTEXTS[:0], CONTEXTS]).contexts == len(CONTEXTS)
    sparse = parsimax.LinearHead(D, V, "sparsemax")
    with pytest.raises(ValueError, match=r"not finite.*give a floor"):
        rank(sparse, [5 * CONTEXTS])
    floored = sparse.probs(5 * CONTEXTS).clamp(min=1e-4).log().double()
    torch.testing.assert_close(
        rank(sparse, [5 * CONTEXTS], floor=1e-4).values, torch.linalg.svdvals(floored), rtol=1e-5, atol=1e-5
    )


def test_the_rounding_that_counts_is_that_of_the_type_they_were_made_in():
    transformers = pytest.importorskip("transformers")
    for dtype in (torch.bfloat16, torch.float16):
        assert rank(head("linear").to(dtype), [CONTEXTS.to(dtype)]).rank <= D + 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rank(head("linear"), [CONTEXTS]).rank <= D + 2
    config = transformers.GPT2Config(vocab_size=90, n_embd=8, n_layer=1, n_head=2, n_positions=32)
    model, ids = transformers.GPT2LMHeadModel(config).eval().bfloat16(), torch.randint(90, (8, 30))
    assert rank(model, [ids]).rank <= 9


def test_errors_say_what_was_given():
    for given, word in (({"width": 0}, "width must be 1 or more, got 0"), ({"floor": 2.0}, "between 0 and 1, got 2.0")):
        with pytest.raises(ValueError, match=word):
            rank(head("linear"), [CONTEXTS], **given)
    with pytest.raises(ValueError, match=f"as many classes, got {V} and then 7"):
        rank(lambda x: torch.log_softmax(x, -1), [torch.randn(3, V), torch.randn(3, 7)])
    for batches in (CONTEXTS, {"input_ids": CONTEXTS}):
        with pytest.raises(TypeError, match="put it into a list"):
            rank(head("linear"), batches)


def test_classes_are_mixed_by_blocks(monkeypatch):
    found = rank(head("linear"), CONTEXTS.split(50), width=20)
    monkeypatch.setattr("parsimax.analysis.spectrum.BLOCK", 16)
    again = rank(head("linear"), CONTEXTS.split(50), width=20)
    torch.testing.assert_close(again.values, found.values, rtol=1e-9, atol=1e-9)


def test_figures(tmp_path):
    pytest.importorskip("matplotlib")
    found = {kind: rank(head(kind), [CONTEXTS]) for kind in ("linear", "sigsoftmax")}
    for name, figure in {
        "spectrum": figures.spectrum(found, width=D),
        "one": figures.spectrum(found["linear"]),
        "plif": figures.function(parsimax.PLIF(100)),
        "monotonic": figures.function(parsimax.Monotonic(10), -5, 5),
    }.items():
        figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000

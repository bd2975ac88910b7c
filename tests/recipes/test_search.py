"""Decoding: exact search against enumeration, the beam's certificate, caches, batches and padding."""

import itertools
import math

import pytest
import torch

from parsimax.recipes.inflection.lstm import Lstm
from parsimax.recipes.kit.choice import Choice
from parsimax.recipes.text.codec import BOS, EOS, PAD
from parsimax.recipes.text.lengths import spread
from parsimax.recipes.text.seq2seq.evaluate import scores
from parsimax.recipes.text.seq2seq.exact import exact
from parsimax.recipes.text.seq2seq.examples import padded
from parsimax.recipes.text.seq2seq.outputs import aligned, surely
from parsimax.recipes.text.seq2seq.search import NEVER, Hypothesis, beam
from parsimax.recipes.text.seq2seq.settings import Search
from parsimax.recipes.text.seq2seq.transformer import Shape, Transformer

SIZE, LONGEST = 7, 4  # three letters beside the special tokens
CHOICES = {
    "softmax": Choice("softmax"),
    "entmax": Choice("entmax", 1.5),
    "sparsemax": Choice("sparsemax"),
    "rsoftmax": Choice("rsoftmax", rate=0.6),
}


def transformer(output, attention="entmax", size=SIZE):
    own = Choice("entmax", "learned") if attention == "learned" else CHOICES[attention]
    return Transformer(size, Shape(16, 2, 2, 32, 0.1), own, own, own, output, tied=True)


def lstm(output, attention="entmax", size=SIZE):
    own = Choice("entmax", "learned") if attention == "learned" else CHOICES[attention]
    return Lstm(size, 16, 2, 0.1, own, output, tied=False)


def sharpened(model, seed, factor=3.0, end=0.0):
    """A random model whose outputs are neither one-hot nor flat."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.zero_()
            elif parameter.dim() > 1:
                parameter.normal_(std=factor * parameter.shape[-1] ** -0.5 / 2)
        model.output.bias.normal_()
        model.output.bias[EOS] += end
    return model.double().eval()  # so that only search can differ


@torch.no_grad()
def enumerated(model, source, longest):
    """The log-probability of every output of at most ``longest`` tokens, and of every prefix that is cut there."""
    letters = [token for token in range(model.output.weight.shape[0]) if token not in (*NEVER, EOS)]
    outputs, cut = {}, -math.inf
    for length in range(longest + 1):
        words = list(itertools.product(letters, repeat=length))
        entered = torch.tensor([[BOS, *word] for word in words])
        logs = model.output(model.hidden(source.expand(len(words), -1), entered)).double()
        for word, row in zip(words, logs, strict=True):
            prefix = sum(row[step, token].item() for step, token in enumerate(word))
            outputs[word] = prefix + row[length, EOS].item()
            if length == longest:
                cut = max(cut, *(prefix + row[length, token].item() for token in letters))
    return outputs, cut


@pytest.mark.parametrize("build", [transformer, lstm])
@pytest.mark.parametrize("output", CHOICES)
@pytest.mark.parametrize("seed", range(4))
def test_exact_search_finds_what_enumeration_finds(build, output, seed):
    model = sharpened(build(CHOICES[output]), seed)
    source = torch.tensor([4, 5, 6, 4, EOS])
    outputs, cut = enumerated(model, source[None], LONGEST)
    best = max(outputs, key=outputs.get)
    found = exact(model, source, LONGEST, budget=10_000)
    if outputs[best] == -math.inf:
        assert not found.exact and found.best.log_prob == -math.inf
        return
    assert found.best.tokens == best and abs(found.best.log_prob - outputs[best]) < 1e-9
    assert found.exact == (outputs[best] >= cut)


@pytest.mark.parametrize("build", [transformer, lstm])
@pytest.mark.parametrize("output", CHOICES)
def test_the_certificate_of_a_beam_is_never_wrong(build, output):
    """Whatever the width; and it is given often enough to be of use where outputs are sparse."""
    given = 0
    for seed in range(12):
        model = sharpened(build(CHOICES[output]), seed, factor=4.0)
        source = torch.tensor([[4, 6, 5, EOS]])
        outputs, cut = enumerated(model, source, LONGEST)
        best = max(outputs.values())
        for width in (1, 2, 5):
            (found,) = beam(model, source, width, LONGEST)
            if found.best.log_prob > -math.inf:
                assert abs(outputs[found.best.tokens] - found.best.log_prob) < 1e-9
            if found.exact:
                assert found.best.log_prob >= max(best, cut) - 1e-12
                given += 1
    assert given >= (5 if output in ("entmax", "sparsemax") else 1), "it is of no use"


def test_a_wide_beam_lists_all_outputs_in_order():
    model = sharpened(lstm(CHOICES["softmax"]), 3)
    source = torch.tensor([[5, 5, EOS]])
    outputs, _ = enumerated(model, source, 2)
    (found,) = beam(model, source, 100, 2)
    assert [one.tokens for one in found.hypotheses] == sorted(outputs, key=lambda word: -outputs[word])


def test_a_budget_that_runs_out_is_said():
    model = sharpened(transformer(CHOICES["softmax"]), 2, factor=2.0)
    source = torch.tensor([4, 5, EOS])
    (start,) = beam(model, source[None], 2, 30)
    found = exact(model, source, 30, budget=3, start=start.best)
    assert not found.exact and found.opened <= 3
    assert found.best.log_prob >= start.best.log_prob, "what was known is not lost"


def test_exact_search_starts_from_what_is_known():
    model = sharpened(lstm(CHOICES["sparsemax"]), 1)
    source = torch.tensor([4, 5, 6, EOS])
    alone = exact(model, source, 8, 1000)
    for start in (alone.best, Hypothesis((4, 4), alone.best.log_prob - 5), Hypothesis((), -math.inf)):
        again = exact(model, source, 8, 1000, start)
        assert (again.best.tokens, again.exact) == (alone.best.tokens, alone.exact)
        assert again.opened <= alone.opened


@pytest.mark.parametrize("build", [transformer, lstm])
@pytest.mark.parametrize("output", ["softmax", "entmax"])
@pytest.mark.parametrize("together", [1, 3, 64])
def test_exact_search_continues_the_prefixes_above_the_best_output_and_no_others(build, output, together, monkeypatch):
    monkeypatch.setattr("parsimax.recipes.text.seq2seq.exact.TOGETHER", together)
    source = torch.tensor([4, 5, 6, 4, EOS])
    model = sharpened(build(CHOICES[output]), 5, factor=2.0, end=-2.0)
    outputs, cut = enumerated(model, source[None], LONGEST)
    best = max(outputs, key=outputs.get)
    found = exact(model, source, LONGEST, 10_000, Hypothesis(best, outputs[best]))
    above = [word for word, value in prefixes(model, source[None], LONGEST).items() if value > outputs[best] + 1e-9]
    assert found.best.tokens == best and found.opened == len(above) > 2
    assert found.exact == (outputs[best] >= cut)
    for budget in (1, len(above) - 1):
        short = exact(model, source, LONGEST, budget, found.best)
        assert not short.exact and short.opened == budget


@torch.no_grad()
def prefixes(model, source, longest):
    """The log-probability of every prefix of at most ``longest`` tokens."""
    letters = [token for token in range(model.output.weight.shape[0]) if token not in (*NEVER, EOS)]
    known = {}
    for length in range(longest + 1):
        words = list(itertools.product(letters, repeat=length))
        entered = torch.tensor([[BOS, *word] for word in words])
        logs = model.output(model.hidden(source.expand(len(words), -1), entered))
        for word, row in zip(words, logs, strict=True):
            known[word] = sum(row[step, token].item() for step, token in enumerate(word))
    return known


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_decoder_is_torchs_lstm(layers):
    torch.manual_seed(layers)
    model = Lstm(30, 16, layers, 0.5, Choice(), Choice(), tied=False).double().eval()
    source, entered = padded([[5, 6, 7, EOS], [8, EOS]]), torch.randint(4, 30, (2, 6))
    state = model.start(source)
    keys, feed, cells, wanted = model.look(state.memory).unsqueeze(1), state.feed, state.cells, []
    for token in model.embedding(entered).unbind(1):
        out, cells = model.decoder(torch.cat([token, feed], -1).unsqueeze(1), cells)
        context = model.context(out.unsqueeze(1), keys, state.memory.unsqueeze(1), attn_mask=state.real[:, None, None])
        feed = torch.tanh(model.mix(torch.cat([out.squeeze(1), context[:, 0, 0]], -1)))
        wanted.append(feed)
    torch.testing.assert_close(model.hidden(source, entered), torch.stack(wanted, 1), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("build", [transformer, lstm])
def test_a_search_can_come_back_to_a_state(build):
    model = sharpened(build(CHOICES["entmax"], "learned", size=30), 0)
    with torch.no_grad():
        _, state, _ = model.advance(torch.tensor([BOS]), model.start(torch.tensor([[5, 6, 7, EOS]])))
        rows = torch.tensor([0, 0])
        once, after, _ = model.advance(torch.tensor([8, 9]), state.chosen(rows))
        model.advance(torch.tensor([10]), after.chosen(rows[:1]))
        again, _, _ = model.advance(torch.tensor([8, 9]), state.chosen(rows))
    torch.testing.assert_close(once, again, atol=0, rtol=0)


@pytest.mark.parametrize("build", [transformer, lstm])
@pytest.mark.parametrize("attention", ["softmax", "learned", "sparsemax", "rsoftmax"])
def test_step_by_step_equals_the_full_pass(build, attention):
    model = sharpened(build(CHOICES["entmax"], attention, size=30), 0)
    source = padded([[5, 6, 7, 8, 9, EOS], [10, 11, EOS], [12, EOS]])
    entered = torch.randint(4, 30, (3, 7))
    entered[:, 0] = BOS
    with torch.no_grad():
        whole = model.hidden(source, entered)
        state, steps = model.start(source), []
        for tokens in entered.T:
            hidden, state, seen = model.advance(tokens, state)
            steps.append(hidden)
            assert seen.shape == source.shape
            assert (seen[source == PAD] == 0).all()
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("build", [transformer, lstm])
def test_hypotheses_can_change_places(build):
    model = sharpened(build(CHOICES["entmax"], size=30), 0)
    source = padded([[5, 6, 7, EOS], [10, EOS]])
    rows = torch.tensor([1, 0, 0])
    with torch.no_grad():
        _, state, _ = model.advance(torch.tensor([BOS, BOS]), model.start(source))
        hidden, _, _ = model.advance(torch.tensor([7, 8, 9]), state.chosen(rows))
        entered = torch.tensor([[BOS, 7], [BOS, 8], [BOS, 9]])
        torch.testing.assert_close(hidden, model.hidden(source[rows], entered)[:, 1], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("build", [transformer, lstm])
def test_what_belongs_to_a_source_stays_where_rows_are_of_the_same(build):
    model = sharpened(build(CHOICES["entmax"], size=30), 0)
    sources, rows = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 3, 3])
    with torch.no_grad():
        _, state, _ = model.advance(torch.tensor([BOS, BOS]), model.start(padded([[5, 6, 7, EOS], [10, EOS]])))
        _, state, _ = model.advance(torch.tensor([7, 8, 9, 10]), state.chosen(sources))
        kept, other = state.chosen(rows, same=True), state.chosen(rows)
        assert kept.memory is state.memory and other.memory is not state.memory
        for _ in range(2):  # a second time from the state that the first has left
            for one, two in zip(*(model.advance(rows + 11, each)[::2] for each in (kept, other)), strict=True):
                torch.testing.assert_close(one, two, atol=0, rtol=0)
            kept, other = state.chosen(rows, same=True), state.chosen(rows)


@pytest.mark.parametrize("build, seed, factor, end", [(transformer, 5, 1.0, 2.0), (lstm, 34, 3.0, 1.0)])
@pytest.mark.parametrize("width", [1, 4])
def test_a_batch_equals_one_by_one_and_padding_changes_nothing(build, seed, factor, end, width):
    model = sharpened(build(CHOICES["entmax"], size=30), seed, factor, end)
    rows = [[5, 6, 7, 8, 9, 10, 11, EOS], [10, EOS], [12, 13, 14, EOS]]
    together = beam(model, padded(rows), width, 12)
    assert any(len(one.tokens) > 1 for found in together for one in found.hypotheses)
    for row, found in zip(rows, together, strict=True):
        for extra in (0, 3):
            (alone,) = beam(model, torch.tensor([row + [PAD] * extra]), width, 12)
            assert [one.tokens for one in alone.hypotheses] == [one.tokens for one in found.hypotheses]
            assert alone.exact == found.exact
            for one, other in zip(alone.hypotheses, found.hypotheses, strict=True):
                assert math.isclose(one.log_prob, other.log_prob, abs_tol=1e-9)
                assert one.attention.shape == (len(one.tokens) + 1, len(row) + extra)
                torch.testing.assert_close(
                    one.attention[:, : len(row)], other.attention[:, : len(row)], atol=1e-9, rtol=1e-9
                )


@pytest.mark.parametrize("output", CHOICES)
def test_the_loss_ignores_padding_and_trains(output):
    model = transformer(CHOICES[output], size=30).eval()
    source, entered = padded([[5, 6, EOS], [7, EOS]]), padded([[BOS, 8, 9], [BOS, 10]])
    wanted = padded([[8, 9, EOS], [10, EOS]])
    options = {"ignore_index": PAD, "label_smoothing": 0.1}
    loss = model.output.loss(model(source, entered), wanted, **options)
    wider = model.output.loss(
        model(torch.nn.functional.pad(source, (0, 4)), torch.nn.functional.pad(entered, (0, 4))),
        torch.nn.functional.pad(wanted, (0, 4)),
        **options,
    )
    torch.testing.assert_close(loss, wider, atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("build, seed, factor, end", [(transformer, 5, 1.0, 2.0), (lstm, 34, 3.0, 1.0)])
def test_an_output_is_aligned_as_the_beam_saw_it(build, seed, factor, end):
    model = sharpened(build(CHOICES["entmax"], size=30), seed, factor, end)
    source = torch.tensor([5, 6, 7, 8, 9, 10, 11, EOS])
    (found,) = beam(model, source.unsqueeze(0), 4, 12)
    assert any(one.tokens for one in found.hypotheses)
    for one in found.hypotheses:
        again = aligned(model, source, Hypothesis(one.tokens, one.log_prob))
        torch.testing.assert_close(again.attention, one.attention, atol=1e-9, rtol=1e-9)


def test_exact_search_puts_the_best_in_front_of_the_beams_outputs():
    better = 0
    for seed in range(20):
        model = sharpened(transformer(CHOICES["entmax"], size=9), seed, 1.0, 1.0)
        source = torch.tensor([5, 6, EOS])
        (found,) = beam(model, source.unsqueeze(0), 1, 5)
        sure = surely(model, source, Search(longest=5, exact_budget=3000), found)
        assert sure.best.log_prob >= found.best.log_prob
        if sure.best.log_prob > -math.inf:
            assert sure.best.attention.shape == (len(sure.best.tokens) + 1, 3)
        if sure.best.tokens != found.best.tokens and found.best.log_prob > -math.inf:
            better += 1
            assert sure.hypotheses[1] is found.best
    assert better > 0


def test_exact_search_that_is_asked_for_has_a_budget():
    """A run may spare its evaluations the search, by a budget of 0."""
    source, searched = torch.tensor([5, 6, EOS]), 0
    for seed in range(5):
        model = sharpened(transformer(CHOICES["entmax"], size=9), seed, 1.0, 1.0)
        (found,) = beam(model, source.unsqueeze(0), 1, 5)
        if not found.exact:
            searched += 1
            assert surely(model, source, Search(longest=5, exact_budget=0), found).opened > found.opened
    assert searched


def test_a_search_that_ends_nowhere_is_no_empty_output():
    model = sharpened(lstm(CHOICES["entmax"], size=9), 0, end=-100.0)
    (found,) = beam(model, torch.tensor([[5, 6, EOS]]), 2, 3)
    assert not found.ended and not found.exact and found.best.tokens == ()
    ending = sharpened(lstm(CHOICES["entmax"], size=9), 0, end=100.0)
    (found,) = beam(ending, torch.tensor([[5, 6, EOS]]), 2, 3)
    assert found.ended and found.exact and found.best.tokens == ()


@pytest.mark.parametrize("count, most", [(9100, 200), (63, 32), (33, 32), (5, 32), (1, 1), (0, 3)])
def test_what_is_measured_is_spread_over_all_examples(count, most):
    places = spread(count, most)
    assert len(places) <= most and places == sorted(set(places))
    assert not count or (places[0] == 0 and count - places[-1] <= math.ceil(count / most))


def test_single_words_have_no_bleu():
    assert scores(["ja", "nein"], ["ja", "nein"]) == {"chrF": 100.0}
    assert math.isclose(scores(["das ist ein Haus"], ["das ist ein Haus"])["BLEU"], 100)

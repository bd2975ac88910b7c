"""Post-editing: what went into the model, what is shared, what it reads and writes, and what is refused."""

import csv
import importlib
import io
import itertools
import json
import math
import random
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from parsimax import cli
from parsimax.recipes.ape import mistakes
from parsimax.recipes.ape.answers import answer, unread
from parsimax.recipes.ape.conserve import Penalty, Vocabulary
from parsimax.recipes.ape.dual import DualSource, densities
from parsimax.recipes.ape.edits import edits, rendered
from parsimax.recipes.ape.figures import changes, ter
from parsimax.recipes.ape.layers import Shape
from parsimax.recipes.ape.model import SHARING, PostEditor, segments
from parsimax.recipes.ape.pieces import WordPieces
from parsimax.recipes.ape.settings import Model, Options, Settings
from parsimax.recipes.kit import dial
from parsimax.recipes.kit.choice import Choice
from parsimax.recipes.text.codec import BOS, EOS, PAD, UNK
from parsimax.recipes.text.seq2seq.exact import exact
from parsimax.recipes.text.seq2seq.examples import Examples
from parsimax.recipes.text.seq2seq.search import Found, Hypothesis, beam
from parsimax.recipes.text.seq2seq.transformer import Shape as PlainShape
from triplet_files import QUICK, TINY, tiny_bert

transformers = pytest.importorskip("transformers")
SOFT, SPARSE = Choice(mapping="softmax"), Choice(mapping="entmax")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


PIECES = ["<pad>", "<s>", "</s>", "<unk>", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij"), "ab", "##ab"]
PIECES += ["abc", "##cd", "cd", "##abc"]  # a word may be spelled by other pieces than those it was read in


def editor(kind="self-tied", size=30, mapping=SOFT, output=SOFT, conserve=0.0, bert=None):
    bert = tiny_bert(size) if bert is None else bert
    shape = Shape.of(bert.config.to_dict(), 0.0, 0.0)
    torch.manual_seed(1)
    model = PostEditor(size, shape, kind, mapping, mapping, mapping, output, conserve, PIECES)
    order = [3, 1, 0, 2, *range(4, size)]  # BERT's own numbers of <pad>, <s>, </s>, <unk>
    model.take(bert, order)
    return model.eval(), bert, torch.tensor(order)


def dual(output=SOFT, conserve=0.0, context=SOFT):
    torch.manual_seed(2)
    return DualSource(30, PlainShape(16, 2, 2, 24, 0.0), SOFT, SOFT, context, output, conserve, PIECES).eval()


def sources(count=3, seed=0):
    """Sources of different lengths, one without machine output and one without a source text."""
    torch.manual_seed(seed)
    rows = [
        [BOS, *torch.randint(4, 30, (i,)).tolist(), EOS, *torch.randint(4, 30, (j,)).tolist(), EOS]
        for i, j in [(5, 4), (3, 0), (0, 6)][:count]
    ]
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def test_two_texts_and_places_that_begin_again():
    kinds, places = segments(torch.tensor([[BOS, 7, 8, EOS, 9, 9, EOS, PAD], [BOS, EOS, 5, EOS, PAD, PAD, PAD, PAD]]))
    assert kinds.tolist()[0][:7] == [0, 0, 0, 0, 1, 1, 1] and kinds.tolist()[1][:4] == [0, 0, 1, 1]
    assert places.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize("kind", SHARING)
def test_the_encoder_is_bert(kind):
    model, bert, order = editor(kind)
    source = sources()
    kinds, places = segments(source)
    real = source != PAD
    with torch.no_grad():
        mine, _ = model.encode(source)
        theirs = bert(order[source], real.long(), kinds, places).last_hidden_state
    torch.testing.assert_close(mine[real], theirs[real], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in SHARING if kind != "random"])
def test_the_decoder_made_bidirectional_is_bert(kind):
    """The proof that its weights went in right; with a random decoder the same computation differs."""

    def both_ways(kind):
        model, bert, order = editor(kind)
        tokens = torch.randint(4, 30, (2, 7))
        with torch.no_grad():
            x = model.entered(tokens)
            for layer in model.decoder:
                x = layer.think(layer.own(x)[0])
            return x, bert(order[tokens], token_type_ids=torch.ones_like(tokens)).last_hidden_state

    torch.testing.assert_close(*both_ways(kind), atol=2e-6, rtol=1e-5)
    mine, theirs = both_ways("random")
    assert (mine - theirs).abs().max() > 0.1


@pytest.mark.parametrize("kind", SHARING)
def test_what_is_tied_shares_storage_and_the_count_is_that_of_the_formula(kind):
    model, _, _ = editor(kind)
    level, width, inner, layers, size, positions = SHARING[kind], 16, 24, 2, 30, 20
    for mine, other in zip(model.encoder, model.decoder, strict=True):

        def same(one, two):
            return all(a.data_ptr() == b.data_ptr() for a, b in zip(one.parameters(), two.parameters(), strict=True))

        assert same(mine.own, other.own) == (level >= 3)
        assert same(other.own.projections, other.context.projections) == (level >= 4)
        assert same(mine.think, other.think) == (level >= 5)
        assert not same(other.own.norm, other.context.norm)
    attention, norm = 4 * width * (width + 1), 2 * width
    forward = width * inner + inner + inner * width + width + norm
    embeddings = (size + positions + 2) * width + norm
    decoder = norm + (level < 3) * (attention + norm) + (level < 4) * attention + (level < 5) * forward
    expected = embeddings + layers * (attention + norm + forward + decoder) + size  # the bias of the output
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert model.output.weight is model.words.weight


def test_context_attention_starts_as_self_attention():
    model, _, _ = editor("context-from-self")
    for layer in model.decoder:
        assert torch.equal(layer.context.projections.key.weight, layer.own.projections.key.weight)
        assert layer.context.projections.key.weight.data_ptr() != layer.own.projections.key.weight.data_ptr()
    other, _, _ = editor("bert")
    assert not torch.equal(other.decoder[0].context.projections.key.weight, other.decoder[0].own.projections.key.weight)


def small():
    """Settings, six triplets and a task of a model that has learned nothing."""
    from parsimax.recipes.ape.recipe import RECIPE
    from parsimax.recipes.kit.settings import changed

    words = {"model.pretrain": "0", "model.layers": "1", "train.moving_average": "0", "search.longest": "2"}
    settings = changed(Settings(), {**words, "search.beam": "2"})
    pairs = RECIPE.pairs(settings, "val")[:6]
    return settings, pairs, RECIPE._task(settings, RECIPE.learn(settings, pairs), pairs, pairs)


MODELS = {"bert": lambda: editor()[0], "sparse": lambda: editor(mapping=SPARSE, output=SPARSE)[0], "dual": dual}


@pytest.mark.parametrize("name", MODELS)
def test_causal_and_the_cache_gives_the_same(name):
    model, source = MODELS[name](), sources()
    entered = torch.cat([torch.full((3, 1), BOS), torch.randint(4, 30, (3, 6))], 1)
    with torch.no_grad():
        whole = model(source, entered)
        changed = entered.clone()
        changed[:, 4:] = 5
        torch.testing.assert_close(model(source, changed)[:, :4], whole[:, :4])
        state, steps = model.start(source), []
        for column in entered.T:
            hidden, state, seen = model.advance(column, state)
            steps.append(hidden)
            torch.testing.assert_close(seen.sum(1), torch.ones(3))
            assert not seen[source == PAD].any()
        torch.testing.assert_close(torch.stack(steps, 1), whole, atol=2e-6, rtol=1e-5)
        for row in range(3):  # each alone, without padding
            alone = source[row][source[row] != PAD][None]
            torch.testing.assert_close(model(alone, entered[row : row + 1])[0], whole[row], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: editor(conserve=2.0)[0], lambda: dual(conserve=2.0)])
def test_what_belongs_to_a_source_stays_where_rows_are_of_the_same(make):
    """The penalty is each hypothesis's own."""
    model, rows = make(), torch.tensor([1, 0, 3, 3])
    source = torch.tensor([[BOS, 4, 5, EOS, 6, EOS], [BOS, 7, EOS, 8, EOS, PAD]])
    with torch.no_grad():
        _, state, _ = model.advance(torch.full((2,), BOS), model.start(source))
        hidden, state, _ = model.advance(torch.tensor([4, 9, 7, 9]), state.chosen(torch.tensor([0, 0, 1, 1])))
        found = []
        for same in (True, False):
            chosen = state.chosen(rows, same)
            logs = model.next_logs(hidden, chosen)  # before the next token: a word of the source may go on, or not
            found.append((logs, *model.advance(torch.tensor([14, 15, 16, 7]), chosen)[::2]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)


def enumerated(model, source, longest):
    """All outputs of at most ``longest`` tokens with their penalised log-probabilities."""
    found = {}
    tokens = [number for number in range(30) if number not in (PAD, BOS, EOS, UNK)]
    for length in range(longest + 1):
        rows = list(itertools.product(tokens, repeat=length))
        entered = torch.tensor([[BOS, *row] for row in rows])
        with torch.no_grad():
            logs = model.output(model(source.expand(len(rows), -1), entered))
        for row, each in zip(rows, logs, strict=True):
            wanted = torch.tensor([*row, EOS])
            log = each[torch.arange(len(wanted)), wanted].double().sum().item()
            found[row] = log - model.conserve * new_words(source[0].tolist(), row)
    return found


def spelled(numbers):
    """The words of tokens, by the text that they make."""
    texts = ("\n" if number < 4 else PIECES[number] for number in numbers)
    return "".join(text.removeprefix("##") if text.startswith("##") else f" {text}" for text in texts).split()


def new_words(source, output):
    known = {*spelled(source)}
    return sum(word not in known for word in spelled(output))


@pytest.mark.parametrize("end", [0.0, 2.0])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("conserve", [0.0, 2.0])
@pytest.mark.parametrize("make", [lambda c: editor(conserve=c, output=SPARSE)[0], lambda c: dual(conserve=c)])
def test_the_beam_is_exhaustive_search(end, average, conserve, make):
    """A beam as wide as all prefixes finds the best of all outputs, with and without averages and penalty.

    Where the end is likely, it is proved.
    """
    model, source = make(conserve), sources(1)
    with torch.no_grad():
        model.output.weight.mul_(0.5)  # else the sparse output has its mass on tokens that no output has
        model.output.bias[[PAD, BOS, UNK]] -= 100
        model.output.bias[EOS] += end
    found = enumerated(model, source, 2)
    assert sum(value > -math.inf for value in found.values()) > 100
    score = {row: value / (len(row) + 1) if average else value for row, value in found.items()}
    best = max(score, key=score.get)
    wide = beam(model, source, 30 * 30, 2, average)[0]
    assert wide.best.tokens == best and math.isclose(wide.best.log_prob, found[best], rel_tol=1e-4)
    sure = exact(model, source[0], 2, 5000, average=average)
    assert sure.best.tokens == best  # the budget holds all prefixes
    narrow = beam(model, source, 2, 2, average)[0]
    assert not narrow.exact or narrow.best.tokens == best
    if end:
        assert sure.exact and wide.exact


def test_the_penalty_is_on_words_of_neither_text():
    """Each word pays once, whatever its pieces; a prefix has never paid more than what it begins."""
    source = torch.tensor([[BOS, *map(PIECES.index, ("ab", "##cd", "e", "##f")), EOS, PIECES.index("abc"), EOS]])
    chance = random.Random(0)
    usual = [PIECES.index(piece) for piece in ("a", "ab", "abc", "##cd", "##c", "##d", "e", "##f", "j")]
    for output in [tuple(chance.choice(usual) for _ in range(chance.randrange(6))) for _ in range(300)]:
        penalty, paid = Penalty.of(Vocabulary(PIECES), 1.5, source), []
        for last, following in itertools.pairwise((BOS, *output, EOS)):
            penalty = penalty.entered(torch.tensor([last]))
            costs = penalty.costs()[0]
            assert costs.shape == (30,) and costs.min() >= 0
            paid.append(costs[following].item())
        assert sum(paid) == 1.5 * new_words(source[0].tolist(), output), output
    for free in (("ab", "##cd"), ("abc", "##d"), ("abc",), ("e", "##f")):
        output = [PIECES.index(piece) for piece in free]
        assert new_words(source[0].tolist(), output) == 0
    assert new_words(source[0].tolist(), [PIECES.index("ab"), PIECES.index("##f")]) == 1, "seen pieces, a new word"
    logs = {}
    for conserve in (0.0, 1.5):
        for name, model in (("bert", editor(conserve=conserve)[0]), ("dual", dual(conserve=conserve))):
            with torch.no_grad():
                _, state, _ = model.advance(torch.tensor([BOS]), model.start(source))
                hidden, state, _ = model.advance(torch.tensor([PIECES.index("ab")]), state)
                logs[name, conserve] = model.next_logs(hidden, state)[0]
    for name in ("bert", "dual"):
        less = logs[name, 0.0] - logs[name, 1.5]
        for piece, times in (("</s>", 1), ("##cd", 0), ("##c", 0), ("##f", 1), ("e", 1), ("j", 2)):
            torch.testing.assert_close(less[PIECES.index(piece)], torch.tensor(1.5 * times), atol=1e-5, rtol=0)


def test_an_infinite_penalty_writes_no_new_word():
    """And leaves what is free as it is: no NaN, which would end every search without an output."""
    source = torch.tensor([[BOS, *map(PIECES.index, ("ab", "##cd", "e", "##f")), EOS, PIECES.index("abc"), EOS]])
    penalty = Penalty.of(Vocabulary(PIECES), math.inf, source)
    assert {*penalty.costs().unique().tolist()} == {0.0, math.inf}
    inside = penalty.entered(torch.tensor([PIECES.index("ab")])).costs()[0]
    assert inside[PIECES.index("##cd")] == 0 and inside[EOS] == inside[PIECES.index("e")] == math.inf
    texts, ended = source[0].tolist(), 0
    for seed in range(20):
        torch.manual_seed(seed)
        model = editor(conserve=math.inf)[0]
        with torch.no_grad():
            model.output.bias.add_(2 * torch.randn(30))
            model.output.bias[EOS] += 3
        (found,) = beam(model, source, 8, 6)
        if found.ended:
            ended += 1
            assert all(new_words(texts, one.tokens) == 0 for one in found.hypotheses)
    assert ended == 20


def codec(**words):
    texts = [text for rows in mistakes.triplets(200, 20).values() for row in rows for text in row]
    return WordPieces.learn(texts, 80, True, {}, **words)


def test_word_pieces():
    pieces = codec()
    text = "Forty-two thousand"
    numbers = pieces.source(f"vier\t{text}")
    assert numbers[0] == BOS and numbers.count(EOS) == 1 and min(set(numbers) - {BOS, EOS}) > UNK
    assert pieces.text(pieces.target(text)) == pieces.clean(text) == "forty - two thousand"
    assert [word for word, _ in pieces.words(text)] == ["forty", "-", "two", "thousand"]
    assert [text[slice(*place)] for _, place in pieces.words(text)] == ["Forty", "-", "two", "thousand"]
    assert pieces.source("\t")[:2] == [BOS, EOS] and pieces.unseen("vier\tforty 漢") == ["漢"]
    again = WordPieces.of(json.loads(json.dumps(pieces.content())))
    assert again.source(f"vier\t{text}") == numbers
    assert pieces.tokens(pieces.target("[SEP]"))[0] != "</s>"


def test_edits_and_spelling():
    kinds = [edit.kind for edit in edits(["a", "b", "c", "d"], ["a", "x", "c"])]
    assert kinds == ["keep", "replace", "keep", "delete"]
    machine = "The  Cat, (she) sat"
    words = [
        ("the", (0, 3)),
        ("cat", (5, 8)),
        (",", (8, 9)),
        ("(", (10, 11)),
        ("she", (11, 14)),
        (")", (14, 15)),
        ("sat", (16, 19)),
    ]
    names, places = [word for word, _ in words], [place for _, place in words]
    assert rendered(machine, places, names, names) == "The Cat, (she) sat"
    assert rendered(machine, places, names, ["the", "dog", ",", "sat"]) == "The dog, sat"
    assert rendered(machine, places, names, [*names[-1:], *names[:-1]]) == "sat The Cat, (she)"
    assert rendered(machine, places, names, [*names[1:], "the"]) == "Cat, (she) sat The", (
        "moved words keep their letters"
    )
    assert rendered("", [], [], ["new", "words"]) == "new words"
    assert rendered("", [], [], ["(", "new", ")", ",", "a", "-", "b", "!"]) == "(new), a-b!"


@pytest.mark.parametrize(
    "machine, output, wanted",
    [
        ("He came but he left", "he came , but he left .", "He came, but he left."),
        ("eighty three", "eighty - three", "eighty-three"),
        ("eighty-tree", "eighty - three", "eighty-three"),
        ("- one two", "- one - two -", "- one-two -"),
        ("one - two", "one - six", "one - six"),
    ],
)
def test_new_punctuation_is_written_as_usual(machine, output, wanted):
    parts = [(match[0].lower(), match.span()) for match in re.finditer(r"\w+|[^\w\s]", machine)]
    words, places = [word for word, _ in parts], [place for _, place in parts]
    assert rendered(machine, places, words, output.split()) == wanted


def test_changed_sentences_are_counted_as_the_shared_tasks_do():
    machine, wanted = ["a b c", "a b c", "a b c", "a b c"], ["a b d"] * 4
    outputs = ["a b c", "a b d", "a x c", "a b e"]
    assert changes(machine, outputs, wanted) == {"changed": 3, "improved": 1, "worsened": 1}


def test_a_letter_in_another_case_is_a_mistake():
    assert changes(["One two"], ["one two"], ["one two"]) == {"changed": 1, "improved": 1, "worsened": 0}
    assert ter(["One two"], ["one two"]) == 50 and ter(["one two"], ["one two"]) == 0


def test_the_embedded_mistakes():
    rows = mistakes.triplets(300, 30)
    assert {split: len(found) for split, found in rows.items()} == {"val": 30, "test": 30, "train": 300}
    assert len({one[0] for found in rows.values() for one in found}) == 360
    assert mistakes.machine(42, random.Random(0)) == "two and forty"


def answered(monkeypatch, capsys, text, *options):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code = cli.main(["predict", "run", *options])
    return code, capsys.readouterr()


def test_from_training_to_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dial, "ROUNDS", 1)
    assert cli.main(["train", "ape", "--run", "run", *TINY, *QUICK]) == 0
    said = capsys.readouterr().out
    assert "TER doing nothing" in said and "improved" in said and "worsened" in said
    long = " ".join(["vier"] * 1000)
    text = f"vier\tFour\nvier\t\n\tfour\n\t\n{long}\tKEEP me\n"
    code, found = answered(monkeypatch, capsys, text)
    lines = found.out.splitlines()
    assert code == 1 and len(lines) == 5 and lines[3].startswith("#ERROR line 4") and lines[4] == "KEEP me"
    assert "left as it is" in found.err
    table = "src\tmt\tpe\n" + f"{long}\tKEEP\tx\n" * 2
    code, found = answered(monkeypatch, capsys, table, "--format", "tsv")
    assert code == 0 and found.out == "KEEP\nKEEP\n" and "line 2: more" in found.err and "line 3: more" in found.err
    code, found = answered(monkeypatch, capsys, "vier\tFour\n", "--json")
    known = json.loads(found.out)
    assert code == 0 and {"edits", "outputs", "proved best"} <= {*known}
    assert {edit["edit"] for edit in known["edits"]} <= {"keep", "replace", "insert", "delete", "shift"}
    capsys.readouterr()
    assert cli.main(["eval", "run", "--split", "val", "search.conserve=0,50"]) == 0
    said = capsys.readouterr().out
    assert "best TER" in said and "zeros" not in said, "a penalty has none"
    with Path("run/dial/val-search.conserve.csv").open(encoding="utf-8") as file:
        free, bound = csv.DictReader(file)
    own = json.loads(Path("run/results.json").read_text())["val"]
    assert float(free["TER"]) == own["TER"] and float(bound["TER"]) != own["TER"]
    assert cli.main(["eval", "run"]) == 0
    assert cli.main(["train", "--resume", "run", "search.conserve=50"]) == 0
    kept = json.loads(Path("run/results.json").read_text())
    assert kept["val"]["TER"] == float(bound["TER"]), "it is kept"
    assert "test" not in kept, "it was measured without the penalty"
    drawn = follow(monkeypatch, "text.seq2seq.report")
    capsys.readouterr()
    assert cli.main(["report", "run"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    page = next(path for path in written if path.name == "edits.html").read_text(encoding="utf-8")
    assert drawn == [("loss", "TER")] and "post-edit by a person, token" in page
    assert "% source" in page and 'class="delete"' in page and "<script" not in page


def test_resumed_it_ends_with_the_same_bits(capsys):
    """From the checkpoint in the middle: the weights, their average and the optimiser go on as if nothing had been."""
    assert cli.main(["train", "ape", "--run", "whole", *TINY, *QUICK, "moving_average=0.3", "dropout=0.2"]) == 0
    shutil.copytree("whole", "broken")
    checkpoints = Path("broken/checkpoints")
    (checkpoints / "previous.ckpt").replace(checkpoints / "last.ckpt")
    assert torch.load(checkpoints / "last.ckpt", weights_only=True)["global_step"] == 2
    assert cli.main(["train", "--resume", "broken"]) == 0
    one, other = (
        torch.load(Path(run) / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in ("whole", "broken")
    )
    assert one.keys() == other.keys() and any(name.startswith("averaged.") for name in one)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def follow(monkeypatch, where):
    """The names of the curves that a module draws."""
    module, names = importlib.import_module(f"parsimax.recipes.{where}"), []
    plain = module.curves
    monkeypatch.setattr(module, "curves", lambda run, *given: names.append(given) or plain(run, *given))
    return names


def test_the_densities_of_two_encoders_are_those_of_their_weights():
    model, source = dual(), sources()
    examples = Examples([("", "")] * 3, [row[row != PAD].tolist()[:-1] for row in source], [[5, 6], [7], []])
    assert densities(model, examples) == {f"density ({kind})": 1.0 for kind in ("self", "decoder", "cross")}
    batch, sparse = examples.batch(range(3)), dual(context=SPARSE)
    with torch.no_grad():
        for name, part in sparse.named_parameters():
            if "context" in name and "in_proj" in name:
                part.mul_(4)
        found = densities(sparse, examples)
        assert found["density (self)"] == found["density (decoder)"] == 1.0
        read, expected = sparse.encode(batch.source), []
        x = sparse.embed(batch.entered, torch.arange(batch.entered.shape[1]).expand_as(batch.entered))
        for layer in sparse.decoder:
            own, _ = layer.own(x, causal=True)
            for number, part in enumerate((layer.context_source, layer.context_machine)):
                query, keys = part.norm(own), read.memories[number]
                _, seen = part.attention(
                    query, keys, keys, key_padding_mask=read.paddings[number], average_attn_weights=False
                )
                room = (~read.paddings[number]).sum(1)[:, None, None]
                share = (seen > 0).sum(-1) / room
                expected.append(share[(batch.wanted != PAD)[:, None].expand_as(share)].mean().item())
                own, _ = part(own, keys, read.paddings[number])
            x = layer.think(own)
    assert found["density (cross)"] == pytest.approx(sum(expected) / len(expected)) and found["density (cross)"] < 1


def test_doing_nothing_beside_a_dual_source_transformer(capsys, monkeypatch):
    monkeypatch.setattr(dial, "ROUNDS", 1)
    drawn = follow(monkeypatch, "ape.recipe")
    words = ["kind=dual-source", "model.context.mapping=entmax", *TINY[1:], *QUICK, "moving_average=0"]
    assert cli.main(["train", "ape", "--run", "run", *words]) == 0
    assert "TER doing nothing" in capsys.readouterr().out
    assert cli.main(["report", "run"]) == 0
    written = {Path(line).name: Path(line) for line in capsys.readouterr().out.splitlines()}
    page = written["edits.html"].read_text(encoding="utf-8")
    assert "% source" in page and "would always be a half" in page and "post-edit by a person, token" in page
    assert drawn == [("loss", "TER")] and written["training.png"].stat().st_size > 1000
    assert cli.main(["eval", "run", "--split", "val", "model.context.alpha=1,2"]) == 0
    with Path("run/dial/val-model.context.alpha.csv").open(encoding="utf-8") as file:
        soft, sparse = (float(row["zeros of the mapping"]) for row in csv.DictReader(file))
    assert soft == 0 < sparse < 1


def test_the_average_of_the_weights_is_what_answers():
    from parsimax.recipes.ape.recipe import RECIPE
    from parsimax.recipes.kit.settings import changed

    settings = changed(Settings(), {"model.pretrain": "0", "train.moving_average": "0.25", "model.layers": "1"})
    pairs = RECIPE.pairs(settings, "val")[:4]
    pieces = RECIPE.learn(settings, pairs)
    task = RECIPE._task(settings, pieces, pairs, pairs)
    assert task.answering is task.averaged and task.averaged is not task.model
    start = task.model.words.weight.detach().clone()
    with torch.no_grad():
        task.model.words.weight.add_(1.0)
    type(task).global_step = property(lambda self: 100)
    try:
        task._average(0.25)
    finally:
        del type(task).global_step
    torch.testing.assert_close(task.averaged.words.weight, start + 0.25)
    tied = task.averaged
    assert (
        tied.decoder[0].own.projections.key.weight.data_ptr() == tied.encoder[0].own.projections.key.weight.data_ptr()
    )
    assert not any(parameter.requires_grad for parameter in tied.parameters())


def test_what_cannot_be_post_edited_is_left_as_it_is():
    from parsimax.recipes.ape.recipe import RECIPE
    from parsimax.recipes.kit.settings import changed

    settings = changed(Settings(), {"model.pretrain": "0", "model.layers": "1"})
    pairs = RECIPE.pairs(settings, "val")[:4]
    task = RECIPE._task(settings, RECIPE.learn(settings, pairs), pairs, pairs)
    machine = "FOUR  \u2603 four"  # a snowman is no word to it
    found = Found([Hypothesis((), -math.inf)], False, 0)
    plain = answer(task, machine, [BOS, EOS, EOS], found, 8, Options())
    assert plain.lines == (machine,) and "left as it is" in plain.own_notes[0]
    known = json.loads(answer(task, machine, [BOS, EOS, EOS], found, 8, Options(json=True)).lines[0])
    assert known["outputs"][0]["text"] == machine and {edit["edit"] for edit in known["edits"]} == {"keep"}
    assert known["left as it is"] == "no post-edit ended within search.longest=8 tokens"
    known = json.loads(unread(machine, 8, Options(json=True)).lines[0])
    assert "more than the 8 tokens" in known["left as it is"] and known["outputs"][0]["text"] == machine
    for one in (
        answer(task, machine, [BOS, EOS, EOS], found, 8, Options(nbest=2)),
        unread(machine, 8, Options(nbest=2)),
    ):
        assert one.lines == (f"1\t0\t-\t{machine}",)
    for one in (answer(task, "a\nb", [BOS, EOS, EOS], found, 8, Options()), unread("a\r\nb", 8, Options())):
        assert one.lines == ("a b",), "a line for each query"


def test_edits_in_json_say_from_where_to_where():
    _, _, task = small()
    output = task.codec.target("five six one two three four")
    found = Found([Hypothesis(tuple(output), -1.0)], False, 0)
    line = answer(task, "One two three four five six", [BOS, EOS, EOS], found, 8, Options(json=True)).lines[0]
    known = json.loads(line)
    assert known["left as it is"] is None
    assert known["edits"] == [
        {"edit": "shift", "old": ["five", "six"], "new": ["five", "six"], "at": 4, "to": 0},
        {"edit": "keep", "old": (kept := ["one", "two", "three", "four"]), "new": kept, "at": 0, "to": 2},
    ]


@pytest.mark.parametrize("kind", ["self-tied", "dual-source"])
def test_figures_where_no_triplet_can_be_read_are_those_of_doing_nothing(kind, monkeypatch):
    from parsimax.recipes.ape import recipe
    from parsimax.recipes.kit.settings import changed

    settings = changed(Settings(), {"model.kind": kind, "model.layers": "1", "train.moving_average": "0"})
    pairs = recipe.RECIPE.pairs(settings, "val")[:4]
    task = recipe.RECIPE._task(settings, recipe.RECIPE.learn(settings, pairs), pairs, pairs)
    monkeypatch.setattr(recipe, "_fits", lambda *texts: False)
    figures = recipe.RECIPE.evaluate(task, settings, "val", lambda text: None).figures
    assert figures["not read"] == figures["triplets"] > 0 and figures["changed"] == 0
    assert figures["TER"] == figures["TER doing nothing"] > 0
    assert recipe.RECIPE.zeros(task, figures, "model.output.alpha") is None


def test_figures_count_what_predict_gives_where_no_output_ends(tmp_path, monkeypatch):
    from parsimax.recipes.ape.recipe import RECIPE, embedded
    from parsimax.recipes.ape.report import report
    from parsimax.recipes.kit.runs import Run

    settings, pairs, task = small()
    monkeypatch.setitem(embedded(), "val", embedded()["val"][:6])
    with torch.no_grad():
        task.model.output.bias[EOS] = -1e4
    found = RECIPE.evaluate(task, settings, "val", lambda text: None)
    figures = found.figures
    assert figures["unfinished outputs"] == 1 and figures["changed"] == 0
    assert figures["TER"] == figures["TER doing nothing"] < 100 and figures["chrF"] == figures["chrF doing nothing"]
    assert all(row["output"] == row["machine"] for row in found.outputs)
    assert figures["accuracy"] == sum(row["machine"] == row["wanted"] for row in found.outputs) / 6
    assert task.validate()["TER"] > figures["TER"], "a model that cannot end is not as good as doing nothing"
    (page,) = report(task.model, task.codec, pairs, settings.search, Run(tmp_path), tmp_path)
    rows = page.read_text(encoding="utf-8").split("post-edit by the model")[1:]
    assert len(rows) == 6 and all("keep" in row.split("</tr>")[0] for row in rows)
    assert not any("delete" in row.split("</tr>")[0] for row in rows)


def test_what_has_not_ended_is_judged_as_far_as_it_is_written():
    """Greedy search follows the likeliest token; those that did not end are as long as is allowed."""
    _, _, task = small()
    with torch.no_grad():
        task.model.output.bias[EOS] = -1e4
        task.model.output.bias[7] = 1e4
    source = task.val.batch(range(6)).source
    for found in beam(task.model, source, 1, 2):
        assert not found.ended and found.begun == (7, 7)
    with torch.no_grad():
        task.model.output.bias[EOS] = 2e4
    assert all(found.ended and found.best.tokens == () for found in beam(task.model, source, 1, 2))


def test_settings_that_do_not_go_together(capsys):
    assert cli.main(["train", "ape", "oversample=3", *QUICK]) == 2
    assert "data.artificial" in capsys.readouterr().err
    assert Model().kind == "self-tied"
    for words in (["width=30", "heads=4"], ["width=30", "heads=4", "kind=dual-source", "model.bert=minilm"]):
        assert cli.main(["train", "ape", *words, "--run", "run"]) == 2
        assert "model.heads must divide model.width, got 4 and 30" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.encoder.alpha=1.9"], "model.encoder.mapping=softmax does not read model.encoder.alpha"),
        (["model.context.mapping=normmax", "model.context.alpha=0.5"], "model.context.alpha of normmax must be in"),
        (["model.bert=minilm", "layers=9"], "model.bert=minilm does not read model.layers"),
        (["model.bert=minilm", "data.vocabulary=99"], "model.bert=minilm does not read data.vocabulary"),
        (["kind=dual-source", "pretrain=7"], "model.kind=dual-source does not read model.pretrain"),
    ],
)
def test_what_nothing_reads_is_refused(words, said, capsys):
    assert cli.main(["train", "ape", *words, *QUICK, "--run", "run"]) == 2
    assert said in capsys.readouterr().err and not Path("run").exists()

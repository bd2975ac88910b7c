"""The recipe ``finetune``: what is read, what is trained, what is saved, and the zeros that were asked for."""

import csv
import gzip
import io
import json
import math
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from parsimax import cli

pytest.importorskip("transformers")
pytest.importorskip("sklearn")

import transformers
from sklearn import metrics

from parsimax.huggingface import sparsify
from parsimax.recipes import find
from parsimax.recipes.finetune import data, docstrings, figures
from parsimax.recipes.finetune.data import Example
from parsimax.recipes.finetune.encoder import Encoder, kept
from parsimax.recipes.finetune.model import Examples, FineTuning, Tokens
from parsimax.recipes.finetune.recipe import known, line
from parsimax.recipes.finetune.settings import Data, Options
from parsimax.recipes.kit import dial
from parsimax.recipes.kit.answers import answers
from parsimax.recipes.kit.checkpoints import weights
from parsimax.recipes.kit.recipe import DataError
from parsimax.recipes.kit.settings import changed, from_yaml
from parsimax.recipes.text.bert import PACKAGE, word_pieces

TINY = ["width=16", "heads=2", "layers=2", "inner=16", "pretrain=2", "vocabulary=150"]
QUICK = ["steps=6", "eval_every=3", "tensorboard=false", "batch_tokens=256"]
RATES = [0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def sentence(good, chance):
    words = ["a", "film", "that", "is", "not", "long", "with", "many", "people", ","]
    filler = chance.choices(words, k=chance.randrange(2, 14))
    return " ".join([*filler, "good" if good else "bad", *chance.choices(words, k=chance.randrange(3))])


def write_lines(folder, counts=(60, 24, 24)):
    """SST-2's form: a label and a text, the last part of the name is the split."""
    folder.mkdir()
    chance = random.Random(0)
    for split, count in zip(("train", "dev", "test"), counts, strict=True):
        lines = [f"{number % 2} {sentence(number % 2, chance)}" for number in range(count)]
        (folder / f"x.binary.{split}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def write_pairs(folder, ending=".tsv", label="gold"):
    """GLUE's form: a header, two texts, and quotes that mean nothing in TSV."""
    folder.mkdir()
    chance, mark = random.Random(1), {".tsv": "\t", ".csv": ","}[ending]
    for split, count in (("train", 40), ("dev", 16)):
        rows = [mark.join(("id", "one", "#2 String", label))]
        for number in range(count):
            same = chance.random() < 0.5
            texts = [sentence(number % 2, chance), sentence(number % 2 == same, chance)]
            cells = [f'"{text}"' if ending == ".csv" else f'"{text}' for text in texts]
            rows.append(mark.join((str(number), *cells, "same" if same else "other")))
        (folder / f"{split}{ending}").write_text("\ufeff" + "\n".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on lines of label and text, left alone."""
    folder = tmp_path_factory.mktemp("finetune")
    root = write_lines(folder / "data")
    words = [*TINY, "steps=80", "eval_every=40", "tensorboard=false", "batch_tokens=256", "lr=0.01"]
    assert cli.main(["train", "finetune", *words, f"data.root={root}", "--run", str(folder / "run")]) == 0
    return folder / "run"


def said_to(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_docstrings_are_of_one_family_and_one_split():
    rows = docstrings.splits()
    texts = [text for found in rows.values() for text, _ in found]
    assert len({*texts}) == len(texts) > 2000 and len(rows["val"]) == len(rows["test"]) == docstrings.HELD_OUT
    assert {family for _, family in rows["train"]} == {*docstrings.FAMILIES}


def test_word_pieces_are_always_the_same():
    texts = ["The quick brown fox jumps over lazy dogs", "Pack my box with five dozen liquor jugs"] * 3
    learned = [word_pieces(texts, 70, True) for _ in range(6)]
    assert all(one.get_vocab() == learned[0].get_vocab() for one in learned)
    (pieces, *_), letters = learned, {letter for text in texts for letter in text.lower().replace(" ", "")}
    assert pieces.get_vocab_size() == 70 and letters <= {one.removeprefix("##") for one in pieces.get_vocab()}
    said = pieces.encode("Fox, quick", add_special_tokens=False).tokens
    assert "".join(said).replace("##", "") == "fox[UNK]quick" and len(said) < 9, "some pieces are longer than a letter"


def test_the_embedded_data(capsys):
    words = [*TINY[:-1], *QUICK, "rate=0.3", "ramp=1", "--run", "run"]
    assert cli.main(["train", "finetune", *words]) == 0, capsys.readouterr().err
    found = json.loads(Path("run/results.json").read_text())["val"]
    assert found["examples"] == docstrings.HELD_OUT and found["zeros"] > 0.29 and "step time / softmax" in found


@pytest.mark.parametrize("words", [["mapping=softmax"], ["mapping=sparsemax"], ["mapping=entmax", "alpha=learned"]])
def test_every_kind_of_mapping(words, tmp_path, capsys):
    root, soft = write_lines(tmp_path / "data"), words == ["mapping=softmax"]
    base = ["train", "finetune", *TINY, *QUICK, f"data.root={root}"]
    assert cli.main([*base, *words, "--run", "run"]) == 0, capsys.readouterr().err
    found = json.loads(Path("run/results.json").read_text())["val"]
    assert ("step time / softmax" in found) != soft, "softmax is beside itself"
    assert len(found["density by layer"]) == len(found["alpha by layer"]) == 2 and (found["zeros"] == 0 or not soft)
    config = transformers.AutoConfig.from_pretrained("run/model")
    assert hasattr(config, "parsimax") != soft, "softmax needs no parsimax to be loaded"
    if words[-1] == "alpha=learned":
        again = transformers.AutoModelForSequenceClassification.from_pretrained("run/model")
        name = "bert.encoder.layer.0.attention.self.parsimax.learned_alpha.raw"
        held = weights(Path("run/checkpoints/best.ckpt"))[f"model.{name}"]
        assert torch.equal(again.get_parameter(name), held)


def test_from_training_to_the_pages(trained, capsys, monkeypatch):
    run = Path("run")
    shutil.copytree(trained, run)
    assert cli.main(["eval", "run"]) == 0
    found = json.loads((run / "results.json").read_text())["test"]
    rows = [json.loads(line) for line in (run / "outputs" / "test.jsonl").read_text().splitlines()]
    right, said = [row["wanted"] for row in rows], [row["label"] for row in rows]
    assert found["accuracy"] == metrics.accuracy_score(right, said) > 0.9
    assert found["F1"] == pytest.approx(metrics.f1_score(right, said, pos_label="1"))
    assert found["macro F1"] == pytest.approx(metrics.f1_score(right, said, average="macro"))
    assert found["Matthews"] == pytest.approx(metrics.matthews_corrcoef(right, said))
    capsys.readouterr()
    assert cli.main(["report", "run"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    names = ["training.png", "density.png", "attention.html", "attention-before.html"]
    assert [path.name for path in written] == names and all(path.stat().st_size > 1000 for path in written)
    assert "heads moved by training" in written[2].read_text() and "density before → after" in written[2].read_text()

    long = "good " * 200
    said_to(monkeypatch, f"a good film\n\na bad film\n{long}\n{long}\n")
    assert cli.main(["predict", "run"]) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split("\t")[0] for line in (lines[0], lines[2], lines[3])] == ["1", "0", "1"]
    assert all(0.5 <= float(lines[at].split("\t")[1]) <= 1 for at in (0, 2, 3))
    assert lines[1].startswith("#ERROR line 2") and "line 4: it has 202 tokens, of which 128 are read" in said.err
    assert "line 5: it has 202 tokens" in said.err, "every text that is cut is told"
    said_to(monkeypatch, f"a good film\n{long}\n")
    assert cli.main(["predict", "run", "--json"]) == 0
    assert [json.loads(line)["cut"] for line in capsys.readouterr().out.splitlines()] == [None, 202]
    Path("Q.TSV").write_text('id\ttext\n1\t"a good film\n2\ta bad film\n')
    assert cli.main(["predict", "run", "--input", "Q.TSV"]) == 0
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["1", "0"], "its header is no text"
    Path("q.csv").write_text('text\n"a good\nfilm"\n')
    assert cli.main(["predict", "run", "--input", "q.csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    Path("q.csv").write_text('id,text\n1,"a good, good film"\n2\n3,a bad film\n')
    assert cli.main(["predict", "run", "--input", "q.csv", "--json"]) == 1
    one, wrong, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["label"], other["label"]) == ("1", "0") and "1 cells" in wrong["error"]
    assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    Path("q.csv").write_text("id,txt\n1,good\n")
    assert cli.main(["predict", "run", "--input", "q.csv"]) == 1
    assert "no column is called 'text'; did you mean txt?" in capsys.readouterr().out


def test_the_dial_goes_to_softmax(trained, capsys, monkeypatch):
    monkeypatch.setattr(dial, "ROUNDS", 1)
    shutil.copytree(trained, "run")
    assert cli.main(["eval", "run", "--split", "val", "mapping=softmax,sparsemax"]) == 0, capsys.readouterr().err
    with next(Path("run/dial").glob("*.csv")).open(encoding="utf-8") as file:
        soft, sparse = (float(row["zeros of the mapping"]) for row in csv.DictReader(file))
    assert soft == 0 < sparse


def test_the_saved_folder_says_what_the_run_says(trained):
    """Loaded by transformers alone, sparse attention and all."""
    folder = trained / "model"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert repr(model.bert.encoder.layer[1].attention.self.parsimax).endswith("mapping=rsoftmax, rate=0.2)")
    recipe, settings = find("finetune").recipe(), find("finetune").settings()
    task = recipe.reopen(settings, _run(trained), data=False)
    task.load_state_dict(weights(trained / "checkpoints" / "best.ckpt"))
    texts = ["a good film", "a bad film , not long", "people"]
    with torch.no_grad():
        alone = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])
    together = task.eval().said(Tokens([(text,) for text in texts], tokenizer, 128))
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    assert model.config.id2label == {0: "0", 1: "1"}


def test_the_dial(trained, capsys, monkeypatch):
    """Other rates, and another mapping, on the weights as they are."""
    monkeypatch.setattr(dial, "ROUNDS", 1)
    shutil.copytree(trained, "run")
    assert cli.main(["eval", "run", "model.rate=0.1,0.5,0.9", "--tolerance", "1"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "sparsest within 100 % of it: model.rate=0.9" in said and Path("run/dial/test-model.rate.png").exists()
    zeros = [float(line.split()[2]) for line in said.splitlines()[2:5]]
    assert zeros == sorted(zeros) and zeros[0] < 0.25 and zeros[2] > 0.75
    assert cli.main(["eval", "run", "mapping=entmax", "alpha=1,2"]) == 0
    assert "entmax" in capsys.readouterr().out
    assert cli.main(["eval", "run", "mapping=entmax", "alpha=learned"]) == 2
    assert "model.alpha=learned is for training" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, unread",
    [
        (["mapping=softmax", "rate=0.3"], "model.mapping=softmax does not read model.rate"),
        (["alpha=1.7"], "model.mapping=rsoftmax does not read model.alpha"),
        (["mapping=sparsemax", "ramp=0"], "model.mapping=sparsemax does not read model.ramp"),
        (["mapping=normmax", "alpha=0.5"], "model.alpha of normmax must be in (1, inf), got 0.5"),
        (["rate=learned", "ramp=0.7"], "model.rate=learned does not read model.ramp"),
        (["held_out=0.3"], "the embedded data, whose parts are fixed, does not read data.held_out"),
    ],
)
def test_numbers_of_other_mappings_are_refused(words, unread, capsys):
    assert cli.main(["train", "finetune", *TINY, *QUICK, *words, "--run", "run"]) == 2
    said = capsys.readouterr()
    assert unread in said.err and not said.out and not Path("run").exists()


@pytest.mark.parametrize("encoder", ["minilm", "folder"])
@pytest.mark.parametrize(
    "key",
    ["model.width=32", "heads=2", "layers=3", "inner=32", "pretrain=7", "data.lowercase=false", "data.vocabulary=999"],
)
def test_what_is_of_the_tiny_encoder_alone_is_refused(encoder, key, capsys):
    words = [*QUICK, f"encoder={encoder}", key]
    assert cli.main(["train", "finetune", *words, "--run", "run"]) == 2
    said, name = capsys.readouterr(), key.partition("=")[0].rpartition(".")[2]
    assert f"model.encoder={encoder} does not read" in said.err and f".{name}; leave it out" in said.err
    assert not said.out and not Path("run").exists()


def test_the_shipped_settings_are_all_read():
    entry = find("finetune")
    for path in entry.configs().values():
        settings = changed(entry.settings(), from_yaml(path))
        settings.check()
        settings.check_new()


def _run(folder):
    from parsimax.recipes.kit.runs import open_run

    return open_run(folder)


def test_the_rate_rises_to_its_value_and_is_judged_there():
    entry = find("finetune")
    settings = changed(entry.settings(), {"model.rate": 0.6, "model.ramp": 0.5, "train.steps": 100})
    model = transformers.BertForSequenceClassification(bert_config())
    from parsimax.recipes.finetune.encoder import put_mapping

    put_mapping(model, settings.model, settings.train.steps)
    encoder = Encoder(model, _tokenizer())
    none = Examples([], ["0", "1"], encoder, 20)
    val = Examples([Example(("a b c",), "1", "")], ["0", "1"], encoder, 20)
    task = FineTuning(encoder, settings, ["0", "1"], none, val)
    core = model.bert.encoder.layer[0].attention.self.parsimax
    seen = []
    for step in (0, 25, 50, 99):
        type(task).global_step = property(lambda self, step=step: step)
        task.on_train_batch_start(None, 0)
        seen.append(float(core.settings()["rate"]))
    del type(task).global_step
    assert seen == pytest.approx([0, 0.3, 0.6, 0.6])
    core.set_step(0)
    task.eval().validate()
    assert float(core.settings()["rate"]) == 0.6


def bert_config(size=40, positions=40, layers=3, segments=2):
    return transformers.BertConfig(
        vocab_size=size,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=16,
        max_position_embeddings=positions,
        type_vocab_size=segments,
        initializer_range=0.5,
    )


def _tokenizer(folder=None):
    letters = [chr(ord("a") + number) for number in range(26)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{one}" for one in letters[:9])]
    return transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})


def zeros_of(encoder, texts, most):
    """For each row of the recorded weights: how many zeros, of how many keys."""
    tokens = Tokens(texts, encoder.tokenizer, most)
    recording = figures.recorded(encoder, tokens, range(len(tokens)))
    for size, example in zip(tokens.sizes, recording.examples, strict=True):
        for layer in example.weights:
            heads, queries, keys = layer.shape
            assert queries == keys == size, "padding is neither asked nor counted"
            dense = torch.stack([layer.dense(head) for head in range(heads)])
            torch.testing.assert_close(dense.sum(-1), torch.ones(heads, queries), rtol=1e-5, atol=1e-5)
            yield (dense == 0).sum(-1), keys


@pytest.mark.parametrize("which", ["random", "trained", "minilm"])
def test_the_zeros_are_those_asked_for_in_every_row(which, trained):
    """|zeros/n - rate| ≤ 1/n on recorded weights, in padded batches, in every layer and head, at every rate."""
    chance = random.Random(2)
    if which == "random":
        torch.manual_seed(0)
        encoder = Encoder(transformers.BertForSequenceClassification(bert_config()), _tokenizer())
        texts = [(" ".join(chance.choices("abcdefghij", k=size)),) for size in (1, 2, 3, 7, 18, 33)]
        most, layers = 40, 3
    elif which == "trained":
        encoder = kept(trained)
        held = weights(trained / "checkpoints" / "best.ckpt")
        state = {name.removeprefix("model."): value for name, value in held.items() if "parsimax" not in name}
        encoder.model.load_state_dict(state)
        texts, most, layers = [(sentence(size % 2, chance),) for size in range(6)], 128, 2
    else:
        package = pytest.importorskip(PACKAGE)
        folder = Path(package.__file__).parent / "model"
        model = transformers.AutoModel.from_pretrained(folder)
        encoder = Encoder(model, transformers.AutoTokenizer.from_pretrained(folder))
        texts = [("One long string of clichés .", "It is good ."), ("Yes", "No"), ("A b c d " * 9, "e , f ; g " * 5)]
        most, layers = 512, 6
    for rate in RATES if which != "minilm" else RATES[::4]:  # six layers of twelve heads take their time
        sparsify(encoder.model, "rsoftmax", rate=rate)
        rows = 0
        for zeros, keys in zeros_of(encoder, texts, most):
            assert ((zeros / keys - rate).abs() <= 1 / keys + 1e-6).all(), (which, rate, keys, zeros)
            rows += 1
        assert rows == len(texts) * layers


def test_the_count_of_zeros_can_fail():
    """Sparsemax gives what it likes, and the test above must see it."""
    torch.manual_seed(0)
    encoder = Encoder(transformers.BertForSequenceClassification(bert_config()), _tokenizer())
    sparsify(encoder.model, "sparsemax")
    found = [((zeros / keys - 0.5).abs() <= 1 / keys).all() for zeros, keys in zeros_of(encoder, [("a b c d e",)], 40)]
    assert not all(found)


def test_pairs_by_tabs_and_by_commas_are_the_same(tmp_path):
    for ending in (".tsv", ".csv"):
        root = write_pairs(tmp_path / ending, ending)
        settings = Data(root=root, text=("one", "#2 String"), label="gold", held_out=0.25)
        settings = Data(**{**vars(settings), "dev_is_test": True})
        train, val, test = (data.load(settings, split) for split in ("train", "val", "test"))
        assert (len(train), len(val), len(test)) == (30, 10, 16)
        assert not {one.where for one in train} & {one.where for one in val}
        quote = '"' if ending == ".tsv" else ""
        assert train[0].texts[0].startswith(quote) and len(train[0].texts) == 2
        assert data.classes_of(train) == ["other", "same"]
    dev = Data(root=root, text=("one", "#2 String"), label="gold")
    assert len(data.load(dev, "val")) == 16 and len(data.load(dev, "train")) == 40
    with pytest.raises(DataError, match="has no file of test"):
        data.load(dev, "test")
    share = Data(root=root, text=("one", "#2 String"), label="gold", held_out=0.25)
    assert len(data.load(share, "val")) == 16
    with pytest.raises(DataError, match=r"data\.held_out=0\.25: .*dev\.csv is there to validate on; leave"):
        data.load(share, "train")


@pytest.mark.parametrize(
    "hidden, message",
    [("id\tone\t#2 String\n0\ta\tb\n", "'gold'"), ("id\tone\t#2 String\tgold\n0\ta\tb\t-1\n", "the label '-1'")],
)
def test_hidden_labels_of_test_say_what_to_set(hidden, message, tmp_path, capsys):
    root = write_pairs(tmp_path / "pairs")
    (root / "test.tsv").write_text(hidden)
    words = [*TINY, f"data.root={root}", "text=one,#2 String", "label=gold", "--run", "run"]
    assert cli.main(["train", "finetune", *words]) == 2
    said = capsys.readouterr().err
    assert "test.tsv, line" in said and message in said and "set data.dev_is_test=true" in said


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    for ending, mark in ((".csv", ","), (".tsv", "\t")):
        (path := tmp_path / f"train{ending}").write_text(f"text{mark}label{mark}text\na{mark}1{mark}b\n")
        with pytest.raises(DataError, match="line 1: the column 'text' is there twice"):
            data.read(path, Data(root=tmp_path))


@pytest.mark.parametrize("ending, mark", [(".csv", ","), (".tsv", "\t")])
def test_a_carriage_return_is_no_matter_of_quotes(ending, mark, tmp_path):
    (path := tmp_path / f"train{ending}").write_bytes(f"label{mark}text\n1{mark}a\rb\n".encode())
    with pytest.raises(DataError) as caught:
        data.read(path, Data(root=tmp_path))
    said = "a carriage return within the line; put a space there, and end lines with a newline"
    assert str(caught.value) == f"{path}, line 2: {said}"


@pytest.mark.parametrize("rows", ['1,"a good\n0,bad\n', '1,"a good\n0,"bad"\n0,worse\n', '1,"so" good\n0,bad\n'])
def test_a_quote_that_is_not_closed_swallows_no_rows(rows, tmp_path):
    (path := tmp_path / "train.csv").write_text(f'label,text\n0,"a\nb"\n{rows}')
    with pytest.raises(DataError, match=r"train\.csv, line 4: cannot be read: .*; a quote in a cell is written twice"):
        data.read(path, Data(root=tmp_path))


@pytest.mark.parametrize("ending, mark", [(".csv", ","), (".tsv", "\t")])
@pytest.mark.parametrize("header", ["", " {0} "])
def test_a_header_without_names_is_told(ending, mark, header, tmp_path):
    (path := tmp_path / f"train{ending}").write_text(f"{header.format(mark)}\ntext{mark}label\na{mark}1\n")
    with pytest.raises(DataError, match=rf"train\{ending}, line 1: empty; the names of the columns belong there"):
        data.read(path, Data(root=tmp_path))


def asked(lines, form, *columns):
    """Answers of an encoder that was not trained; and the tokens that it reads."""
    settings = changed(find("finetune").settings(), {"data.text": ",".join(columns)})
    encoder = Encoder(transformers.BertForSequenceClassification(bert_config()), _tokenizer())
    none = Examples([], ["0", "1"], encoder, 20)
    task = FineTuning(encoder, settings, ["0", "1"], none, none)
    groups = iter([[f"{line}\n".encode() for line in lines]])
    return [answer.lines[0] for answer in answers(find("finetune").recipe(), task, settings, Options(), groups, form)]


@pytest.mark.parametrize(
    "form, lines, message",
    [
        ("csv", ["one,two", "a,"], "two is empty"),
        ("csv", ["two,one", "a, "], "one is empty"),
        ("csv", ["text", '""'], "text is empty"),
        ("text", ["a\t"], "two is empty"),
        ("text", [" "], "text is empty"),
        ("jsonl", ['{"text": ""}'], "text is empty"),
        ("jsonl", ['{"text": null}'], "text must be text, got None"),
        ("jsonl", ['{"text": ["a"]}'], "text must be text, got ['a']"),
        ("jsonl", ['{"one": "", "two": "b"}'], "one is empty"),
        ("jsonl", ['{"text": "\\ud800 a"}'], r"'\ud800' is half of a character"),
    ],
)
def test_an_empty_text_is_named_by_its_column(form, lines, message):
    columns = ("one", "two") if "two" in " ".join(lines) or "\t" in lines[0] else ("text",)
    good = {"csv": ",".join("ab"[: len(columns)]), "text": "\t".join("ab"[: len(columns)])}
    good["jsonl"] = json.dumps(dict(zip(columns, "ab", strict=False)))
    wrong, answered = asked([*lines, good[form]], form, *columns)
    assert wrong.startswith(f"#ERROR line {len(lines)}: {message}")
    assert not answered.startswith("#ERROR")


def test_as_many_texts_as_columns():
    recipe = find("finetune").recipe()
    columns = type("Task", (), {"columns": ("one", "two"), "classes": ["0", "1"]})
    with pytest.raises(DataError, match="1 texts where one, two are 2"):
        recipe.check(columns, recipe.query(("a",)), Options())


def test_blanks_are_as_in_training(tmp_path):
    (path := tmp_path / "train.csv").write_text('text,label\n" a\tb\n c  ",1\n')
    (example,) = data.read(path, Data(root=tmp_path))
    recipe = find("finetune").recipe()
    task = type("Task", (), {"columns": ("text",)})
    assert recipe.read(task, " a\tb\u00a0 c  ", Options()).texts == example.texts == ("a b c",)
    assert recipe.record(task, {"text": " a\tb\n c  "}, Options()).texts == example.texts


def test_pairs_are_trained_on_and_answered(tmp_path, capsys, monkeypatch):
    root = write_pairs(tmp_path / "data")
    words = [*TINY, *QUICK, f"data.root={root}", "data.text=one,#2 String", "data.label=gold"]
    assert cli.main(["train", "finetune", *words, "--run", "run"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    said_to(monkeypatch, "a film\tgood\nonly one\n\tbad\n")
    assert cli.main(["predict", "run"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t")[0] in ("same", "other")
    assert "1 columns where one, #2 String are two" in lines[1] and "one is empty" in lines[2]


def test_numbers_are_learned_and_said(tmp_path, capsys, monkeypatch):
    root, chance = tmp_path / "data", random.Random(3)
    root.mkdir()
    for split, count in (("train", 60), ("dev", 20), ("test", 20)):
        texts = [sentence(number % 2, chance).replace(",", ";") for number in range(count)]
        rows = ["score,text", *(f"{number % 2 + 0.5},{text}" for number, text in enumerate(texts))]
        (root / f"{split}.csv").write_text("\n".join(rows))
    words = [*TINY, "steps=60", "eval_every=30", "tensorboard=false", "lr=0.01", "batch_tokens=256"]
    words += [f"data.root={root}", "data.kind=numbers", "data.label=score"]
    assert cli.main(["train", "finetune", *words, "--run", "run"]) == 0, capsys.readouterr().err
    assert cli.main(["eval", "run"]) == 0
    found = json.loads(Path("run/results.json").read_text())["test"]
    assert found["Pearson"] > 0.8 and found["Spearman"] > 0.7 and found["squared error"] < 0.15
    capsys.readouterr()
    said_to(monkeypatch, "a good film\na bad film\n")
    assert cli.main(["predict", "run"]) == 0
    good, bad = map(float, capsys.readouterr().out.split())
    assert good > 1 > bad
    said_to(monkeypatch, "a good film\n")
    assert cli.main(["predict", "run", "--probabilities"]) == 2
    said = capsys.readouterr()
    assert "data.kind=numbers" in said.err and not said.out
    (root / "test.csv").write_text("score,text\n1,x\nmuch,y\n")
    assert cli.main(["eval", "run", "--changed-data"]) == 2
    assert "test.csv, line 3: a number belongs there" in capsys.readouterr().err


def test_a_target_that_is_no_float32_is_told_with_its_line(tmp_path):
    for said, wrong in (("3.4e38", False), ("-1e39", True), ("1e400", True), ("1_0", True)):
        (path := tmp_path / "train.csv").write_text(f"text,label\na,1\nb,{said}\n")
        if wrong:
            with pytest.raises(DataError, match=rf"line 3: a number belongs there .*, got '{said}'"):
                data.read(path, Data(root=tmp_path, kind="numbers"))
        else:
            assert data.number_of(data.read(path, Data(root=tmp_path, kind="numbers"))[1]) == 3.4e38


@pytest.mark.parametrize("classes", [2, 3, 40])
def test_figures_are_those_of_scikit_learn(classes):
    torch.manual_seed(classes)
    names, wanted = [f"{at:02}" for at in range(classes)], torch.randint(classes, (200,))
    said = torch.where(torch.rand(200) < 0.4, wanted, torch.randint(max(2, classes - 1), (200,)))
    found, (right, given) = figures.of_classes(wanted, said, names), (wanted.numpy(), said.numpy())
    macro = metrics.f1_score(right, given, labels=range(classes), average="macro", zero_division=0)
    assert found == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(right, given),
            "F1": metrics.f1_score(right, given) if classes == 2 else macro,
            "macro F1": macro,
            "Matthews": metrics.matthews_corrcoef(right, given),
        },
        rel=1e-12,
    )


def test_figures_of_one_class_and_of_many_warn_of_nothing():
    ones = torch.ones(30, dtype=torch.long)
    assert figures.of_classes(ones, ones, ["0", "1"]) == {"accuracy": 1, "F1": 1, "macro F1": 0.5, "Matthews": 0}
    assert figures.of_classes(ones, 0 * ones, ["0", "1"]) == {"accuracy": 0, "F1": 0, "macro F1": 0, "Matthews": 0}
    many = torch.arange(30)
    assert figures.of_classes(many, many, [f"{at:02}" for at in range(30)])["Matthews"] == pytest.approx(1)


def test_correlations_by_hand():
    wanted, said = torch.tensor([1.0, 2.0, 2.0, 5.0]), torch.tensor([0.0, 3.0, 1.0, 100.0])
    assert figures.ranks(wanted).tolist() == [0, 1.5, 1.5, 3]
    assert figures.correlation(wanted, 2 * wanted + 7) == pytest.approx(1)
    assert figures.of_numbers(wanted, said)["Spearman"] == pytest.approx(0.9486832980505138)  # scipy's
    assert math.isnan(figures.correlation(wanted, torch.ones(4)))


@pytest.mark.parametrize(
    "change, words, message",
    [
        (lambda t: t.replace("gold", "golden", 1), [], "train.tsv, line 1: no column is called 'gold'; did you mean"),
        (lambda t: t.replace("one", "first", 1), [], "train.tsv, line 1: no column is called 'one'"),
        (lambda t: t.replace("\n3\t", "\n3\tx\t", 1), [], "train.tsv, line 5: 5 cells where the header has 4"),
        (lambda t: t.replace("\n3\t", "\n3\t\t", 1).replace("\t#2", "\tx\t#2", 1), [], "line 2: 4 cells"),
        (lambda t: _cell(t, 4, 3, " "), [], "train.tsv, line 5: the label is empty"),
        (lambda t: _cell(t, 4, 2, " "), [], "train.tsv, line 5: #2 String is empty"),
        (lambda t: t.splitlines()[0], [], "train.tsv has no examples"),
        (lambda t: "", [], "train.tsv is empty"),
        (lambda t: t.replace("other", "same"), [], "'same' is the only label"),
        (lambda t: t, ["data.kind=numbers"], "train.tsv, line 2: a number belongs there"),
        (lambda t: t, ["data.text=one,#2 String,id"], "data.text names one or two columns, got 3"),
        (lambda t: t, ["data.label=one"], "data.label and data.text are both one"),
        (lambda t: t, ["data.text=one,one"], "data.text names the column one twice"),
    ],
)
def test_bad_files_are_named_with_their_line(change, words, message, tmp_path, capsys):
    root = write_pairs(tmp_path / "data")
    file = root / "train.tsv"
    file.write_text(change(file.read_text(encoding="utf-8-sig")))
    given = {"data.text": "one,#2 String", "data.label": "gold"} | dict(word.split("=") for word in words)
    settings = [f"{key}={value}" for key, value in given.items()]
    assert cli.main(["train", "finetune", *TINY, *QUICK, f"data.root={root}", *settings, "--run", "run"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not Path("run").exists(), "something was left behind"


def _cell(text, row, column, value):
    rows = [line.split("\t") for line in text.splitlines()]
    rows[row][column] = value
    return "\n".join("\t".join(cells) for cells in rows)


def test_bad_lines_and_labels_are_named(tmp_path, capsys):
    root = write_lines(tmp_path / "data")
    base = ["train", "finetune", *TINY, *QUICK, f"data.root={root}", "--run", "run"]
    assert cli.main([*base, "data.text=a,b"]) == 2
    assert "two texts, data.text, need a .tsv or .csv" in capsys.readouterr().err
    for word in ("data.text=sentence", "data.label=sentiment"):
        assert cli.main([*base, word]) == 2
        assert f"{word} names a column, and" in capsys.readouterr().err
    dev = root / "x.binary.dev.gz"
    dev.write_bytes(gzip.compress(b"0 fine\n\n2 what\n"))
    assert cli.main(base) == 2
    assert "x.binary.dev.gz, line 3: the label '2' is none of those trained on (0, 1); take" in capsys.readouterr().err
    dev.write_bytes(gzip.compress(b"0 fine\n1\n"))
    assert cli.main(base) == 2
    assert "x.binary.dev.gz, line 2: a label and a text belong there, got '1'" in capsys.readouterr().err
    dev.unlink()
    test = next(root.glob("*test*"))
    kept = test.read_bytes()
    test.write_bytes(gzip.compress(b"0 fine\n3 what\n"))
    assert cli.main(base) == 2
    assert "line 2: the label '3' is none of those trained on (0, 1); take" in capsys.readouterr().err
    test.write_bytes(kept)
    assert cli.main([*base, "dev_is_test=true"]) == 2
    assert "no file of dev, which is to be test by data.dev_is_test," in capsys.readouterr().err
    (root / "x.train").write_text("0 more")
    assert cli.main(base) == 2
    assert "more than one file of train" in capsys.readouterr().err
    assert not Path("run").exists()


def test_long_texts_are_cut_and_it_is_said(tmp_path, capsys):
    root = write_lines(tmp_path / "data")
    words = [*TINY, *QUICK, f"data.root={root}", "longest=8"]
    assert cli.main(["train", "finetune", *words, "--run", "run"]) == 0
    said = capsys.readouterr().out
    assert "examples have more than 8 tokens and are cut, first" in said and "x.binary.train.gz, line" in said
    assert json.loads(Path("run/results.json").read_text())["val"]["cut examples"] > 0
    tokens = Tokens(
        [("good " * 20, "bad"), ("good", "bad")], transformers.AutoTokenizer.from_pretrained("run/model"), 8
    )
    assert tokens.sizes == [8, 5] and tokens.lengths[0] > 8 and tokens.long == [0]


def test_positions_behind_that_of_padding():
    """RoBERTa with 20 positions reads 18 tokens: the first two are not for tokens."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.RobertaConfig(vocab_size=40, max_position_embeddings=20, pad_token_id=1, **sizes)
    model = transformers.RobertaForSequenceClassification(config).eval()
    most = Encoder(model, _tokenizer()).most(128)
    assert most == 18 and model(torch.full((1, most), 7)).logits.shape == (1, 2)
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, most + 1), 7))
    assert Encoder(transformers.BertForSequenceClassification(bert_config()), _tokenizer()).most(128) == 40


def test_a_text_that_says_sep_does_not_mean_it():
    tokenizer = _tokenizer()
    ids = Tokens([("a [SEP] b",)], tokenizer, 40).rows[0]["input_ids"]
    assert ids.count(tokenizer.sep_token_id) == 1


def test_a_folder_of_transformers_goes_in(tmp_path, capsys):
    """Any encoder on the attention interface, here DistilBERT, which has no token types; then folders that cannot."""
    root, folder = write_lines(tmp_path / "data"), tmp_path / "distil"
    config = transformers.DistilBertConfig(
        vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=16, max_position_embeddings=30
    )
    transformers.DistilBertModel(config).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    base = ["train", "finetune", *QUICK, f"data.root={root}", "--run"]
    assert cli.main([*base, "run", f"encoder={folder}"]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert "cut" in said.out, "30 tokens are all that it takes"
    (folder / "model.safetensors").unlink()
    assert cli.main(["eval", "run"]) == 0
    again = transformers.AutoModelForSequenceClassification.from_pretrained("run/model")
    assert type(again).__name__ == "DistilBertForSequenceClassification" and again.config.parsimax["rate"] == 0.2
    capsys.readouterr()
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = {
        str(folder): "has no model.safetensors",
        str(empty): "config.json is no config of a transformers model",
        "nowhere": "is not a folder; give one, or minilm, or tiny",
    }
    for given, message in cases.items():
        assert cli.main([*base, "other", f"encoder={given}"]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1 and not Path("other").exists()
    shutil.copytree("run/model", "broken")
    about = json.loads(Path("broken/config.json").read_text())
    Path("broken/config.json").write_text(json.dumps({**about, "n_layers": 3}))
    assert cli.main([*base, "other", "encoder=broken"]) == 2
    said = capsys.readouterr().err
    assert (
        "the weights in broken do not fit its config.json: they lack" in said
        and "layer.2" in said
        and not Path("other").exists()
    )
    Path("broken/config.json").write_text(json.dumps(about))
    Path("broken/tokenizer.json").rename("tokenizer.json")
    assert cli.main([*base, "other", "encoder=broken"]) == 2
    assert "broken has no vocabulary of a tokenizer" in capsys.readouterr().err and not Path("other").exists()
    Path("tokenizer.json").rename("broken/tokenizer.json")
    Path("broken/model.safetensors").write_bytes(b"nonsense")
    assert cli.main([*base, "other", "encoder=broken"]) == 2
    assert "model.encoder: broken cannot be loaded" in capsys.readouterr().err and not Path("other").exists()


@pytest.mark.parametrize("where", ["encoder", "run"])
def test_code_in_a_folder_does_not_run(where, trained, tmp_path, capsys, monkeypatch):
    """Nor is the standard input asked, where the first line of a user's data would be taken for consent."""
    evil = tmp_path / "evil"
    if where == "run":
        shutil.copytree(trained, evil)
    folder = evil / "start" if where == "run" else evil
    folder.mkdir(exist_ok=True)
    auto = {name: f"code.{name}" for name in ("AutoConfig", "AutoModelForSequenceClassification")}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\na good film\n")))
    root = write_lines(tmp_path / "data")
    train = ["train", "finetune", *QUICK, f"data.root={root}", f"encoder={evil}", "--run", "other"]
    assert cli.main(["predict", str(evil)] if where == "run" else train) == 2
    said = capsys.readouterr()
    assert "has code of its own (auto_map in a config of it), which is not run" in said.err
    assert not (tmp_path / "ran").exists() and "[y/N]" not in said.out and not Path("other").exists()


def test_half_of_an_encoder_is_not_left_out(tmp_path, capsys):
    root, folder = write_lines(tmp_path / "data"), tmp_path / "bert"
    transformers.BertModel(bert_config(layers=2)).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "num_hidden_layers": 1}))
    assert cli.main(["train", "finetune", *QUICK, f"data.root={root}", f"encoder={folder}", "--run", "run"]) == 2
    said = capsys.readouterr().err
    assert "do not fit its config.json: they have encoder.layer.1" in said and not Path("run").exists()


def test_an_encoder_of_no_numbers_is_refused(tmp_path, capsys):
    """The loss was said to be NaN, and the learning rate to be too high."""
    root, folder = write_lines(tmp_path / "data"), tmp_path / "bert"
    model = transformers.BertModel(bert_config())
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias[1] = torch.nan
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    assert cli.main(["train", "finetune", *QUICK, f"data.root={root}", f"encoder={folder}", "--run", "run"]) == 2
    said = capsys.readouterr().err
    assert f"encoder.layer.0.output.dense.bias in {folder} has NaN or infinite weights" in said
    assert not Path("run").exists()


def test_an_encoder_that_fails_on_the_texts_is_named(tmp_path, capsys):
    """Here one that knows one segment alone, and pairs."""
    root, folder = write_pairs(tmp_path / "data"), tmp_path / "bert"
    transformers.BertModel(bert_config(segments=1)).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    words = [f"data.root={root}", "data.text=one,#2 String", "data.label=gold", f"encoder={folder}"]
    capsys.readouterr()
    assert cli.main(["train", "finetune", *QUICK, *words, "--run", "run"]) == 2
    said = capsys.readouterr().err
    assert f"model.encoder: {folder} was loaded, but fails on the first texts (IndexError" in said
    assert said.count("\n") == 1 and not Path("run").exists()


def test_a_saved_tokenizer_knows_the_limit_of_its_encoder(tmp_path):
    root, folder = write_lines(tmp_path / "data"), tmp_path / "bert"
    transformers.BertModel(bert_config()).save_pretrained(folder)
    tokenizer = _tokenizer()
    tokenizer.model_max_length = int(1e30)
    tokenizer.save_pretrained(folder)
    assert cli.main(["train", "finetune", *QUICK, f"data.root={root}", f"encoder={folder}", "--run", "run"]) == 0
    assert transformers.AutoTokenizer.from_pretrained("run/model").model_max_length == 40
    said = transformers.pipeline("text-classification", "run/model")("good " * 90, truncation=True)
    assert said[0]["label"] in "01"


@pytest.mark.parametrize("number", [1.25e-7, 12346780.0, -3.5, 0.0])
def test_numbers_keep_their_digits(number):
    task = SimpleNamespace(classes=[])
    found = known(task, torch.tensor([number]))
    assert found["number"] == pytest.approx(number, rel=1e-6) and float(line(found, Options())) == found["number"]


def test_resumed_as_if_left_alone(trained, tmp_path, capsys):
    """From its middle checkpoint the run ends with the same weights; what was killed leaves no half folder."""
    run = tmp_path / "again"
    shutil.copytree(trained, run)
    checkpoints = run / "checkpoints"
    (checkpoints / "last.ckpt").unlink()
    (checkpoints / "best.ckpt").unlink()
    (checkpoints / "previous.ckpt").rename(checkpoints / "last.ckpt")
    (run / ".model.1.part").mkdir()
    assert torch.load(checkpoints / "last.ckpt", weights_only=True)["global_step"] == 40
    assert cli.main(["train", "--resume", str(run)]) == 0, capsys.readouterr().err
    one, other = weights(trained / "checkpoints" / "last.ckpt"), weights(checkpoints / "last.ckpt")
    assert {*one} == {*other} and all(torch.equal(one[name], other[name]) for name in one)
    assert not (run / ".model.1.part").exists()

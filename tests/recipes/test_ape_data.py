"""Post-editing: files of triplets, folders of BERTs and artificial triplets, and what is refused before training."""

import gzip
import json
import random
import signal
from pathlib import Path

import pytest

import fresh
from parsimax import cli
from parsimax.recipes.ape import mistakes
from parsimax.recipes.ape.bert import config_of, pretrained
from parsimax.recipes.ape.noise import Statistics, worsened, write_noise
from parsimax.recipes.ape.pieces import WordPieces
from parsimax.recipes.ape.recipe import RECIPE
from parsimax.recipes.ape.settings import Data, Settings
from parsimax.recipes.ape.triplets import Triplet, check_test, read
from parsimax.recipes.kit.recipe import DataError
from parsimax.recipes.kit.settings import changed
from parsimax.recipes.text.bert import check_loaded, folder_of
from triplet_files import QUICK, TINY, files, tiny_bert, triplet_files

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_noise_has_the_rates_of_real_data_and_goes_on_where_it_was_stopped(tmp_path, capsys):
    real = [Triplet(*one) for one in mistakes.triplets(400, 10)["train"]]
    known = Statistics.of(real)
    made = [Triplet("", worsened(one.edited, known, random.Random(i)), one.edited) for i, one in enumerate(real)]
    again = Statistics.of(made)
    mean = lambda rates: sum(rates) / len(rates)  # noqa: E731
    assert 0.6 < mean(again.rates) / mean(known.rates) < 1.3
    assert {kind for kind, count in known.kinds.items() if count > 20} <= {*again.kinds}
    texts = [one.edited for one in real]
    write_noise(real, texts, None, tmp_path / "whole", "noise", 1, lambda text: None)
    stopped = tmp_path / "stopped"
    write_noise(real, texts, None, stopped, "noise", 1, lambda text: None)
    with (stopped / "noise.mt").open("r+") as file:
        file.truncate(1000)
    assert write_noise(real, texts, None, stopped, "noise", 1, lambda text: None) > 0
    for part in ("src", "mt", "pe"):
        assert (stopped / f"noise.{part}").read_bytes() == (tmp_path / "whole" / f"noise.{part}").read_bytes()
    with pytest.raises(DataError, match="another seed"):
        write_noise(real, texts, None, stopped, "noise", 2, lambda text: None)
    with pytest.raises(DataError, match="no mistakes"):
        Statistics.of([Triplet("a", "b", "b")])


def test_noise_from_the_command_line(tmp_path, capsys):
    root = triplet_files(tmp_path / "data")
    words = ["ape", "noise", "--real", str(root), "--target", str(root / "test.pe"), "--out", str(root)]
    assert cli.main([*words, "--source", str(root / "test.src")]) == 0
    assert "8 triplets written" in capsys.readouterr().out
    assert len(read(Data(root=root, artificial="artificial", oversample=2), "train")) == 88
    assert cli.main([*words, "--source", str(root / "train.src"), "--name", "other"]) == 2
    assert "must be parallel" in capsys.readouterr().err
    assert cli.main([*words, "--name", ""]) == 2
    assert "--name is the beginning of a file's name, got ''" in capsys.readouterr().err
    packed = tmp_path / "packed"
    packed.mkdir()
    for there in ("train.mt.gz", "train.tsv"):
        (packed / there).write_bytes(b"")
        assert cli.main([*words[:-1], str(packed), "--name", "train"]) == 2
        assert f"{there} exists, and is not overwritten or hidden" in capsys.readouterr().err
        (packed / there).unlink()
    assert cli.main([*words[:3], "nowhere", *words[4:]]) == 2
    assert "--real: nowhere is not a folder" in capsys.readouterr().err
    (root / "artificial.noise.json").write_text("{")
    assert cli.main([*words, "--source", str(root / "test.src")]) == 2
    assert "artificial.noise.json is damaged, it is not JSON" in capsys.readouterr().err


def test_reading_triplets(tmp_path):
    root = triplet_files(tmp_path / "data")
    whole = read(Data(root=root), "train")
    assert len(whole) == 40
    for part in ("src", "mt", "pe"):
        path = root / f"train.{part}"
        (root / f"train.{part}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert read(Data(root=root), "train") == whole
    table = tmp_path / "table"
    table.mkdir()
    rows = ["score\tpe\tmt\tsrc", *(f"1\t{one.edited}\t{one.machine}\t{one.source}" for one in whole)]
    (table / "train.tsv").write_text("\n".join(rows))
    assert read(Data(root=table), "train") == whole
    parts = {split: read(Data(root=table, held_out=5), split) for split in ("train", "val", "test")}
    assert [len(part) for part in parts.values()] == [30, 5, 5]
    assert sorted(one for part in parts.values() for one in part) == sorted(whole)
    more = files(root, extra_src=["a"], extra_mt=["b"], extra_pe=["c"])
    assert len(read(Data(root=more, artificial="extra", oversample=3), "train")) == 121


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"train_src": ["a", "b"], "train_mt": ["a"], "train_pe": ["a", "b"]}, "parallel"),
        ({"train_src": ["a", "b"], "train_mt": ["a", "b"], "train_pe": ["a", ""]}, "train.pe, line 2: the post-edit"),
        ({"train_src": ["a", ""], "train_mt": ["a", ""], "train_pe": ["a", "b"]}, "train.src, line 2: source and"),
        ({"train_src": ["a"], "train_mt": ["a"]}, "no train.pe"),
        ({"train_tsv": ["src\tmt", "a\tb"]}, "line 1: no column pe"),
        ({"train_tsv": ["src\tmt\tpe", "a\tb"]}, "line 2: 2 columns"),
        ({"train_tsv": ["src\tmt\tpe\tmt", "a\tb\tc\td"]}, "train.tsv, line 1: has the column 'mt' twice"),
        ({"train_tsv": ["src\tmt\tpe", "a\tb\tc", "a\tb\rb\tc"]}, "train.tsv, line 3: a carriage return"),
    ],
)
def test_bad_triplets_are_refused_by_file_and_line(tmp_path, capsys, columns, said):
    files(tmp_path / "data", **columns)
    assert cli.main(["train", "ape", f"data.root={tmp_path / 'data'}", *TINY, *QUICK]) == 2
    assert said in capsys.readouterr().err and not any(Path("runs").rglob("*.*"))


def test_machine_output_that_is_empty_everywhere(tmp_path):
    """Nothing was translated: legitimate, where an empty file is not."""
    root = files(tmp_path / "data", train_src=["a", "b"], train_mt=["", ""], train_pe=["c", "d"])
    assert [one.machine for one in read(Data(root=root), "train")] == ["", ""]
    (root / "train.mt").write_text("")
    with pytest.raises(DataError, match=r"train\.mt is empty"):
        read(Data(root=root), "train")


def test_wrong_bytes_and_wrong_folders(tmp_path, capsys):
    root = triplet_files(tmp_path / "data")
    (root / "train.mt").write_bytes(b"\xff\xfe\n" * 40)
    assert cli.main(["train", "ape", f"data.root={root}", *TINY, *QUICK]) == 2
    assert "train.mt, line 1: not UTF-8" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    for bert, said in ((empty, "no config"), (tmp_path / "nowhere", "is not a folder")):
        assert cli.main(["train", "ape", f"model.bert={bert}", *QUICK]) == 2
        assert said in capsys.readouterr().err
    (empty / "config.json").write_text('{"model_type": "gpt2"}')
    assert cli.main(["train", "ape", f"model.bert={empty}", *QUICK]) == 2
    assert "of type 'gpt2'" in capsys.readouterr().err
    (empty / "config.json").write_text('{"model_type": "bert"}')
    assert cli.main(["train", "ape", f"model.bert={empty}", *QUICK]) == 2
    assert "no model.safetensors" in capsys.readouterr().err


def test_a_folder_of_transformers_goes_in(tmp_path, capsys):
    """Saved by transformers with a vocabulary file alone, trained on, and opened again without the folder."""
    folder = tmp_path / "bert"
    bert = tiny_bert(size=60)
    bert.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "and", *(f"w{number}" for number in range(54))]
    (folder / "vocab.txt").write_text("\n".join(words))
    assert (
        config_of(folder_of(str(folder), "model.bert"))["hidden_size"] == 16
        and pretrained(folder).config.hidden_size == 16
    )
    root = triplet_files(tmp_path / "data", 12)
    for part in ("src", "mt", "pe"):  # more than the BERT has positions: not read, and in nobody's way
        with (root / f"dev.{part}").open("a") as file:
            file.write("and " * 50 + "\n")
    words = [
        f"model.bert={folder}",
        f"data.root={root}",
        "search.longest=6",
        "judged=2",
        "beam=2",
        "longest_source=999",
    ]
    words += ["data.longest=5", "model.output.mapping=entmax"]
    assert cli.main(["train", "ape", "--run", "run", *words, *QUICK]) == 0
    codec = WordPieces.load(Path("run"))
    long = sum(len(codec.target(one.edited)) > 5 for one in read(Data(root=root), "train"))
    assert 0 < long < 12 and f"triplets: 12 of train, {long} too long; 9 of val, 1 too long" in capsys.readouterr().out
    counts = {"train": {"triplets": 12, "too long": long}, "val": {"triplets": 9, "too long": 1}}
    assert json.loads(Path("run/triplets.json").read_text()) == counts
    (folder / "model.safetensors").unlink()
    assert cli.main(["eval", "run"]) == 0
    assert "TER doing nothing" in capsys.readouterr().out
    assert cli.main(["report", "run"]) == 0


def test_the_test_split_is_checked_before_training(tmp_path, capsys):
    root = triplet_files(tmp_path / "data")
    for content, said in ((b"one\n", "must be parallel"), (b"\xff\n" * 8, "test.mt, line 1: not UTF-8")):
        (root / "test.mt").write_bytes(content)
        assert cli.main(["train", "ape", f"data.root={root}", *TINY, *QUICK]) == 2
        assert said in capsys.readouterr().err and not any(Path("runs").rglob("*.*"))
    (root / "test.pe").unlink()
    with pytest.raises(DataError, match="not UTF-8"):
        check_test(Data(root=root))
    (root / "test.mt").write_text("\n".join("12345678"))
    check_test(Data(root=root))  # hidden post-edits
    (root / "test.mt").unlink()
    with pytest.raises(DataError, match=r"no test\.mt"):
        check_test(Data(root=root))
    (root / "test.mt").write_text("a")
    (root / "test.src").unlink()
    with pytest.raises(DataError, match=r"no test\.src"):
        check_test(Data(root=root))
    (root / "test.mt").unlink()
    check_test(Data(root=root))


def bert_folder(folder, **config):
    tiny_bert(size=60).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "and", *(f"w{number}" for number in range(54))]
    (folder / "vocab.txt").write_text("\n".join(words))
    change(folder, **config)
    return folder


def change(folder, **config):
    path = folder / "config.json"
    known = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({key: value for key, value in known.items() if value is not None}))


def begun(folder):
    """What training does with a folder before its first step."""
    settings = changed(Settings(), {"model.bert": str(folder)})
    return RECIPE._weights(settings, RECIPE.learn(settings, []), [])


def cut_off(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])


def more_words(folder):
    with (folder / "vocab.txt").open("a") as file:
        file.write("\nmore")


def distilled(folder):
    config = transformers.DistilBertConfig(
        vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=20
    )
    before = (folder / "config.json").read_text()
    transformers.DistilBertModel(config).save_pretrained(folder)
    (folder / "config.json").write_text(before)


BAD = {
    "cut off": (cut_off, "cannot be loaded"),
    "more words": (more_words, "goes up to number 60, and its BERT has embeddings for vocab_size=60"),
    "fewer embeddings": (lambda folder: change(folder, vocab_size=61), r"word_embeddings.weight of \(60, 16\), where"),
    "activation": (lambda folder: change(folder, hidden_act="glue"), "hidden_act='glue' is no activation"),
    "distilled": (distilled, r"lack embeddings\.token_type_embeddings.* another model"),
    "more layers": (lambda folder: change(folder, num_hidden_layers=3), r"lack encoder\.layer\.2\..* 13 more"),
    "odd heads": (lambda folder: change(folder, num_attention_heads=3), "cannot be loaded"),
    "kinds of texts": (lambda folder: change(folder, type_vocab_size=1), "type_vocab_size=2"),
    "tokenizer": (
        lambda folder: (folder / "tokenizer_config.json").write_text("{"),
        r"tokenizer_config\.json is no config of a tokenizer",
    ),
    "list": (lambda folder: (folder / "tokenizer_config.json").write_text("[]"), r"tokenizer_config\.json is no"),
    "special": (lambda folder: (folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\nb"), r"has no \[PAD\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folders_are_refused_before_training(tmp_path, name):
    spoil, said = BAD[name]
    folder = bert_folder(tmp_path / "bert")
    spoil(folder)
    with pytest.raises(DataError, match=said) as error:
        begun(folder)
    assert str(folder) in str(error.value)


def test_a_config_may_leave_out_what_transformers_knows(tmp_path):
    """And weights may have more than the encoder, such as those of gaps to fill."""
    folder = bert_folder(tmp_path / "bert", type_vocab_size=None, hidden_act=None)
    config = transformers.BertConfig.from_pretrained(folder)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    change(folder, type_vocab_size=None, hidden_act=None)
    assert "type_vocab_size" not in json.loads((folder / "config.json").read_text())
    assert begun(folder).config.type_vocab_size == 2


def test_weights_that_may_begin_at_random(tmp_path):
    shape = [("classifier.bias", (2,), (3,))]
    told = {"missing_keys": {"classifier.weight", "bert.pooler.dense.bias"}, "mismatched_keys": shape}
    told["unexpected_keys"] = {"cls.bias", "projection.0.weight"}  # on top of another model
    check_loaded(told, tmp_path, "model.encoder", allowed=("classifier", "pooler"))
    with pytest.raises(DataError, match=r"\.encoder: .* have classifier\.bias of \(2,\), .* lack classifier\.weight"):
        check_loaded(told, tmp_path, "model.encoder", allowed=("pooler",))
    told["unexpected_keys"].add("encoder.layer.1.output.dense.bias")
    with pytest.raises(DataError, match=r"have encoder\.layer\.1\.output\.dense\.bias, of which it knows nothing"):
        check_loaded(told, tmp_path, "model.encoder", allowed=("classifier", "pooler"))


KILLED = """
import os, pathlib, signal, sys
from parsimax import cli
from parsimax.recipes.ape import noise

noise.EVERY, left, plain = 50, int(sys.argv[1]), pathlib.Path.open


def opened(path, mode="r", **words):
    file = plain(path, mode, **words)
    if mode != "a":
        return file
    whole = file.write

    def write(text):
        global left
        left -= 1
        if left < 0:  # in the middle of a write
            whole(text[: len(text) // 2])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(text)

    file.write = write
    return file


pathlib.Path.open = opened
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize("writes", [0, 4, 8])  # of the first file, of the second and of the third
def test_noise_killed_and_run_again_gives_the_same(tmp_path, writes):
    root = triplet_files(tmp_path / "data", 200)
    words = [
        "ape",
        "noise",
        "--real",
        str(root),
        "--target",
        str(root / "train.pe"),
        "--source",
        str(root / "train.src"),
    ]
    assert cli.main([*words, "--out", "whole"]) == 0
    assert fresh.run("-c", KILLED, writes, *words, "--out", "killed").returncode == -signal.SIGKILL
    assert not any(Path(f"killed/artificial.{part}").exists() for part in ("src", "mt", "pe")), "training takes these"
    sizes = [len(Path(f"killed/artificial.{part}.part").read_bytes()) for part in ("src", "mt", "pe")[: writes % 3 + 1]]
    assert sizes[0] > 0 and sizes[-1] < len(Path("whole/artificial.src").read_bytes())
    assert cli.main([*words, "--out", "killed"]) == 0
    assert not [*Path("killed").glob("*.part")]
    for part in ("src", "mt", "pe"):
        name = f"artificial.{part}"
        assert Path("killed", name).read_bytes() == Path("whole", name).read_bytes()

"""The Triton kernels without a GPU: in the interpreter. ``make test-triton`` runs a longer sweep."""

import csv
import importlib.util
import itertools
import json
import math
import os
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import fresh
import interpreted
import parsimax
from parsimax import cli
from parsimax.bench import gpu, selftest, tune
from parsimax.kernels import triton
from parsimax.kernels.triton import launch
from parsimax.kernels.triton import table as launch_table

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(interpreted.ON, reason="starts the interpreter itself"),
]


@pytest.mark.parametrize("what", ["rows", "losses", "attention"])
def test_in_the_interpreter(what):
    interpreted.run(Path(__file__).with_name(f"test_triton_{what}.py"))


def command(*words):
    return fresh.run("-m", "parsimax_command", *words)


def test_the_selftest_runs_in_the_interpreter_and_writes_its_report(tmp_path):
    ran = command("selftest", "--device", "interpreter", "--report", str(tmp_path / "report.json"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["triton"] != "not used"
    names = [result["name"] for result in report["results"]]
    for part in (
        "entmax15",
        "over plateaus",
        "topk",
        "rsoftmax",
        "budget",
        "entmax_loss, smoothed",
        "entmax_loss, class weights",
        "soft targets",
        "linear",
        "support",
        "causal",
        "boolean mask",
        "groups",
        "dropout",
        "a cache",
    ):
        assert any(part in name for name in names), part
    assert all(result["error"] <= 1 and result["repeats"] for result in report["results"])
    # In the interpreter Triton takes the place of the CPU's kernels, whose declaration leaves this to the formula.
    others = {result["name"] for result in report["results"] if result["back_end"] != "triton"}
    assert others == {"linear_entmax_loss, soft targets, 33"}
    assert {name.partition(" over")[0] for name in names if "over plateaus" in name} > {*selftest.MAPPINGS}


def test_the_selftest_knows_the_contract():
    """Sums and zeros, where every number is within the tolerance of the truth."""
    true = torch.tensor([[0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    check = selftest.Check("", lambda x: x, (true,), torch.float32, 1e-2, sums=True, zeros=True)
    assert selftest.contract(check, true, true) == ""
    assert selftest.contract(check, true + 1e-4, true).startswith("a sum is off by 4.0e-04")
    moved = torch.tensor([[-3e-7, 0.0, 1e-7, 2e-7]], dtype=torch.float64)
    assert selftest.contract(check, true + moved, true) == "2 entries of a row are not exactly 0"
    assert selftest.contract(check, true + moved * torch.tensor([1, 1, -1, 1]), true).startswith("a probability is")


def test_the_bench_of_a_gpu_runs_in_the_interpreter(tmp_path):
    words = ("bench", "--device", "interpreter", "--seconds", "0.01", "--csv", str(tmp_path / "speed.csv"))
    cases = ("entmax15, 4x70, float32", "sparsegen, 4x70, float32", "linear_entmax_loss, 4x70, float32")
    cases += ("causal, 8x20x16, float32", "causal, 8x20x16, bfloat16")
    ran = command(*words, *(word for case in cases for word in ("--case", case)))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with (tmp_path / "speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["against"] for row in rows} == {"torch.softmax", "F.cross_entropy", "SDPA", "SDPA, flash"}
    assert {row["case"].partition(",")[0] for row in rows} == {
        "entmax15",
        "sparsegen",
        "linear_entmax_loss",
        "entmax_attention",
    }
    assert min(float(row["ours_ms"]) for row in rows) > 0


def test_a_case_that_fails_takes_no_other_with_it(tmp_path, monkeypatch, capsys):
    """A GPU with too little memory, or a kernel of others that does not take the case."""

    def fails(x):
        raise RuntimeError("out of memory\nand more")

    x = (torch.zeros(2, 3),)
    sides = {"torch.softmax": lambda x: x.softmax(-1), "flash": fails}
    some = [gpu.Case("first", fails, sides, x), gpu.Case("second", parsimax.softmax, sides, x)]
    monkeypatch.setattr(gpu, "cases", lambda tiny: some)
    out = tmp_path / "new" / "speed.csv"
    assert gpu.run(Namespace(device="cpu", case=None, seconds=0, csv=str(out))) == 1
    said = capsys.readouterr().out
    assert "not timed: RuntimeError: out of memory\n" in said and "without flash: RuntimeError: out of memory\n" in said
    with out.open() as file:
        assert [(row["case"], row["against"]) for row in csv.DictReader(file)] == [("second", "torch.softmax")]


def test_what_fails_behind_a_call_is_a_line_of_the_report():
    """A kernel that reads where it may not: the error comes when its answer is asked for."""

    class Late(torch.Tensor):
        def cpu(self):
            raise RuntimeError("illegal memory access")

    check = selftest.Check("late", lambda x: x.detach().as_subclass(Late), (torch.zeros(2, 3),), torch.float32)
    found = selftest.result_of(check, torch.device("cpu"))
    assert found.problem == "RuntimeError: illegal memory access" and not found.passed


def test_a_report_that_could_not_be_written_is_refused_before_the_work(tmp_path):
    for run, option in ((selftest.run, "report"), (gpu.run, "csv")):
        with pytest.raises(ValueError, match="is a folder; give another file"):
            run(Namespace(device="cpu", tiny=True, case=None, seconds=0, **{option: str(tmp_path)}))


@pytest.mark.parametrize("option", ["--list", "--threads=4", "--markdown=page.md"])
def test_what_the_bench_of_a_gpu_does_not_know_is_refused(option):
    options = cli.parser("bench").parse_args(["bench", "--device", "cuda", option])
    with pytest.raises(ValueError, match="--threads are of the CPU's table, not of --device cuda"):
        options.run(options)


WRONG = """
import sys, torch, parsimax
from parsimax import cli
from parsimax.bench import selftest
def twice(x):
    return parsimax.softmax(x) * (1 if x.dtype == torch.float64 else 2)
selftest.checks = lambda tiny: [selftest.Check("twice", twice, (torch.zeros(2, 3),), torch.float32)]
sys.exit(cli.main(["selftest", "--device", "cpu"]))
"""


def test_a_wrong_answer_fails_the_selftest():
    ran = fresh.run("-c", WRONG)
    assert ran.returncode == 1 and "WRONG" in ran.stdout and "0 of 1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_what_was_tuned_is_what_is_launched(tmp_path):
    """In the interpreter, where only the tiles of attention are taken from the table."""
    out = tmp_path / "table.json"
    ran = command("tune", "--device", "interpreter", "--out", str(out))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = json.loads(out.read_text())
    assert {*table} == {"scores", "tile", "cluster", "attention"}
    assert {*table["scores"]} == {*table["tile"]} == {*table["cluster"]} == {*launch.SCORES}
    for kind in launch.SCORES:  # both ways to take a row were tried at a length where choices differ
        said = ran.stdout.partition(f"{kind}, rows of")[2]
        assert "held" in said and "by tiles of" in said and "held by 2 programs" in said, kind
    table["cluster"]["light"] = 4
    table["scores"]["light"], table["attention"]["64, 2, False"] = 2, [128, 32, 8, 3]
    out.write_text(json.dumps(table))
    code = "from parsimax import info\nfrom parsimax.kernels.triton import launch\n"
    code += "print(launch.longest('light'), launch.attention(64, 2, False), info.text())"
    env = {**os.environ, "PARSIMAX_TRITON_TABLE": str(out)}
    ran = fresh.run("-c", code, env=env)
    assert ran.stdout.startswith("8192 Attention(BM=128, BN=32, warps=8, stages=3)"), ran.stdout + ran.stderr
    assert f"measured, {out}" in ran.stdout
    out.write_text("[")
    ran = fresh.run("-c", code, env=env)
    assert "is no launch table" in ran.stderr and "parsimax tune" in ran.stderr


def test_what_is_built_in_is_among_what_is_tried(monkeypatch):
    """Else the fastest of those tried might be slower than what tuning takes the place of."""
    monkeypatch.setattr(launch, "MEASURED", {})
    for size, dim, heavy in itertools.product((2, 4), (32, 64, 128, triton.WIDEST), (False, True)):
        table = launch.attention(dim, size, heavy)
        assert table[:2] in tune.BLOCKS and table[2:] in tune.LAUNCHES, dim
    assert {*launch.SCORES} == {*tune.SCORES} == {*tune.CALLS} == {*launch_table.KINDS}
    assert {launch.SCORES[kind] in tune.SCORES[kind] for kind in tune.SCORES} == {True}
    assert {*launch.TILE.values()} <= {*tune.TILES}
    assert {*launch.CLUSTER.values()} == {1} and {*tune.CLUSTERS} == {1, 2, 4, launch.MOST}


def test_a_row_is_held_by_as_many_programs_as_it_needs(monkeypatch):
    monkeypatch.setattr(launch.interpreter, "ON", False)
    monkeypatch.setitem(launch.SCORES, "light", 16)
    assert launch.rows(65536, "light").cluster == 1 and not launch.rows(65536, "light").one  # nobody has measured it
    monkeypatch.setitem(launch.CLUSTER, "light", 8)
    for n, cluster in ((16384, 1), (16385, 4), (32768, 4), (32769, 8), (65536, 8)):
        table = launch.rows(n, "light", lanes=32)
        assert (table.one, table.cluster, table.B) == (True, cluster, launch.power(n)), n
        assert 16 * table.cluster * table.warps * 32 >= table.B  # scores that threads hold
    assert not launch.rows(65537, "light").one and launch.longest("light") == 65536
    assert not launch.rows(65536, "light", cluster=1).one  # what numbers its finds
    for kind, scores in launch.SCORES.items():
        assert launch.longest(kind, 1) == scores * 1024 and launch.longest(kind, 8) == min(65536, scores * 8192), kind


@pytest.mark.parametrize("way", ["forward", "both", "backward"])
def test_tuning_sees_a_wrong_answer_and_a_wrong_gradient(way, capsys):
    """A choice that is wrong in what it launches is left out: forward, backward or both."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, by):
            ctx.by = by
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g + ctx.by, None

    def call(by, gradient_by):
        return lambda inputs: Wrong.apply(parsimax.entmax15(inputs[0]), gradient_by) + by

    inputs = [torch.randn(3, 40).requires_grad_()]
    true = tune.truth(call(0.0, 0.0), inputs, way)
    assert tune.tried("right", call(0.0, 0.0), inputs, way, true) < math.inf
    assert tune.tried("wrong", call(0.01, 0.0), inputs, way, true) == math.inf
    slope = 0.1 * torch.nn.functional.one_hot(inputs[0].argmax(1), 40)  # a constant would have no gradient
    assert (tune.tried("wrong gradient", call(0.0, slope), inputs, way, true) == math.inf) == (way != "forward")
    assert capsys.readouterr().out.count("wrong by") == 1 + (way != "forward")


def test_tuning_tells_choices_apart(monkeypatch):
    """Of choices that launch the same one is timed; what is chosen has the least times at all limits together."""
    held = {4: 1.0, 8: 1.1, 16: 9.0, 32: 9.0}  # by the scores a thread holds; by tiles it takes 2

    def tried(name, call, inputs, way, true):
        timed.append((inputs[0].shape[-1], launch.rows(inputs[0].shape[-1], "light")))
        n, table = timed[-1]
        return held[n // 1024] if table.one else 2.0

    timed = []
    monkeypatch.setattr(tune, "tried", tried)
    monkeypatch.setattr(tune, "truth", lambda call, inputs, way: None)
    monkeypatch.setattr(tune, "NUMBERS", 1)
    monkeypatch.setattr(tune, "FEW", 1)
    monkeypatch.setitem(launch.SCORES, "light", 16)
    lengths = [1024 * choice for choice in tune.SCORES["light"]]
    found = tune.fastest_rows("light", launch.SCORES, tune.SCORES["light"], lengths, torch.device("cpu"), False)
    assert found == launch.SCORES["light"] == 8
    assert len(timed) == len(set(timed)) < len(lengths) * len(tune.SCORES["light"])
    assert {n for n, _ in timed} == {*lengths}


def test_blocks_are_searched_in_two_stages():
    """The least of all where time is a product of blocks and launches; a quarter of the choices is tried."""

    def time_of(choice):
        tried.append(choice)
        m, n, warps, stages = choice
        return math.inf if m == 128 and n == 64 else (1 + abs(m - 64) / 64) * (1 + abs(n - 16) / 16) * warps / stages

    tried = []
    assert tune.fastest_blocks((16, 16, 8, 2), time_of, tiny=False) == (64, 16, 4, 3)
    assert len(tried) == len({*tried}) == len(tune.BLOCKS) + tune.BEST * (len(tune.LAUNCHES) - 1)
    assert tune.fastest_blocks((16, 16, 8, 2), lambda choice: math.inf, tiny=False) is None


def test_tuning_that_was_stopped_goes_on(tmp_path, monkeypatch, capsys):
    """What was found before is not measured again; a file that is no table is refused, and nothing is overwritten."""

    def fastest_rows(kind, table, *rest):
        if kind == stop_at:
            raise KeyboardInterrupt
        measured.append(kind)
        return 2 if table is launch.CLUSTER else 16

    out = tmp_path / "table.json"
    for name in ("TILE", "SCORES", "CLUSTER"):
        monkeypatch.setattr(launch, name, dict(getattr(launch, name)))
    monkeypatch.setattr(tune, "prepared", lambda device: torch.device("cpu"))
    monkeypatch.setattr(tune, "fastest_rows", fastest_rows)
    monkeypatch.setattr(tune, "attention_table", lambda *rest: None)
    measured, stop_at = [], "ordered"
    with pytest.raises(KeyboardInterrupt):
        tune.run(Namespace(device="interpreter", out=str(out)))
    assert not out.exists() and measured == ["light"] * 3 + ["heavy"] * 3
    measured, stop_at = [], None
    assert tune.run(Namespace(device="interpreter", out=str(out))) == 0
    assert measured == ["ordered"] * 3 + ["heaviest"] * 3 + ["backward"] * 3
    assert "goes on with" in capsys.readouterr().out
    assert launch_table.problem(json.loads(out.read_text())) is None
    assert [file.name for file in tmp_path.iterdir()] == ["table.json"]
    (tmp_path / "table.json.interpreter.part").write_text("[1]")
    with pytest.raises(ValueError, match=r"is no launch table.*remove it to begin anew"):
        tune.run(Namespace(device="interpreter", out=str(out)))


def test_tuning_a_cpu_is_refused():
    with pytest.raises(ValueError, match="run on a GPU, not on cpu; give --device cuda, or interpreter"):
        tune.run(Namespace(device="cpu", out=None))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "it holds [1], not an object of objects"),
        ('{"tile": 3}', "not an object of objects called scores, tile, cluster, attention"),
        ('{"tiles": {}}', "it has 'tiles'; there are scores, tile, cluster, attention"),
        ('{"tile": {"light": "x"}}', "tile, 'light' is 'x', not a power of 2 from 16 to 1048576"),
        ('{"scores": {"light": 3}}', "scores, 'light' is 3, not a power of 2 from 1 to 1024"),
        ('{"scores": {"light": 2048}}', "scores, 'light' is 2048, not a power of 2 from 1 to 1024"),
        ('{"scores": {"fast": 4}}', "scores has 'fast'; there are light, heavy, ordered"),
        ('{"attention": {"64": [16, 16, 4, 1]}}', "attention has '64'; a key is"),
        ('{"attention": {"64, 2, False": [16, 16]}}', "not the four numbers BM, BN, warps, stages"),
        ('{"attention": {"64, 2, False": [16, 8, 4, 1]}}', "has BN = 8, not a power of 2 from 16 to 1024"),
        ('{"attention": {"64, 2, False": [16, 16, 64, 1]}}', "has warps = 64, not a power of 2 from 1 to 32"),
        ('{"attention": {"64, 2, False": [16, 16, 4, 0]}}', "has stages = 0, not a number from 1 to 8"),
        ("[", "Expecting value"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text, said, tmp_path, monkeypatch):
    file = tmp_path / "table.json"
    file.write_text(text)
    monkeypatch.setenv(launch_table.VARIABLE, str(file))
    with pytest.raises(ValueError) as raised:
        launch_table.read()
    assert str(raised.value).startswith(f"{file} is no launch table: ") and said in str(raised.value)
    assert "remove it, then `parsimax tune` writes a new one" in launch_table.words()
    file.write_text('{"scores": {"light": 8}, "attention": {"64, 2, False": [128, 32, 8, 3]}}')
    assert launch_table.read()["scores"] == {"light": 8} and launch_table.words() == f"measured, {file}"


def test_tuning_needs_triton(monkeypatch):
    monkeypatch.setattr(triton, "PROBLEM", "Triton is not installed")
    with pytest.raises(RuntimeError, match="tune: Triton is not installed"):
        tune.run(Namespace(device="cpu", out=None))


def test_a_device_that_is_not_there_is_said_so():
    ran = command("selftest", "--device", "cuda")
    assert ran.returncode != 0 and "cuda" in (ran.stderr + ran.stdout).lower()

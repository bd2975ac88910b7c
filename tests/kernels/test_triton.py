"""The Triton kernels without a GPU: in the interpreter. ``make test-triton`` runs a longer sweep."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import interpreted
from parsimax import cli
from parsimax.bench import tune
from parsimax.kernels import triton
from parsimax.kernels.triton import launch

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(interpreted.ON, reason="starts the interpreter itself"),
]


@pytest.mark.parametrize("what", ["rows", "losses", "attention"])
def test_in_the_interpreter(what):
    interpreted.run(Path(__file__).with_name(f"test_triton_{what}.py"))


def command(*words):
    return subprocess.run([sys.executable, "-m", "parsimax_command", *words], capture_output=True, text=True)


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
        "linear",
        "causal",
    ):
        assert any(part in name for name in names), part
    assert all(result["error"] <= 1 and result["repeats"] for result in report["results"])


def test_the_bench_of_a_gpu_runs_in_the_interpreter(tmp_path):
    words = ("bench", "--device", "interpreter", "--seconds", "0.01", "--csv", str(tmp_path / "speed.csv"))
    ran = command(*words, "--case", "entmax15, 4x70, float32", "--case", "entmax_attention, causal, 8x20x16, float32")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with (tmp_path / "speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["against"] for row in rows} == {"torch.softmax", "SDPA"} and float(rows[0]["ours_ms"]) > 0


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
    ran = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True)
    assert ran.returncode == 1 and "WRONG" in ran.stdout and "0 of 1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_what_was_tuned_is_what_is_launched(tmp_path):
    """In the interpreter, where only the tiles of attention are taken from the table."""
    out = tmp_path / "table.json"
    ran = command("tune", "--device", "interpreter", "--out", str(out))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = json.loads(out.read_text())
    assert {*table} == {"scores", "tile", "attention"} and {*table["scores"]} == {"light", "heavy"}
    table["scores"]["light"], table["attention"]["64, 2, False"] = 2, [128, 32, 8, 3]
    out.write_text(json.dumps(table))
    code = "from parsimax import info\nfrom parsimax.kernels.triton import launch\n"
    code += "print(launch.longest('light'), launch.attention(64, 2, False), info.text())"
    env = {**os.environ, "PARSIMAX_TRITON_TABLE": str(out)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert ran.stdout.startswith("2048 Attention(BM=128, BN=32, warps=8, stages=3)"), ran.stdout + ran.stderr
    assert f"measured, {out}" in ran.stdout
    out.write_text("[")
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "is no launch table" in ran.stderr and "parsimax tune" in ran.stderr


def test_what_is_built_in_is_among_what_is_tried(monkeypatch):
    """Else the fastest of those tried might be slower than what tuning takes the place of."""
    monkeypatch.setattr(launch, "MEASURED", {})
    for size, widest in triton.WIDEST.items():
        for dim in (32, 64, 128, 256):
            if dim <= widest:
                assert {tuple(launch.attention(dim, size, heavy)) for heavy in (False, True)} <= {*tune.BLOCKS}, dim
    assert {launch.SCORES[kind] in tune.SCORES[kind] for kind in tune.SCORES} == {True}
    assert {*launch.TILE.values()} <= {*tune.TILES}


def test_tuning_needs_triton(monkeypatch):
    monkeypatch.setattr(triton, "PROBLEM", "Triton is not installed")
    with pytest.raises(RuntimeError, match="tune: Triton is not installed"):
        tune.run(Namespace(device="cpu", out=None))


def test_a_device_that_is_not_there_is_said_so():
    ran = command("selftest", "--device", "cuda")
    assert ran.returncode != 0 and "cuda" in (ran.stderr + ran.stdout).lower()

"""The command line: quick help, the cases of the speed table, and what runs where."""

import csv
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import fresh
import parsimax
from parsimax import cli
from parsimax.bench import cases, check, inputs, measure, report, sides
from parsimax.bench.sides import OURS, SIDES, STRUCTURED, Side

COMMAND = "import sys; from parsimax_command import main; "  # as the installed command does
TINY = "sparsemax/2x10/forward/one-thread"


@pytest.fixture
def one_thread():
    """The command sets the number of threads for its process, which here is that of the tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_is_checked_yet(monkeypatch):
    monkeypatch.setattr(measure, "CHECKED", {})


def bench(*arguments):
    return cli.main(["bench", "--seconds", "0.2", "--threads", "1", *arguments])


def test_help_does_not_wait_for_torch():
    code = COMMAND + "\ntry: main(['--help'])\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
    took = []
    for _ in range(3):
        start = time.perf_counter()
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        took.append(time.perf_counter() - start)
        assert "bench" in run.stdout and run.stdout.endswith("0 False\n")
    assert min(took) < 0.5


def test_the_public_names_come_with_their_first_use():
    code = COMMAND + (
        "import parsimax; early = 'torch' in sys.modules; "
        "print(early, hasattr(parsimax, 'nothing'), parsimax.mappings.__name__, parsimax.attention.__name__, "
        "'entmax' in vars(parsimax), len(parsimax.__all__))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [
        "False",
        "False",
        "parsimax.mappings",
        "attention",
        "True",
        str(len(parsimax.__all__)),
    ]


def test_a_program_gets_all_names_at_once_whatever_it_is_called():
    code = "import sys; sys.argv[0] = '/usr/bin/parsimax'; import parsimax; print('entmax' in vars(parsimax))"
    run = fresh.run("-c", code)
    assert run.stdout == "True\n"


def test_every_case_names_sides_that_exist():
    every = [one for case in cases.CASES.values() for one in getattr(case, "cases", [case])]
    assert {one.ours for one in every} - {*STRUCTURED} == {*OURS}
    assert {one.ours for one in every} | {one.against for one in every} == {*SIDES}
    assert all((case.limit is None) == name.endswith("one-thread") for name, case in cases.CASES.items())


def test_every_group_has_a_title():
    assert {*report.TITLES} == {*cases.GROUPS}


def test_a_file_where_a_folder_is_needed_is_named(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert cli.main(["train", "digits", "steps=1", "--run", str(path / "run")]) == 2
    assert "a file where a folder is needed; give another path" in capsys.readouterr().err


def test_list(capsys):
    assert cli.main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*cases.CASES]


def test_a_tiny_case_from_end_to_end(capsys, tmp_path, one_thread, monkeypatch):
    monkeypatch.setitem(cases.CASES, TINY, replace(cases.CASES[TINY], limit=1e9))
    assert bench("--case", TINY, "--csv", str(tmp_path / "a" / "t.csv"), "--markdown", str(tmp_path / "t.md")) == 0
    assert "pass" in capsys.readouterr().out
    (row,) = csv.DictReader((tmp_path / "a" / "t.csv").read_text(encoding="utf-8").splitlines())
    assert row["case"] == TINY and row["torch"] == torch.__version__ and row["verdict"] == "pass"
    assert float(row["ours_min_s"]) <= float(row["ours_p20_s"]) <= float(row["ours_p50_s"])
    assert f"| {TINY} | softmax |" in (tmp_path / "t.md").read_text(encoding="utf-8")


def test_a_case_above_its_limit_fails(capsys, one_thread, monkeypatch):
    monkeypatch.setitem(cases.CASES, TINY, replace(cases.CASES[TINY], limit=1e-9))
    assert bench("--case", TINY) == 1
    assert "FAIL" in capsys.readouterr().out


WRONG = {
    "value": Side(lambda i: parsimax.sparsemax(i["scores"]) * 1.001, truth=OURS["sparsemax"].call),
    "nan": Side(lambda i: parsimax.sparsemax(i["scores"]) * torch.nan, truth=OURS["sparsemax"].call),
    "support": Side(lambda i: parsimax.entmax15(i["scores"]), truth=OURS["sparsemax"].call),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_not_timed(capsys, one_thread, monkeypatch, kind):
    monkeypatch.setitem(SIDES, "sparsemax", WRONG[kind])
    monkeypatch.setattr(measure, "interleaved", lambda *_: pytest.fail("it was timed"))
    assert bench("--case", TINY) == 1
    assert "wrong answer" in capsys.readouterr().out


SMALL = {
    "sparsemax": (6, 50),
    "entmax15": (2, 3, 50),
    "entmax_learned": (6, 50),
    "entmax15_loss": (6, 50),
    "linear_entmax_loss": (6, 8, 50),
    "entmax_attention": (2, 20, 8),
    "entmax_attention_learned": (2, 20, 8),
    "entmax_attention_dropout": (2, 20, 8),
    "entmax_attention_dropout_learned": (2, 20, 8),
    **dict.fromkeys((f"attention_{name}" for name in cases.MAPPED), (2, 20, 8)),
}


@pytest.mark.parametrize("ours", SMALL)
def test_the_check_sees_a_wrong_gradient(ours, monkeypatch):
    monkeypatch.setattr(check, "PIECE", 100)  # three parts
    case = cases.Case("x", "mapping", SMALL[ours], ours, "softmax", None)
    given = inputs.make(case)
    assert check.check(case, given) < 1e-5
    right = sides.evaluate
    for spoiled in range(len(right(SIDES[ours], given)[1])):

        def wrong(*arguments, truth=False, spoiled=spoiled):
            out, grads = right(*arguments, truth=truth)
            return out, grads if truth else [g * (1.001 if n == spoiled else 1) for n, g in enumerate(grads)]

        monkeypatch.setattr(check, "evaluate", wrong)
        with pytest.raises(check.WrongAnswer):
            check.check(case, given)


def test_what_is_too_small_for_float16_is_no_wrong_support():
    case = cases.Case("x", "mapping", (64, 512), "sigsoftmax", "softmax", None, dtype="float16")
    given = inputs.make(case)
    assert (sides.evaluate(SIDES["sigsoftmax"], given)[0] == 0).any()
    assert check.check(case, given) < check.TOLERANCE["float16"]


@pytest.mark.parametrize("causal", [False, True])
def test_the_scale_gives_the_non_zeros(causal):
    case = cases.Case("x", "attention", (2, 512, 64), "entmax_attention", "sdpa", None, nonzeros=20, causal=causal)
    assert inputs.nonzeros(case, inputs.make(case)) == pytest.approx(20, rel=0.15)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory():
    case = cases.Case("x", "mapping", (1024, 4096), "sparsemax", "softmax", None, gradient=False)
    assert measure.peak_extra(case, "softmax") == pytest.approx(4 * 1024 * 4096, rel=0.1)


def test_slope():
    assert measure._slope((1, 10, 100), [5.0, 50.0, 500.0]) == pytest.approx(1)


def test_select():
    names = [
        [case.name for case in cases.select([p])] for p in ("sparsemax/4096x1000", "small", "*loss/*/bfloat16/dense")
    ]
    assert names[0] == ["sparsemax/4096x1000"] and len(names[1]) == 16 and len(names[2]) == 4
    assert len(cases.select([])) == len(cases.CASES)


def test_a_mistyped_case_names_the_nearest(capsys):
    assert cli.main(["bench", "--case", "entmx15_loss"]) == 2
    error = capsys.readouterr().err
    assert "entmx15_loss" in error and "entmax15_loss" in error and "Traceback" not in error


@pytest.mark.parametrize("arguments", [["bench", "--seconds", "0"], ["bench", "--threads", "0"], ["bnch"], []])
def test_wrong_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "selftest", "tune"])
def test_a_device_that_is_not_there_is_said_in_one_line(command, capsys):
    device = "cuda:99" if torch.cuda.is_available() else "cuda"
    assert cli.main([command, "--device", device]) == 2
    said = capsys.readouterr().err
    assert f"--device {device} cannot be used here" in said and said.count("\n") == 1


def test_control_c_is_one_line(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_info", interrupted)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err.strip() == "stopped"


def test_info(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert torch.__version__ in text and "there is no C++ kernel for multilabel_loss" in text
    for name in (*parsimax.mappings.REGISTRY, *filter(str.islower, parsimax.losses.__all__)):
        assert f"\n{name} " in text
    assert "\nentmax_attention " in text

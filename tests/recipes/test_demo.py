"""The demo runs, says what it should, and draws a picture."""

import os
import re
import subprocess
import sys

import pytest

from parsimax.demo import __main__ as command
from parsimax.demo import table
from parsimax.mappings import REGISTRY


def test_every_mapping_is_in_the_table():
    lines = table.text().splitlines()
    for name in REGISTRY:
        assert any(re.match(rf"{name}\s", line) for line in lines)
    assert len({len(line) for line in lines[2:]}) == 1, "the columns are not aligned"


def test_it_runs(tmp_path):
    call = [sys.executable, "-m", "parsimax.demo", "--quick", "--out", str(tmp_path / "new")]
    run = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    picture = (tmp_path / "new" / "mappings.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and 50_000 < len(picture) < 200_000
    assert str(tmp_path / "new" / "mappings.png") in run.stdout
    assert "α by layer and head" in run.stdout and "sparse, learned α" in run.stdout
    (page,) = (tmp_path / "new").glob("runs/*/report/attention.html")
    assert str(page) in run.stdout and page.stat().st_size > 10_000


def test_what_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setitem(command.NEEDED, "no_such_module", "no-such-package")
    assert command.main([]) == 1
    assert "pip install no-such-package" in capsys.readouterr().err


def test_control_c_is_one_line(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main([]) == 130
    assert capsys.readouterr().err.strip() == "stopped"


def test_unknown_options_are_refused():
    with pytest.raises(SystemExit):
        command.main(["--no-such-option"])

"""The demo runs, says what it should, and draws a picture."""

import re

import pytest

import fresh
from parsimax.demo import __main__ as command
from parsimax.demo import table
from parsimax.mappings import REGISTRY
from parsimax.recipes.kit import beside


def test_every_mapping_is_in_the_table():
    lines = table.text().splitlines()
    for name in REGISTRY:
        assert any(re.match(rf"{name}\s", line) for line in lines)
    assert len({len(line) for line in lines[2:]}) == 1, "the columns are not aligned"


def test_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(beside, "STEPS", 1)  # more are for the clock
    assert command.main(["--quick", "--out", str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out
    picture = (tmp_path / "new" / "mappings.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and 50_000 < len(picture) < 200_000
    assert str(tmp_path / "new" / "mappings.png") in said
    assert "α by layer and head" in said and "sparse, learned α" in said
    (page,) = (tmp_path / "new").glob("runs/*/report/attention.html")
    assert str(page) in said and page.stat().st_size > 10_000


def test_it_is_a_program():
    run = fresh.run("-m", "parsimax.demo", "--help")
    assert run.returncode == 0 and "--quick" in run.stdout, run.stderr


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

"""What parsimax imports: torch and nothing else; inside, only what the table of rooms below allows."""

import ast
import sys
from pathlib import Path

import pytest

import fresh
import parsimax

PACKAGE = Path(parsimax.__file__).parent
# The last column of the table of rooms: what each may import.
ALLOWED = {
    "kernels": set(),
    "engine": {"kernels"},
    "parameters": {"engine"},
    "mappings": {"engine", "kernels"},
    "losses": {"mappings", "engine", "kernels"},
    "metrics": {"mappings", "engine"},
    "heads": {"mappings", "losses", "engine", "kernels"},
    "_attention": {"mappings", "engine", "kernels"},  # parsimax.attention is the function
    "structured": {"mappings", "kernels", "engine"},
    "latent": {"mappings", "structured"},
    "distributed": {"mappings", "losses"},
    "huggingface": {"_attention", "losses", "heads"},
    "compat": {"mappings", "losses"},
    "analysis": set(),
}
EVERYTHING = {*ALLOWED, "recipes"} - {"parameters"}  # the owner of α serves modules of every kind
ALLOWED |= {"recipes": {*ALLOWED}, "cli": {"recipes", "analysis"}, "schedules": {"engine"}}
FRONT = {"bench", "demo"}  # stand before the library as its users do, and use its public face
ROOMS = sorted(room for room in ALLOWED if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").exists())


def test_import_pulls_in_torch_and_nothing_else():
    code = "import sys, torch\nbefore = {*sys.modules}\nimport parsimax\n"
    code += "print(*{name.partition('.')[0] for name in sys.modules} - {name.partition('.')[0] for name in before})"
    extra = {*fresh.run("-c", code).stdout.split()} - sys.stdlib_module_names
    assert extra == {"parsimax"}


def imported(path: Path) -> set[str]:
    """The modules that a file imports, relative ones with their full names."""
    package = ("parsimax", *path.relative_to(PACKAGE).parts[:-1])
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*base, *filter(None, [node.module])))
            names.add(start)
            names |= {f"{start}.{alias.name}" for alias in node.names}
    return names


def rooms_used_by(path: Path) -> set[str]:
    return {parts[1] for name in imported(path) if (parts := name.split("."))[0] == "parsimax" and len(parts) > 1}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    files = [*(PACKAGE / room).rglob("*.py"), *PACKAGE.glob(f"{room}.py")]
    for path in files:
        foreign = (rooms_used_by(path) & EVERYTHING) - {room} - ALLOWED[room]
        assert not foreign, (
            f"{path.relative_to(PACKAGE)} imports {foreign}; {room} may import {ALLOWED[room] or 'no room'}"
        )
        others = {
            n
            for n in imported(path)
            if n == "parsimax" or (n.startswith("parsimax.") and n.split(".")[1] in {*parsimax.__all__} - EVERYTHING)
        }
        assert not others, f"{path.relative_to(PACKAGE)} goes through the public face: {others}"


def test_every_folder_has_its_row_in_the_table():
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert folders <= {*ALLOWED} | FRONT


@pytest.mark.parametrize("name", sorted(parsimax.__all__))
def test_no_public_name_hides_a_room(name):
    """``parsimax.name`` must be one thing, whichever of its parts was imported first."""
    assert not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").exists()


def test_the_reading_of_imports_can_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "mappings").mkdir()
    file = tmp_path / "mappings" / "some.py"
    for line in (
        "from ..losses import contract",
        "from .. import losses",
        "import parsimax.losses",
        "from ..losses.contract import x",
    ):
        file.write_text(line)
        assert rooms_used_by(file) == {"losses"}, line
    file.write_text("from .losses import x")
    assert rooms_used_by(file) == {"mappings"}


@pytest.mark.parametrize("name", sorted(parsimax.__all__))
def test_every_public_name_is_documented_with_an_example(name):
    thing = getattr(parsimax, name)
    if not callable(thing):
        return
    text = thing.__doc__ or ""
    assert "Example:" in text and ">>>" in text, f"{name} has no example"
    first = text.strip().splitlines()[0]
    assert first.endswith("."), f"{name}: the first line says what it is, in one sentence"

"""The docs say what the code does: generated parts are up to date, examples run, and the tests they name exist."""

import importlib.util
import re
from pathlib import Path

import pytest

import parsimax

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def builder():
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date():
    assert builder().stale() == [], "run: python docs/build.py"


def test_an_outdated_page_is_found(tmp_path):
    build = builder()
    page = tmp_path / "page.md"
    begin, end = "<!-- some: written by docs/build.py -->", "<!-- end of some -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    assert build.updated(page, "some", "new") == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    assert build.updated(page, "", "whole") == "whole"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="lacks the markers"):
        build.updated(page, "some", "new")


def test_every_mapping_has_its_row_and_section():
    for name in parsimax.mappings.REGISTRY:
        assert f"| `{name}` |" in builder().table()
        assert f"## {name}\n" in (ROOT / "docs" / "mappings.md").read_text(encoding="utf-8")


def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes a page
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


RUN = {"attention": 6, "support": 4, "mappings": 1, "segments": 3, "heads": 3, "structured": 7, "latent": 2}


@pytest.mark.parametrize(("name", "least"), RUN.items())
def test_a_page_runs(name, least):
    page = ROOT / "docs" / f"{name}.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= least
    names: dict = {}  # a later block goes on from an earlier one
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_and_files_named_in_the_docs_exist(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", text)
    assert named or page.name != "contract.md", "the pattern finds no test any more"
    for file, name in named:
        assert (f"def {name}(" if name else "") in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("room", ["mappings", "losses", "metrics", "heads"])
def test_every_function_of_the_core_is_named_in_the_docs(room):
    page = f"{room}.md" if room in ("mappings", "heads") else "losses.md"
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    functions = [name for name in getattr(parsimax, room).__all__ if name.islower()]
    assert [name for name in functions if f"`{name}" not in text] == []

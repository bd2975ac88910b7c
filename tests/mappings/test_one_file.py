"""A mapping is one file: a thirteenth, put into a copy of the package, is found wherever mappings are."""

import os
import shutil
from pathlib import Path

import pytest

import fresh
import parsimax

ROOT = Path(__file__).parents[2]
PACKAGE = Path(parsimax.__file__).parent

# p is proportional to relu(1 + z/s)^2 below the maximum: no mapping of any paper, but a point of the simplex.
FILE = '''
"""hillmax: a parabola below the maximum."""

import math

import torch
from torch import Tensor

from ..engine.apply import apply
from ..engine.arguments import Interval
from ..engine.chunked import Solve
from ..parameters import Setting
from .declaration import MappingModule
from .tsoftmax import from_top

WIDTH = Setting("width", Interval(0, math.inf, closed_low=False, closed_high=False), example=2.0, about="of the hill")


def hillmax_rows(z: Tensor, live: Tensor, width: Tensor, *, solve: Solve) -> Tensor:
    mass = torch.where(live, (1 + from_top(z, live) / width).clamp(min=0).square(), 0)
    return mass / mass.sum(-1, keepdim=True)


def hillmax(
    scores: Tensor,
    width: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Hillmax: a parabola below the maximum.

    .. math:: p_i \\propto [1 + (z_i - \\max(z)) / w]_+^2
    """
    return apply(hillmax_rows, scores, WIDTH.at(width), dim=dim, mask=mask, dtype=dtype, where="hillmax")


class Hillmax(MappingModule, function=hillmax, setting=WIDTH):
    width: float | Tensor
'''

USE = """
import pickle, sys
import torch
import parsimax
from parsimax import cli

p = parsimax.hillmax(torch.tensor([1.0, 0.0, -2.0]), 2.0)
torch.testing.assert_close(p, torch.tensor([0.8, 0.2, 0.0]))
assert "hillmax" in parsimax.__all__ and "Hillmax" in parsimax.__all__ and "hillmax" in parsimax.mappings.REGISTRY
module = parsimax.Hillmax("learned")
assert repr(parsimax.Hillmax(2.0)) == "Hillmax(width=2, dim=-1)"
assert repr(parsimax.Hillmax(2.0)) in parsimax.Hillmax.__doc__
assert repr(pickle.loads(pickle.dumps(module))) == repr(module) == (
    "Hillmax(width=2 learned, shape=(), interval=(0, inf), dim=-1)"
)
q = torch.randn(3, 2, 4, 5, 8)
out, weights = parsimax.attention(*q, mapping="hillmax", width=0.5, return_weights=True)
assert (weights == 0).any() and torch.allclose(weights.sum(-1), torch.ones(2, 4, 5))
core = parsimax.AttentionCore(4, "hillmax", width="learned")
core(*q).sum().backward()
assert core.learned_width.raw.grad.abs().sum() > 0
cli.main(["config", "translation"])
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The project with one more file."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("docs", "tests", "benchmarks", "README.md", "pyproject.toml"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
        else:
            shutil.copy(ROOT / name, folder / name)
    shutil.copytree(PACKAGE, folder / "src" / "parsimax", ignore=shutil.ignore_patterns("__pycache__", "cpu"))
    (folder / "src" / "parsimax" / "mappings" / "hillmax.py").write_text(FILE.lstrip(), encoding="utf-8")
    return folder


def run(copied, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(copied / "src"), "PYTHONIOENCODING": "utf-8"}
    done = fresh.run(*arguments, cwd=copied, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_it_is_exported_a_module_an_option_of_attention_and_of_recipes(copied):
    text = run(copied, "-c", USE)
    choices = text.partition("\nmodel.encoder.mapping=")[2].partition("\nmodel.")[0]
    assert "hillmax" in choices.replace("\n", " ").split()
    assert "\nmodel.encoder.width=2 " in text


def test_the_docs_get_its_row(copied):
    run(copied, "docs/build.py")
    page = (copied / "docs" / "mappings.md").read_text(encoding="utf-8")
    assert "| `hillmax` | A parabola below the maximum. | `width` in (0, ∞) | yes | yes | no |" in page
    assert "## hillmax\n" in page
    stub = (copied / "src" / "parsimax" / "mappings" / "__init__.pyi").read_text(encoding="utf-8")
    assert "from .hillmax import Hillmax as Hillmax\n" in stub


def test_it_passes_the_contract(copied):
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "hillmax and not million")
    files = ("mappings/test_contract.py", "mappings/test_parameters.py", "parameters/test_settings_of_modules.py")
    out = run(copied, *options, *(f"tests/{file}" for file in files))
    passed = int(out.split(" passed")[0].split()[-1])
    assert passed > 60, out[-500:]

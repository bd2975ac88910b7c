"""Figures show what was recorded, for any shape, without touching matplotlib's global state."""

import re
import sys
from pathlib import Path

import pytest
import torch

import fresh
import parsimax
from parsimax import analysis
from parsimax.analysis import Recording, figures

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg

MAPS = sys.modules["parsimax.analysis.figures.maps"]
HOSTILE = ["$x$", "\\frac{", "a_b^", "\t", "▁the", "##ing", "Ġ"]


def attention(*shape, alpha=1.5, seed=0):
    return parsimax.entmax(2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)), alpha)


@pytest.fixture
def recording():
    """Encoder and decoder, different numbers of heads, tokens that matplotlib might take for formulas."""
    layers = {
        "model.encoder.0.self_attn": attention(2, 4, 7, 7),
        "model.decoder.0.self_attn": attention(2, 4, 5, 5, seed=1).tril(),
        "model.decoder.0.cross_attn": attention(2, 3, 5, 7, seed=2),
        "model.encoder.1.self_attn": attention(2, 4, 7, 7, seed=3),
    }
    alpha = {name: torch.linspace(1, 2, w.shape[1]).tolist() for name, w in layers.items() if "decoder" not in name}
    return Recording.from_weights(layers, [HOSTILE] * 2, [HOSTILE[:5], HOSTILE[:3]], alpha=alpha, mapping="entmax")


def draw(figure):
    """Draw the picture, which must not be one colour."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = torch.frombuffer(bytearray(canvas.buffer_rgba()), dtype=torch.int32)
    assert len(pixels.unique()) > 20


def texts(axes):
    return [label.get_text() for label in axes]


ALL = {
    "attention": lambda r: figures.attention(r, 2, 1, 1),
    "density": figures.density,
    "entropy": figures.entropy,
    "alpha": figures.alpha,
    "diversity": figures.diversity,
    "diversity of several": lambda r: figures.diversity({"one": r, "$two$": analysis.measures(r)}),
    "roles": figures.roles,
    "comparison": lambda r: figures.comparison(analysis.compare(r, r)),
}


@pytest.mark.parametrize("name", ALL)
def test_every_figure_draws(name, recording):
    from matplotlib.figure import Figure

    figure = ALL[name](recording)
    assert type(figure) is Figure
    draw(figure)


def test_every_function_is_drawn_above():
    elsewhere = {"function", "spectrum"}  # of heads and ranks: tests/heads, test_spectrum.py
    assert {name.split()[0] for name in ALL} == set(figures.__all__) - elsewhere


def test_no_global_state_and_no_window():
    code = """
import sys, torch
from parsimax import analysis
recording = analysis.Recording.from_weights({"layer.0": torch.eye(3).expand(1, 2, 3, 3)}, alpha={"layer.0": [1.0, 2.0]})
assert "matplotlib" not in sys.modules, "imported before the first figure"
import matplotlib
before = matplotlib.rcParams.copy()  # dict() would choose a backend
for draw in ("attention", "density", "entropy", "alpha", "diversity", "roles"):
    getattr(analysis.figures, draw)(recording)
analysis.figures.comparison(analysis.compare(recording, recording))
assert "matplotlib.pyplot" not in sys.modules
assert dict.__eq__(matplotlib.rcParams, before)
"""
    run = fresh.run("-c", code)
    assert run.returncode == 0, run.stderr


def test_a_missing_matplotlib_is_named(monkeypatch, recording):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        figures.density(recording)


def image_of(figure):
    return figure.axes[0].images[0]


def test_the_map_shows_exactly_the_zeros(recording):
    figure = figures.attention(recording, "model.decoder.0.cross_attn", head=-1, example=0)
    shown = torch.from_numpy(image_of(figure).get_array().filled(0))
    expected = recording.examples[0].weights[2].dense(2)
    torch.testing.assert_close(shown.float(), expected)
    assert (image_of(figure).get_array().mask == (expected == 0).numpy()).all()
    axes = figure.axes[0]
    assert texts(axes.get_xticklabels()) == ["$x$", "\\frac{", "a_b^", "\\t", "▁the", "##ing", "Ġ"]
    assert len(axes.get_yticklabels()) == 5
    assert "exact zeros" in axes.texts[0].get_text()


def test_the_smallest_weight_differs_from_zero_in_colour():
    weights = torch.zeros(1, 1, 2, 2)
    weights[..., 0, 0], weights[..., 1, 1] = 1e-30, 1.0
    image = image_of(figures.attention(Recording.from_weights([weights])))
    colors = image.cmap(image.norm(image.get_array()))
    assert colors[0, 1, 3] == 0 and colors[0, 0, 3] == 1  # nothing is drawn over zeros
    assert min(colors[0, 0, :3]) < 0.6  # far from white


def test_no_weight_vanishes_from_a_long_map():
    weights = torch.zeros(1, 1, 1500, 1100)
    places = torch.randint(1100, (1500,), generator=torch.Generator().manual_seed(0))
    weights[0, 0, torch.arange(1500), places] = torch.linspace(0.1, 1, 1500)
    image = image_of(figures.attention(Recording.from_weights({"cross.0": weights})))
    shown = torch.from_numpy(image.get_array().filled(0))
    assert shown.shape == (MAPS.PIXELS, MAPS.PIXELS)
    expected = torch.zeros_like(shown)
    for query, key in enumerate(places.tolist()):
        cell = (query * MAPS.PIXELS // 1500, key * MAPS.PIXELS // 1100)
        expected[cell] = max(expected[cell], weights[0, 0, query, key])
    torch.testing.assert_close(shown, expected)
    assert image.get_extent() == [-0.5, 1099.5, 1499.5, -0.5]


def test_grids_have_the_numbers_of_the_table(recording):
    table = analysis.measures(recording)
    figure = figures.density(table)
    shown = torch.from_numpy(image_of(figure).get_array().filled(float("nan")))
    names = texts(figure.axes[0].get_yticklabels())
    assert names == ["encoder.0.self_attn", "encoder.1.self_attn", "decoder.0.self_attn", "decoder.0.cross_attn"]
    for row in table:
        at = names.index(row.layer.removeprefix("model."))
        assert float(shown[at, row.head]) == pytest.approx(row.density)
    assert shown[3, 3].isnan()  # a head that is not there


def test_roles_are_written_and_counted():
    heads = torch.stack([torch.eye(4), torch.eye(4).roll(-1, 1), torch.full((4, 4), 0.25)])
    heads[1, 0] = heads[1, 1]
    figure = figures.roles(Recording.from_weights([heads[None]]))
    assert sorted(texts(figure.legends[0].get_texts())) == ["previous (1)", "self (1)"]
    assert "2 of 3 heads" in figure.axes[0].texts[-1].get_text()


def test_rings_mark_the_nearest_heads():
    p = attention(1, 4, 6, 6)
    compared = analysis.compare(Recording.from_weights([p]), Recording.from_weights([p[:, [1, 0, 3, 2]]]))
    rings = figures.comparison(compared).axes[0].collections[0].get_offsets()
    assert sorted(map(tuple, rings.tolist())) == [(0, 1), (1, 0), (2, 3), (3, 2)]


def test_odd_recordings_draw():
    draw(figures.attention(Recording.from_weights([torch.ones(1, 1, 1, 1)])))
    draw(figures.attention(Recording.from_weights([torch.full((1, 1, 2, 2), float("nan"))])))
    draw(figures.density(Recording.from_weights([torch.zeros(1, 2, 3, 3)])))
    draw(figures.diversity(Recording.from_weights([attention(1, 1, 3, 3)])))
    draw(figures.density(Recording.from_weights([attention(1, 40, 3, 3) for _ in range(30)])))
    with pytest.raises(ValueError, match="no layer has an α"):
        figures.alpha(Recording.from_weights([attention(1, 2, 3, 3)]))


def test_what_is_not_there_is_not_drawn(recording):
    wrong = r"of layer model\.decoder\.0\.cross_attn: head must be between 0 and 2, got 9"
    with pytest.raises(IndexError, match=wrong):
        figures.attention(recording, 2, head=9)
    with pytest.raises(IndexError, match="example must be between 0 and 1, got 9"):
        figures.attention(recording, example=9)
    with pytest.raises(TypeError, match="learned must be a function or module of each score, such as a PLIF, got 3"):
        figures.function(3)


@pytest.mark.parametrize(("name", "count"), [("analysis", 6), ("report", 1)])
def test_the_pages_on_analysis_run(name, count, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / f"{name}.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= count
    names: dict = {}  # a later block goes on from an earlier one
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)

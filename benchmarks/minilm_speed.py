"""What sparse attention costs in MiniLM: the whole encoder at 128 … 512 tokens, beside the same weights with SDPA.

    python benchmarks/minilm_speed.py --data PATH_OF_SST2 [--rounds 9] [--csv FILE] [--markdown docs/minilm_speed.md]

Real sentences are joined to texts of exactly so many tokens, because what a sparse kernel costs depends on how sparse
it is. The two models do the same texts in turns; a ratio is the median over the rounds of entmax's time by that of
SDPA beside it, with the quartiles in brackets. Time is that of the processor: waiting for it does not count, but
neighbours on the same core still slow it, so run this on an idle machine.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from minilm import folder, read
from torch import Tensor
from transformers import AutoTokenizer, BertModel

import parsimax
from parsimax.huggingface import sparsify

LENGTHS = (128, 256, 384, 512)


def texts(path: Path, length: int, batch: int) -> Tensor:
    """Token numbers (batch, length) of running text."""
    tokenizer = AutoTokenizer.from_pretrained(folder())
    sentences = [sentence for sentence, _ in read(path)["train"]]
    numbers = [
        each for line in sentences[: 40 * batch] for each in tokenizer(line, add_special_tokens=False)["input_ids"]
    ]
    body = length - 2
    rows = [numbers[at * body : (at + 1) * body] for at in range(batch)]
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    return torch.tensor([[begin, *row, end] for row in rows])


def density(model: BertModel, tokens: Tensor) -> float:
    with torch.no_grad():
        weights = model.eval()(tokens, output_attentions=True).attentions
    return 100 * statistics.fmean((each > 0).double().mean().item() for each in weights)


def forward(model: BertModel, tokens: Tensor) -> None:
    with torch.no_grad():
        model.eval()(tokens)


def training(model: BertModel, tokens: Tensor) -> None:
    model.train()
    model.zero_grad(set_to_none=True)
    model(tokens).last_hidden_state.square().mean().backward()


def without_dropout(model: BertModel, tokens: Tensor) -> None:
    """Training, but no attention weight is dropped: SDPA has a fast kernel for that alone."""
    layers = [layer.attention.self.dropout for layer in model.encoder.layer]
    before = layers[0].p
    for each in layers:
        each.p = 0.0
    training(model, tokens)
    for each in layers:
        each.p = before


KINDS = {"forward": forward, "training": training, "training, no attention dropout": without_dropout}


def measured(do: Callable[[BertModel, Tensor], None], models: dict[str, BertModel], tokens: Tensor, rounds: int) -> Any:
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for name in list(models)[:: 1 if number % 2 else -1]:  # who goes first changes
            began = time.process_time()
            do(models[name], tokens)
            seconds[name].append(time.process_time() - began)
    return {name: each[1:] for name, each in seconds.items()}  # the first warms up


def row_of(models: dict[str, BertModel], tokens: Tensor, rounds: int) -> dict[str, Any]:
    row: dict[str, Any] = {"tokens": tokens.shape[1], "density": density(models["1.5-entmax"], tokens)}
    for name, do in KINDS.items():
        seconds = measured(do, models, tokens, rounds)
        ratios = [own / other for own, other in zip(seconds["1.5-entmax"], seconds["SDPA"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        for kind, each in seconds.items():
            row[f"{name} ms, {kind}"] = 1000 * statistics.median(each)
        row |= {f"{name} ratio": middle, f"{name} low": low, f"{name} high": high}
    return row


def page(rows: list[dict[str, Any]], about: str) -> str:
    lines = [
        "# MiniLM: the time of sparse attention beside SDPA",
        "",
        about,
        "",
        f"| tokens | weights not 0, % | {' | '.join(f'{name}, SDPA, ms | entmax / SDPA' for name in KINDS)} |",
        "|---|---|" + "---|---|" * len(KINDS),
    ]
    for row in rows:
        value = {name: float(each) for name, each in row.items()}
        cells = [f"{value['tokens']:.0f}", f"{value['density']:.1f}"]
        for name in KINDS:
            ratio = f"{value[f'{name} ratio']:.2f} ({value[f'{name} low']:.2f}…{value[f'{name} high']:.2f})"
            cells += [f"{value[f'{name} ms, SDPA']:.0f}", ratio]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    models = {
        "SDPA": BertModel.from_pretrained(folder(), attn_implementation="sdpa"),
        "1.5-entmax": sparsify(BertModel.from_pretrained(folder()), alpha=1.5),
    }
    rows = []
    for length in LENGTHS:
        rows.append(row_of(models, texts(options.data, length, options.batch), options.rounds))
        print(f"{length} tokens measured", file=sys.stderr)
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    written = page(rows, about(options))
    print(written)
    if options.markdown:
        options.markdown.write_text(written, encoding="utf-8")


def about(options: argparse.Namespace) -> str:
    return (
        f"Written by `python benchmarks/minilm_speed.py --data PATH --rounds {options.rounds} --batch {options.batch} "
        f"--threads {options.threads}` with torch {torch.__version__} and parsimax {parsimax.__version__}: the whole "
        f"encoder (6 layers, 12 heads of 32) with SDPA and with 1.5-entmax, {options.batch} texts of joined SST-2 "
        f"sentences, in turns in one process; processor time, medians over {options.rounds} rounds, quartiles of the "
        "ratio in brackets. Training is a forward and a backward pass, with the model's own dropout of 0.1."
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the page here too")
    return parser.parse_args()


if __name__ == "__main__":
    main()

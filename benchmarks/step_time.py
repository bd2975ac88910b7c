"""Where the time of a training step goes: trained translation runs beside twins whose attention is SDPA.

    python benchmarks/step_time.py RUN [RUN …] [--rounds 30] [--threads 1]

Each run is compared with the same model with softmax everywhere, whose attention layers call
`F.scaled_dot_product_attention` and whose output `F.cross_entropy`: forward and backward pass in turns on the same
batches of the training data, the median ratio with its quartiles, in processor time. Then by torch.profiler what
attention, the loss of the output and all the rest take of either.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import profile, record_function

from parsimax import AttentionCore
from parsimax.recipes.commands import restored
from parsimax.recipes.kit.settings import changed
from parsimax.recipes.text.seq2seq.twin import softmax_words


class Dense(nn.Module):
    """SDPA in the place of an attention core."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *given: Any, **options: Any
    ) -> Tensor:
        options.pop("return_weights", None)
        return F.scaled_dot_product_attention(q, k, v, attn_mask, *given, **options)


def with_sdpa(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, AttentionCore):
                setattr(module, name, Dense())
    return model


def watched(model: Any) -> None:
    """Name what runs inside attention cores and the loss, so that the profiler can tell it from the rest."""

    def named(owner: Any, method: str, title: str) -> None:
        real = getattr(owner, method)

        def inner(*given: Any, **options: Any) -> Any:
            with record_function(title):
                return real(*given, **options)

        setattr(owner, method, inner)

    named(model.output, "loss", "output loss")
    for module in model.modules():
        if isinstance(module, (AttentionCore, Dense)):
            named(module, "forward", "attention")


def step(model: Any, batch: Any, smoothing: float) -> None:
    model.zero_grad(set_to_none=True)
    model.loss(batch, smoothing).backward()


KINDS = {
    "attention": ("attention", "scaled_dot_product", "flash"),
    "loss of the output": ("output loss", "cross_entropy", "nll_loss", "log_softmax", "_loss"),
}


def shares(model: nn.Module, batches: list[Any], smoothing: float) -> dict[str, float]:
    """Milliseconds of a step by kind; operators inside another one count there."""
    model.train()
    with profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for batch in batches:
            step(model, batch, smoothing)
    found = dict.fromkeys([*KINDS, "the rest"], 0.0)

    def kind_of(event: Any) -> str:
        while event is not None:
            for kind, words in KINDS.items():
                if any(word in event.name.lower() for word in words):
                    return kind
            event = event.cpu_parent
        return "the rest"

    for event in seen.events():
        found[kind_of(event)] += event.self_cpu_time_total / 1e3 / len(batches)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| run | step, ms | by the twin with SDPA | attention, ms (twin) | loss of the output, ms | the rest, ms |")
    print("|---|---|---|---|---|---|")
    for folder in options.runs:
        run, entry, settings, trained = restored(folder, "best")
        recipe = entry.recipe()
        task = recipe.reopen(settings, run, data=True)
        smoothing = settings.model.smoothing
        own, twin = trained.model, with_sdpa(recipe.reopen(changed(settings, softmax_words(settings)), run).model)
        twin.load_state_dict(own.state_dict(), strict=False)
        batches = [task.batches.make(each) for each in task.batches.plan(settings.train.seed)[: options.rounds + 2]]
        ratios, alone = [], []
        for number, batch in enumerate(batches):
            seconds = {}
            for model in (own, twin) if number % 2 else (twin, own):
                model.train()
                began = time.process_time()
                step(model, batch, smoothing)
                seconds[model] = time.process_time() - began
            ratios.append(seconds[own] / seconds[twin])
            alone.append(seconds[own])
        low, middle, high = statistics.quantiles(ratios[2:], n=4)
        parts = []
        for model in (own, twin):
            watched(model)
            parts.append(shares(model, batches[:10], smoothing))
        cells = [f"{parts[0][kind]:.1f} ({parts[1][kind]:.1f})" for kind in parts[0]]
        print(
            f"| {folder.name} | {1000 * statistics.median(alone[2:]):.0f} | {middle:.2f} ({low:.2f}…{high:.2f}) | "
            + " | ".join(cells)
            + " |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())

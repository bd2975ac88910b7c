"""Training on windows of a text, measures of a text, and writing one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...metrics import jensen_shannon, sample, sparsemax_score
from ..kit.batches import Batches
from ..kit.recipe import DataError
from ..kit.training import Task
from .networks import LanguageModel, State
from .settings import Settings
from .words import Words

ROWS, MOST = 512, 1 << 24  # words whose probabilities are looked at together, and how many of these at most


class Window(NamedTuple):
    """Words that are entered and words that are wanted (T, B), and whether the text begins here."""

    entered: Tensor
    wanted: Tensor
    first: bool


class Windows(Batches[Window]):
    """A text in columns (length, B), read window by window in its order: the state goes from one to the next."""

    def __init__(self, text: Tensor, columns: int, window: int, name: str) -> None:
        length = len(text) // columns
        if length < 2:
            raise DataError(f"the {name} text has {len(text)} words, too few for {columns} columns of 2 or more")
        self.columns, self.window = text[: length * columns].view(columns, length).t().contiguous(), window

    def __len__(self) -> int:
        return math.ceil((len(self.columns) - 1) / self.window)

    def plan(self, seed: int) -> list[list[int]]:
        return [[number] for number in range(len(self))]

    def make(self, indices: list[int]) -> Window:
        start = indices[0] * self.window
        stop = min(start + self.window, len(self.columns) - 1)
        return Window(self.columns[start:stop], self.columns[start + 1 : stop + 1], start == 0)

    def __iter__(self) -> Iterator[Window]:
        return (self.make([number]) for number in range(len(self)))


class Lm(Task[Window]):
    """Truncated back-propagation: a window's state is that of the window before, without its gradient."""

    unit = "words"

    def __init__(self, settings: Settings, words: Words, train: Tensor, val: Tensor) -> None:
        own = settings.train
        super().__init__(own, Windows(train, own.columns, own.window, "train"))
        self.words, self.settings = words, settings
        self.model = LanguageModel(settings, len(words))
        few = val[: own.eval_words] if own.eval_words else val
        self.val = Windows(few, min(own.columns, max(1, len(few) // 4)), own.window, "val")
        self.state: State = None

    def loss(self, batch: Window) -> Tensor:
        hidden, state = self.model(batch.entered, None if batch.first else self.state)
        self.state = None if state is None else (state[0].detach(), state[1].detach())
        return self.model.head.loss(hidden, batch.wanted)

    def amount(self, batch: Window) -> int:
        return batch.wanted.numel()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["state of the text"] = None if self.state is None else list(self.state)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        held = checkpoint.get("state of the text")
        self.state = None if held is None else (held[0].to(self.device), held[1].to(self.device))

    def validate(self) -> dict[str, float]:
        return self.measure(self.val)

    @torch.no_grad()
    def measure(self, text: Windows) -> dict[str, float]:
        """Figures of a text, as means over its words; perplexity is infinite where a word had probability 0."""
        sums = dict.fromkeys(("loss", "logs", "floored", "score", "divergence", "support", "right"), 0.0)
        count, state, head = 0, None, self.model.head
        epsilon, size = self.settings.train.epsilon, head.classes
        for window in text:
            entered, wanted = window.entered.to(self.device), window.wanted.to(self.device)
            hidden, state = self.model(entered, state)
            rows, aims = hidden.flatten(0, 1), wanted.flatten()
            sums["loss"] += head.loss(rows, aims, reduction="sum").item()
            step = max(1, min(ROWS, MOST // size))
            for some, aim in zip(rows.split(step), aims.split(step), strict=True):
                p = head.probs(some)
                own = p.gather(-1, aim[:, None]).squeeze(-1).double()
                sums["logs"] -= own.log().sum().item()
                sums["floored"] -= ((own + epsilon) / (1 + epsilon * size)).log().sum().item()
                sums["score"] += sparsemax_score(p, aim).sum(dtype=torch.float64).item()
                sums["divergence"] += jensen_shannon(p, aim).sum(dtype=torch.float64).item()
                sums["support"] += p.count_nonzero().item()
                sums["right"] += (p.argmax(-1) == aim).sum().item()
            count += len(aims)
        mean = {name: total / count for name, total in sums.items()}
        return {
            "loss": mean["loss"],
            "perplexity": _exp(mean["logs"]),
            "ε-perplexity": _exp(mean["floored"]),
            "sparsemax score": mean["score"],
            "Jensen–Shannon": mean["divergence"],
            "possible words": mean["support"],
            "accuracy": mean["right"],
        }

    @torch.no_grad()
    def contexts(self, text: Windows, most: int) -> Tensor:
        """Hidden states of up to so many places of a text."""
        found, state, count = [], None, 0
        for window in text:
            hidden, state = self.model(window.entered.to(self.device), state)
            found.append(hidden.flatten(0, 1))
            count += len(found[-1])
            if count >= most:
                break
        return torch.cat(found)[:most]

    @torch.no_grad()
    def write(self, begun: list[int], count: int, samples: int, seed: int) -> list[list[int]]:
        """So many words after a beginning, drawn from the whole support of each step; one list a sample."""
        generator = torch.Generator().manual_seed(seed)
        text = torch.tensor(begun, device=self.device)[:, None].expand(-1, samples)
        window, state = self.model.window, None
        hidden, state = self.model(text if window is None else text[-window:])
        for _ in range(count):
            drawn = sample(self.model.head.probs(hidden[-1]).cpu(), generator=generator).to(self.device)
            text = torch.cat((text, drawn[None]))
            hidden, state = self.model(drawn[None], state) if window is None else self.model(text[-window:])
        return [column.tolist() for column in text[len(begun) :].t()]


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def repetition(texts: list[list[int]], length: int = 4) -> float:
    """The share of runs of ``length`` words that their text has had before."""
    repeated = total = 0
    for text in texts:
        runs = [tuple(text[at : at + length]) for at in range(len(text) - length + 1)]
        repeated, total = repeated + len(runs) - len({*runs}), total + len(runs)
    return repeated / max(1, total)

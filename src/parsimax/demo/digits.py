"""Handwritten digits, classified with dense, sparse and learned attention and output.

Each pixel is described by its 3 × 3 neighbourhood and its place; four heads choose pixels by attention; a linear layer
classifies what they saw. Only the attention's mapping and the output's loss differ between the three models.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

import parsimax

EPOCHS, BATCH, WIDTH, HEADS, EPSILON = 15, 64, 48, 4, 1e-3


@dataclass(frozen=True)
class Recipe:
    """What differs: the attention's mapping, the output's mapping and its loss."""

    name: str
    attention: Callable[[], nn.Module]
    output: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]


RECIPES = (
    Recipe("softmax", parsimax.Softmax, parsimax.softmax, F.cross_entropy),
    Recipe("sparsemax", parsimax.Sparsemax, parsimax.sparsemax, parsimax.sparsemax_loss),
    Recipe(
        "entmax, learned α",
        partial(parsimax.Entmax, 1.5, learnable=True, shape=(HEADS, 1)),
        parsimax.entmax15,
        parsimax.entmax15_loss,
    ),
)


class Reader(nn.Module):
    def __init__(self, mapping: nn.Module) -> None:
        super().__init__()
        self.see = nn.Linear(9, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(64, WIDTH))
        self.think = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, HEADS)
        self.mapping = mapping
        self.classify = nn.Linear(HEADS * WIDTH, 10)

    def attention(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What each pixel says (N, 64, WIDTH), and how much each head listens to it (N, HEADS, 64)."""
        windows = F.unfold(images, 3, padding=1).transpose(1, 2)
        pixels = torch.relu(self.think(torch.relu(self.see(windows) + self.place)))
        return pixels, self.mapping(self.score(pixels).transpose(1, 2))

    def forward(self, images: Tensor) -> Tensor:
        pixels, weights = self.attention(images)
        scores: Tensor = self.classify((weights @ pixels).flatten(1))
        return scores


@dataclass(frozen=True)
class Result:
    accuracy: float
    classes: float
    certain: float
    pixels: float
    perplexity: float
    score: float
    seconds: float
    alphas: tuple[float, ...]


def data() -> list[Tensor]:
    """Training images, test images, training labels, test labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    parts = train_test_split(images.numpy(), digits.target, test_size=0.25, random_state=0, stratify=digits.target)
    return [torch.as_tensor(part) for part in parts]


def train(
    recipe: Recipe, seed: int, epochs: int, images: Tensor, labels: Tensor, tell: Callable[[int], None]
) -> Reader:
    torch.manual_seed(seed)
    model = Reader(recipe.attention())
    steps = epochs * -(-len(labels) // BATCH)
    own = list(model.mapping.parameters())  # α, which has a long way to go
    rest = [p for name, p in model.named_parameters() if not name.startswith("mapping")]
    groups = [{"params": rest}, {"params": own}] if own else [{"params": rest}]
    optimiser = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, [1e-2, 1e-1][: len(groups)], total_steps=steps)
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(labels)).split(BATCH):
            optimiser.zero_grad()
            recipe.loss(model(images[batch]), labels[batch]).backward()
            optimiser.step()
            schedule.step()
        tell(epoch)
    return model


@torch.no_grad()
def judge(recipe: Recipe, model: Reader, images: Tensor, labels: Tensor, seconds: float) -> Result:
    p, (_, weights) = recipe.output(model(images)), model.attention(images)
    support = parsimax.support_size(p).float()
    alpha = getattr(model.mapping, "alpha", None)
    return Result(
        accuracy=(p.argmax(-1) == labels).float().mean().item(),
        classes=support.mean().item(),
        certain=(support == 1).float().mean().item(),
        pixels=parsimax.support_size(weights).float().mean().item(),
        perplexity=parsimax.epsilon_perplexity(p, labels, EPSILON).item(),
        score=parsimax.sparsemax_score(p, labels).mean().item(),
        seconds=seconds,
        alphas=tuple(alpha.flatten().tolist()) if isinstance(alpha, Tensor) else (),
    )


def progress(where: str, epochs: int, epoch: int) -> None:
    """One line that is written over on a terminal, and nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{where} {epoch} of {epochs}", end="", file=sys.stderr, flush=True)


def results(recipe: Recipe, seeds: int, epochs: int) -> list[Result]:
    train_images, test_images, train_labels, test_labels = data()
    found = []
    for seed in range(seeds):
        started = time.perf_counter()
        where = f"{recipe.name}: seed {seed + 1} of {seeds}, epoch"
        model = train(recipe, seed, epochs, train_images, train_labels, partial(progress, where, epochs))
        seconds = time.perf_counter() - started
        found.append(judge(recipe, model, test_images, test_labels, seconds))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found


def row(name: str, found: list[Result]) -> str:
    def mean(what: str) -> float:
        return float(sum(getattr(r, what) for r in found)) / len(found)

    alphas = [a for r in found for a in r.alphas]
    learned = f"{min(alphas):.2f}–{max(alphas):.2f}" if alphas else "–"
    return (
        f"{name:<19}{mean('accuracy'):>8.1%}{mean('classes'):>9.2f}{mean('certain'):>9.0%}{mean('pixels'):>8.1f}"
        f"{mean('score'):>8.3f}{mean('perplexity'):>8.3f}{learned:>11}{mean('seconds'):>7.1f}"
    )


def text(seeds: int, epochs: int) -> str:
    """Train all models and make the table of what came out."""
    torch.set_num_threads(1)  # the tensors are small: more threads wait for each other, most of all on a busy machine
    runs = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    lines = [
        f"Digits of scikit-learn: 1347 to train, 450 held out; {epochs} epochs; {runs}.",
        "",
        f"{'':<19}{'right':>8}{'classes':>9}{'certain':>9}{'pixels':>8}{'score':>8}{'ε-ppl':>8}{'α':>11}{'sec':>7}",
    ]
    lines += [row(recipe.name, results(recipe, seeds, epochs)) for recipe in RECIPES]
    lines += [
        "",
        "classes: mean support of the output, of 10; certain: outputs with one class only; pixels: mean support of an",
        f"attention head, of 64; score: sparsemax score; ε-ppl: ε-perplexity, ε = {EPSILON:g}; α: learned, lowest and",
        f"highest of {HEADS} heads and all seeds (the output of that row is entmax with α = 1.5); sec: per training.",
    ]
    return "\n".join(lines)

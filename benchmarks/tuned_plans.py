"""The tables that `tuned.py` can train: what stands in their rows, and the grid that each row is tuned on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

Values = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """A table: its rows, the grid they are tuned on, and the seeds of what was chosen.

    ``grid`` is searched in its order: a setting over all its values, those after it at ``start``, then the next one
    with the best of this one; or ``whole``, every combination. A cell of ``like`` takes what another one chose.
    ``data`` is what the data are called, ``figure`` what a setting is chosen by.
    """

    recipe: str
    config: str
    cells: dict[str, list[str]]
    grid: dict[str, tuple[float, ...]]
    start: Values
    figure: str
    seeds: tuple[int, ...] = (1, 2, 3)
    first: int = 2  # so many cells are compared in the first place, and done before all others
    common: tuple[str, ...] = ()
    whole: bool = False
    like: dict[str, str] = field(default_factory=dict)
    data: str = ""
    cells_are: str = "output / attention"
    least: bool = False  # of the figure the least is best

    def better(self, figures: dict[str, float]) -> float:
        """Larger is better; nothing is worse than to have failed."""
        value = figures.get(self.figure, math.nan)
        return -math.inf if math.isnan(value) else -value if self.least else value

    def options(self) -> list[Callable[[Values], list[Values]]]:
        """The stages of the search, each a function from what was best before to what is tried."""
        if self.whole:
            every = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
            return [lambda best: every]
        return [lambda best, key=key: [{**best, key: one} for one in self.grid[key]] for key in self.grid]


def pair(output: str, attention: str) -> list[str]:
    return [f"model.output.mapping={output}", f"model.attention.mapping={attention}"]


def three(output: str, attention: str, *more: str) -> list[str]:
    kinds = [
        word
        for kind in ("encoder", "decoder", "context")
        for word in (f"model.{kind}.mapping={attention}", f"model.{kind}.alpha=1.5")  # learned, if not told
    ]
    return [f"model.output.mapping={output}", *kinds, *more]


def learned(rate: int) -> list[str]:
    alphas = [f"model.{kind}.alpha=learned" for kind in ("encoder", "decoder", "context")]
    return three("entmax", "entmax", *alphas, f"train.alpha_lr={rate}")


def several_labels(data: str, rate: float) -> Plan:
    """Every last layer of `multilabel`; ``rate``, of rsoftmax, leaves the mean number of labels, rounded."""
    kinds = ("sigmoid", "softmax", "sparsemax", "sparsemax-hinge", "sparsehourglass", "entmax", "rsoftmax")
    cells = {kind: [f"model.layer={kind}"] for kind in (*kinds, "rsoftmax-predicted")}
    cells["rsoftmax"].append(f"model.rate={rate}")
    return Plan(
        "multilabel",
        "",
        {name: cells[name] for name in ("rsoftmax-predicted", *kinds)},
        {"train.lr": (0.002, 0.0005, 0.008), "train.weight_decay": (0.0, 0.3)},
        {},
        "micro F1",
        seeds=(1, 2, 3, 4, 5),
        first=len(cells),
        common=("train.eval_every=50", "train.tensorboard=false"),
        whole=True,
        data=data,
        cells_are="layer",
    )


def encoders(data: str, *words: str, rates: tuple[float, ...]) -> Plan:
    """MiniLM with three attention mappings; the rate of r-softmax is raised over the first half of the steps."""
    return Plan(
        "finetune",
        "minilm",
        {
            "softmax": ["model.mapping=softmax"],
            "r-softmax, rate 0.15": ["model.mapping=rsoftmax", "model.rate=0.15"],
            "sparsemax": ["model.mapping=sparsemax"],
        },
        {"train.lr": rates},
        {},
        "accuracy",
        first=3,
        common=(
            "train.steps=1000",  # in 400, little is learned of pairs
            "train.batch_tokens=512",
            "train.eval_every=100",
            "train.warmup=40",
            "train.tensorboard=false",
            *words,
        ),
        data=data,
        cells_are="attention",
    )


def pairs(data: str, *words: str) -> Plan:
    """Of GLUE, which hides the labels of its test data."""
    return encoders(data, "data.dev_is_test=true", *words, rates=(1e-4, 5e-5, 2.5e-5))


def language_models(
    data: str, shape: tuple[str, ...], heads: tuple[str, ...], first: int, rates: tuple[float, ...]
) -> Plan:
    """WikiText-2 by an LSTM under every head; a rate is chosen by the loss that the head trains on."""
    cells = {
        "linear": ["model.head=linear"],
        "PLIF": ["model.head=plif"],
        "1.5-entmax": ["model.head=linear", "model.output.mapping=entmax15"],
        "sigsoftmax": ["model.head=sigsoftmax"],
        "monotonic": ["model.head=monotonic"],
        "mixture of 5": ["model.head=mixture", "model.tanh=false"],
        "mixture of 5, PLIF": ["model.head=mixture-plif", "model.tanh=false"],
    }
    return Plan(
        "lm",
        "",
        {name: cells[name] for name in heads},
        {"train.lr": rates},
        {},
        "loss",
        seeds=(1, 2),
        first=first,
        common=(
            *shape,
            "train.columns=32",
            "train.window=32",
            "train.steps=1200",
            "train.eval_every=300",
            "train.eval_words=60000",
            "train.tensorboard=false",
        ),
        data=data,
        cells_are="head",
        least=True,
    )


def latent(recipe: str, data: str, methods: dict[str, list[str]], rates: tuple[float, ...], *words: str) -> Plan:
    """Every method of the paper's table; a rate is chosen by what the recipe itself watches."""
    bits = recipe == "bitvae"
    return Plan(
        recipe,
        "",
        methods,
        {"train.lr": rates},
        {},
        "loss" if bits else "accuracy",
        seeds=(1, 2) if bits else (1, 2, 3),
        first=len(methods),
        common=("train.tensorboard=false", *words),
        data=data,
        cells_are="method",
        least=bits,
    )


def by_name(*methods: str) -> dict[str, list[str]]:
    return {name: [f"model.method={name}"] for name in methods}


CATEGORICAL = by_name("sparse", "dense", "sfe", "sfe+", "nvil", "sum-sample", "gumbel", "st-gumbel")
REWARDED = {  # the paper's 0/1 rows of the game
    f"{name}, 0/1": [f"model.method={name}", "model.reward=right"] for name in ("sfe", "sfe+")
}


def bit_vectors(bits: int) -> dict[str, list[str]]:
    sampled = by_name("sparsemap", "topk", "sfe", "sfe+", "nvil", "gumbel", "st-gumbel")
    found = sampled | {"sparsemap, budget": ["model.method=sparsemap", f"model.budget={bits // 2}"]}
    return {name: [*words, f"model.bits={bits}"] for name, words in found.items()}


def post_editors() -> Plan:
    """What the decoder takes over from MiniLM, with the rate of its best kind; and sparse mappings in that kind."""
    kinds = ("self-tied", "dual-source", "random", "bert", "context-from-self", "context-tied", "feedforward-tied")
    sparse = [f"model.{kind}.mapping=entmax" for kind in ("encoder", "decoder", "context")]
    learned = [f"model.{kind}.alpha=learned" for kind in ("encoder", "decoder", "context")]
    cells = {kind: [f"model.kind={kind}"] for kind in kinds}
    cells["dual-source"] += ["model.width=128", "model.heads=4", "model.layers=3", "model.inner=256"]
    cells["self-tied, learned α"] = [*cells["self-tied"], *sparse, *learned]
    cells["self-tied, 1.5-entmax output"] = [*cells["self-tied"], "model.output.mapping=entmax15"]
    return Plan(
        "ape",
        "mlqe",
        cells,
        {"train.lr": (0.0003, 0.001)},
        {},
        "TER",
        seeds=(1, 2),
        first=len(cells),
        like={name: "self-tied" for name in cells if name not in ("self-tied", "dual-source")},
        common=(
            "search.beam=1",
            "search.average=false",  # or it would go on behind the first end, for a better mean
            "train.steps=1500",
            "train.batch_tokens=512",
            "train.warmup=100",
            "train.eval_every=375",
            "train.patience=0",
            "train.precision=bf16-mixed",
            "train.tensorboard=false",
        ),
        data="mlqe",
        cells_are="decoder",
        least=True,
    )


SMALL_INFLECTION = (
    "model.width=64",
    "search.exact_budget=0",
    "train.steps=1200",
    "train.batch_tokens=512",
    "train.eval_every=150",
    "train.patience=3",
    "train.tensorboard=false",
)
PLANS = {
    "scene": several_labels("scene", 0.834),
    "yeast": several_labels("yeast", 0.715),
    "corel5k": several_labels("corel5k", 0.9895),
    "sst2": encoders("sst2", rates=(1e-4, 5e-5, 2.5e-5, 2e-4)),
    "rte": pairs("rte", "data.text=sentence1,sentence2", "data.label=label"),
    "mrpc": pairs("mrpc", "data.text=#1 String,#2 String", "data.label=Quality"),
    "wikitext2": language_models(
        "wikitext2",
        ("model.embedding=32", "model.hidden=200"),
        ("linear", "PLIF", "1.5-entmax", "sigsoftmax", "monotonic", "mixture of 5", "mixture of 5, PLIF"),
        first=6,
        rates=(0.02, 0.04, 0.01),
    ),
    "wikitext2-wide": language_models(
        "wikitext2-wide",
        ("model.embedding=100", "model.hidden=200"),
        ("linear", "PLIF", "mixture of 5", "1.5-entmax"),
        first=3,
        rates=(0.02, 0.01),  # 0.04 was worse for every head of the narrow model
    ),
    "ssvae": latent(
        "ssvae",
        "ssvae",
        CATEGORICAL,
        (0.0005, 0.002),
        "train.labelled=5000",
        "train.supervised=4000",
        "train.unlabelled=9",
        "train.steps=6500",
        "train.eval_every=500",
        "train.weight_decay=1e-5",
    ),
    "emergent": latent(
        "emergent",
        "emergent",
        CATEGORICAL | REWARDED,
        (0.004, 0.001, 0.012),
        "train.steps=1500",
        "train.eval_every=250",
    ),
    "bits32": latent(
        "bitvae",
        "bits32",
        bit_vectors(32),
        (0.002, 0.005),  # 0.0007 was far worse for sparsemap
        "train.batch=16",
        "train.steps=1200",
        "train.eval_every=300",
    ),
    "bits128": latent(
        "bitvae",
        "bits128",
        bit_vectors(128),
        (0.002, 0.005),
        "train.batch=16",
        "train.steps=800",
        "train.eval_every=200",
    ),
    "mlqe": post_editors(),
    "inflection": Plan(
        "inflection",
        "sigmorphon",
        {
            "softmax / softmax": pair("softmax", "softmax"),
            "1.5-entmax / 1.5-entmax": pair("entmax", "entmax"),
            "softmax / 1.5-entmax": pair("softmax", "entmax"),
            "1.5-entmax / softmax": pair("entmax", "softmax"),
            "sparsemax / sparsemax": pair("sparsemax", "sparsemax"),
        },
        {"train.lr": (0.01, 0.005, 0.02, 0.04), "model.dropout": (0.3, 0.5)},
        {"model.dropout": 0.3},
        "accuracy",
        common=("data.languages=turkish", *SMALL_INFLECTION),
    ),
    "spanish": Plan(  # inflection of another language, with what each cell chose on Turkish
        "inflection",
        "sigmorphon",
        {
            "softmax / softmax": [*pair("softmax", "softmax"), "train.lr=0.02", "model.dropout=0.3"],
            "1.5-entmax / 1.5-entmax": [*pair("entmax", "entmax"), "train.lr=0.02", "model.dropout=0.3"],
            "softmax / 1.5-entmax": [*pair("softmax", "entmax"), "train.lr=0.01", "model.dropout=0.5"],
            "1.5-entmax / softmax": [*pair("entmax", "softmax"), "train.lr=0.02", "model.dropout=0.3"],
            "sparsemax / sparsemax": [*pair("sparsemax", "sparsemax"), "train.lr=0.02", "model.dropout=0.3"],
        },
        {},
        {},
        "accuracy",
        seeds=(1, 2),
        first=5,
        common=("data.languages=spanish", *SMALL_INFLECTION),
        data="spanish",
    ),
    "translation": Plan(
        "translation",
        "multi30k",
        {
            "softmax / softmax": three("softmax", "softmax"),
            "1.5-entmax / 1.5-entmax": three("entmax", "entmax"),
            "1.5-entmax / softmax": three("entmax", "softmax"),
            "softmax / 1.5-entmax": three("softmax", "entmax"),
            "1.5-entmax / learned α, rate × 1": learned(1),
            "1.5-entmax / learned α, rate × 5": learned(5),
        },
        {"train.lr": (0.006, 0.012), "model.smoothing": (0.0, 0.1)},
        {"model.smoothing": 0.0},
        "BLEU",
        seeds=(1, 2),
        like={
            "1.5-entmax / learned α, rate × 1": "1.5-entmax / 1.5-entmax",
            "1.5-entmax / learned α, rate × 5": "1.5-entmax / 1.5-entmax",
        },
        common=(
            "data.vocabulary=2000",
            "model.width=64",
            "model.inner=128",
            "model.layers=2",
            "search.exact_budget=0",
            "train.steps=2500",
            "train.eval_every=250",
            "train.tensorboard=false",
        ),
    ),
}

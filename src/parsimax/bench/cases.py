"""Every case of the speed table, as data. A limit is the largest ratio of ours to the other side that passes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

NORMAL, DENSE = 2.0, 0.01  # what unit-normal scores are multiplied by; the second leaves rows nearly dense
HALF_EXTRA = 0.25  # what half types may add to a limit
DENSE_LIMIT, DENSE_LIMIT_LEARNED = 2.5, 4.0
PEER_LIMITS = {"topk": 1 / 4, "sort": 1 / 15, "bisect": 1 / 15}
TOPK = 100  # the k that the peer's top-k is called with
# limits of mappings without a parameter, and of entmax with a learned α
SHAPES = {
    (256, 32000): (0.75, 1.5),
    (4096, 1000): (0.95, 1.5),
    (8, 8, 512, 512): (1.0, 1.0),
    (65536, 64): (1.1, 1.6),
}
# limits of the other mappings, on the first three shapes
OTHERS = {
    "rsoftmax_0.1": 2.0,
    "rsoftmax_0.5": 2.0,
    "rsoftmax_0.9": 2.0,
    "tsoftmax": 1.5,
    "sigsoftmax": 1.3,
    "sparsehourglass": 1.3,
    "topk_sparsemax": 1.3,
    "sparsegen": 1.2,
    "budget_sparsemax": 1.5,
    "normmax": 2.5,
}
DIMS = {(64, 2048, 6): 0, (32, 1000, 64): 1}  # rows along another dimension: as tree models have them, and channels
DIM_LIMIT, STEEP_LIMIT = 1.5, 3.0  # the second: float64 with α above 2
SEGMENTS = ((4096, 8, 64), (1024, 4, 300))  # segments, heads, the longest; lengths are uniform from an eighth of it on
SEGMENT_LIMIT = 1.5  # against softmax of the padded rows
ATTENTION = {1024: 0.5, 2048: 0.45, 4096: 0.4}
ATTENTION_LEARNED = 0.8
DROPOUT = 0.1
ATTENTION_DROPOUT = 0.5  # against SDPA with the same dropout
DROPOUT_SIZES = (128, 512, 1024, 2048)
# Attention by other mappings: with which setting it is measured
MAPPED: dict[str, dict[str, Any]] = {
    "sparsegen": {"lam": 0.25},
    "topk_sparsemax": {"k": 8},
    "budget_sparsemax": {"budget": 2.0},
    "rsoftmax": {"rate": 0.9},
    "tsoftmax": {"t": 1.5},
    "normmax": {"alpha": 2.0},
}
ATTENTION_MAPPED = 1.0
MAPPED_SIZES = (512, 1024, 2048)
PADDED = 0.75  # of the keys of a padded case are real
HEAD_SHAPES = ((512, 400, 10000), (2048, 512, 32000))  # tokens, width, classes
STRUCTURES = {"bits": (64, 128), "bits_closed": (64, 128), "chain": (64, 50, 20), "assignment": (64, 20, 20)}
STRUCTURES["tree"] = (64, 25, 26)
LOOPED = 4  # of the 64 items are what the other side has time for: the same in plain torch, item by item
STRUCTURED_LIMIT = (64 / LOOPED) / 50
ISING = (16, 10)  # items, and the side of a square grid with a pair for each edge
ELEMENTS = 8_000_000  # of the cases with ever longer rows


@dataclass(frozen=True)
class Case:
    """Two sides on the same inputs; ``ours`` and ``against`` are names in :data:`parsimax.bench.sides.SIDES`.

    ``shape`` is that of the scores, whose rows lie along ``dim``; (tokens, d, classes) for the linear loss and for
    output heads; (heads, n, d) for attention; (segments, heads, longest) for segments. ``scale`` is that of the scores;
    with ``nonzeros`` it is searched such that a row keeps about so many. ``threads`` overrides the number asked for.
    """

    name: str
    group: str
    shape: tuple[int, ...]
    ours: str
    against: str
    limit: float | None
    dtype: str = "float32"
    dim: int = -1
    scale: float = NORMAL
    nonzeros: int | None = None
    causal: bool = False
    padded: bool = False
    gradient: bool = True
    threads: int | None = None
    memory: bool = False
    memory_limit: float | None = None

    @property
    def learned(self) -> bool:
        return self.ours.endswith("_learned")


@dataclass(frozen=True)
class Scaling:
    """How the time or the peak memory of ``cases`` grows with ``sizes``: the log-log slope.

    Of memory the slope itself must be at most ``limit``; of time, what it has more than the slope of the other side.
    """

    name: str
    sizes: tuple[int, ...]
    cases: tuple[Case, ...]
    quantity: str
    limit: float
    group: str = "scaling"


def _mappings() -> Iterator[Case]:
    for shape, (limit, learned) in SHAPES.items():
        for ours in ("sparsemax", "entmax15", "entmax_learned"):
            top = learned if ours.endswith("_learned") else limit
            yield Case(f"{ours}/{'x'.join(map(str, shape))}", "mapping", shape, ours, "softmax", top)


def _other_mappings() -> Iterator[Case]:
    for shape in [*SHAPES][:3]:
        for ours, limit in OTHERS.items():
            yield Case(f"{ours}/{'x'.join(map(str, shape))}", "others", shape, ours, "softmax", limit)


def _other_dims() -> Iterator[Case]:
    for shape, dim in DIMS.items():
        for ours in ("sparsemax", "entmax15"):
            name = f"{ours}/{'x'.join(map(str, shape))}/dim{dim}"
            yield Case(name, "dims", shape, ours, "softmax", DIM_LIMIT, dim=dim)


def _steep() -> Iterator[Case]:
    for ours in ("entmax_3", "entmax_steep_learned"):
        yield Case(f"{ours}/1024x1000/float64", "steep", (1024, 1000), ours, "softmax", STEEP_LIMIT, dtype="float64")


def _segments() -> Iterator[Case]:
    for shape in SEGMENTS:
        for ours in ("segment_softmax", "segment_sparsemax", "segment_entmax15", "segment_entmax"):
            name = f"{ours}/{'x'.join(map(str, shape))}"
            yield Case(name, "segments", shape, ours, "padded_softmax", SEGMENT_LIMIT)


def _losses() -> Iterator[Case]:
    yield Case("entmax15_loss/1024x32000", "loss", (1024, 32000), "entmax15_loss", "cross_entropy", 0.6)
    for ours in ("entmax15_soft_loss", "entmax_soft_loss"):
        yield Case(f"{ours}/512x32000", "loss", (512, 32000), ours, "soft_cross_entropy", 1.0)
    yield Case(
        "linear_entmax_loss/2048x512x32000",
        "loss",
        (2048, 512, 32000),
        "linear_entmax_loss",
        "linear_cross_entropy",
        0.42,
        nonzeros=10,
        memory=True,
        memory_limit=1 / 8,
    )


def _heads() -> Iterator[Case]:
    """Losses of output heads against a linear layer and cross-entropy."""
    limits = {"head_softmax": 1.1, "head_sigsoftmax": 1.1, "head_plif": 1.3, "head_monotonic": 1.3}
    limits |= {"head_mixture": 9.0, "head_mixture_plif": 9 * 1.3}
    for shape in HEAD_SHAPES:
        for ours, limit in limits.items():
            name = f"{ours}_loss/{'x'.join(map(str, shape))}"
            yield Case(name, "head", shape, f"{ours}_loss", "linear_cross_entropy", limit, memory=True, memory_limit=1)


def _attention(n: int, causal: bool, ours: str, limit: float | None) -> Case:
    name = f"{ours}/{n}/{'causal' if causal else 'full'}"
    return Case(name, "attention", (8, n, 64), ours, "sdpa", limit, nonzeros=20, causal=causal)


def _attentions() -> Iterator[Case]:
    for n, limit in ATTENTION.items():
        for causal in (False, True):
            yield _attention(n, causal, "entmax_attention", limit)
            yield _attention(n, causal, "entmax_attention_learned", ATTENTION_LEARNED)


def _with_dropout() -> Iterator[Case]:
    for n in DROPOUT_SIZES:
        for causal in (False, True):
            for ours in ("entmax_attention_dropout", "entmax_attention_dropout_learned"):
                yield replace(_attention(n, causal, ours, ATTENTION_DROPOUT), against="sdpa_dropout")


def _mapped(name: str, n: int, form: str, limit: float | None) -> Case:
    case = _attention(n, form == "causal", f"attention_{name}", limit)
    return replace(case, name=f"attention_{name}/{n}/{form}", padded=form == "padded", against="sdpa")


def _by_mapping() -> Iterator[Case]:
    for name in MAPPED:
        for n in MAPPED_SIZES:
            for form in ("full", "causal", "padded"):
                yield _mapped(name, n, form, ATTENTION_MAPPED)


def _in_half(case: Case, dtype: str = "bfloat16") -> Case:
    limit = None if case.limit is None else case.limit + HALF_EXTRA
    return replace(case, name=f"{case.name}/{dtype}", dtype=dtype, limit=limit)


def _in_float16() -> Iterator[Case]:
    """Of each kind of work some: kernels differ from bfloat16 only in how numbers are read and written."""
    some = [case for case in _other_mappings() if case.shape == (8, 8, 512, 512)]
    some += [*_other_dims(), *_segments()]
    some += [case for case in _with_dropout() if case.shape[1] == 512]
    some += [case for case in _by_mapping() if case.shape[1] == 512 and case.causal]
    for case in some:
        yield _in_half(case, "float16")


def _nearly_dense(case: Case) -> Case:
    limit = DENSE_LIMIT_LEARNED if case.learned else DENSE_LIMIT
    return replace(
        case, name=f"{case.name}/dense", group="dense", scale=DENSE, nonzeros=None, limit=limit, memory_limit=None
    )


def _against_peer(case: Case) -> Iterator[Case]:
    """The same case against each way of the ``entmax`` package to compute it."""
    if "soft_loss" in case.ours:  # the peer has no soft targets
        return
    for way, limit in PEER_LIMITS.items():
        exists = way == "bisect" or not case.learned
        if exists and not (way == "topk" and case.shape[-1] <= TOPK):
            peer = f"peer_{case.ours}_{way}"
            yield replace(
                case,
                name=f"{case.name}/peer-{way}",
                group="peer",
                against=peer,
                limit=limit,
                memory=False,
                memory_limit=None,
            )


def _small() -> Iterator[Case]:
    for ours in ("sparsemax", "entmax15", "entmax"):
        case = Case(f"{ours}/2x10/forward", "small", (2, 10), ours, "softmax", 2.0, gradient=False)
        yield case
        # torch.softmax wakes its second thread even for 20 numbers, which takes it up to milliseconds on a busy machine
        yield replace(case, name=f"{case.name}/one-thread", limit=None, threads=1)


def _structures() -> Iterator[Case]:
    for ours, shape in STRUCTURES.items():
        name = f"sparsemap_{ours}/{'x'.join(map(str, shape))}"
        against = f"loop_{ours.removesuffix('_closed')}"
        yield Case(name, "structured", shape, f"sparsemap_{ours}", against, STRUCTURED_LIMIT, scale=1.0)
    for kind in ("bits", "chain"):
        shape = STRUCTURES[kind]
        for ours in (f"topk_{kind}", f"kbest_{kind}"):  # the second: the kernel alone
            name = f"{ours}/{'x'.join(map(str, shape))}"
            limit = STRUCTURED_LIMIT
            yield Case(name, "structured", shape, ours, f"loop_{ours}", limit, scale=1.0, gradient=False)


def _graphs() -> Iterator[Case]:
    items, side = ISING
    name = f"factor_graph_ising/{items}x{side}x{side}"
    yield Case(name, "structured", (items, side * side), "ising", "loop_ising", items / LOOPED, scale=1.0)


def _tiny() -> Iterator[Case]:
    for shape in ((5, 5), (8, 8)):
        for ours in ("sparsemax", "entmax15", "entmax"):
            yield Case(f"{ours}/{'x'.join(map(str, shape))}", "small", shape, ours, "softmax", 2.0)
        for ours in ("sparsemax", "entmax15"):  # without kernels
            name = f"{ours}/{'x'.join(map(str, shape))}/plain-torch"
            yield Case(name, "small", shape, f"plain_{ours}", f"peer_{ours}_sort", 1.0)


def _scaling() -> Iterator[Scaling]:
    lengths = (1_000, 10_000, 100_000, 1_000_000)
    for ours in ("sparsemax", "entmax15", "entmax_learned"):
        cases = tuple(Case(f"{ours}/{n}", "scaling", (ELEMENTS // n, n), ours, "softmax", None) for n in lengths)
        yield Scaling(f"time/{ours}", lengths, cases, "time", 0.1)
    sizes = (1024, 2048, 4096, 8192)
    attentions = ("entmax_attention", "entmax_attention_learned")
    for ours in (*attentions, "entmax_attention_dropout", "entmax_attention_dropout_learned"):
        sparse = tuple(_attention(n, False, ours, None) for n in sizes)
        yield Scaling(f"memory/{ours}", sizes, sparse, "memory", 1.1)
        yield Scaling(f"memory/{ours}/dense", sizes, tuple(map(_nearly_dense, sparse)), "memory", 1.1)
    for name in MAPPED:
        cases = tuple(_mapped(name, n, "full", None) for n in sizes)
        yield Scaling(f"memory/attention_{name}", sizes, cases, "memory", 1.1)


def _registry() -> Iterator[Case | Scaling]:
    plain = [*_mappings(), *_losses()]
    halves = [_in_half(case) for case in plain]
    others = [*_other_mappings()]
    attentions = [*_attentions()]
    dense = [_nearly_dense(case) for case in (*plain, *halves)]
    yield from (*_small(), *_tiny(), *others, *map(_in_half, others), *_other_dims(), *_steep(), *_segments())
    yield from (*map(_in_half, (*_other_dims(), *_segments())), *_in_float16())
    yield from (
        *plain,
        *_heads(),
        *attentions,
        *_with_dropout(),
        *_by_mapping(),
        *map(_in_half, (*_with_dropout(), *_by_mapping())),
        *halves,
        *dense,
        *map(_nearly_dense, attentions),
    )
    for case in (*plain, *halves, *dense):
        yield from _against_peer(case)
    yield from _scaling()
    yield from _structures()
    yield from _graphs()


CASES: dict[str, Case | Scaling] = {case.name: case for case in _registry()}
GROUPS = tuple(dict.fromkeys(case.group for case in CASES.values()))


def select(patterns: list[str]) -> list[Case | Scaling]:
    """The cases that a pattern names: a name, a group, a part of names, or names with ``*``. No pattern means all."""
    chosen = dict.fromkeys(CASES, False)
    for pattern in patterns or ["*"]:
        found = [n for n, c in CASES.items() if pattern == c.group or pattern in n or fnmatchcase(n, pattern)]
        found = [pattern] if pattern in CASES else found
        if not found:
            near = difflib.get_close_matches(pattern, [*CASES, *GROUPS, *_words()], n=3, cutoff=0.3)
            hint = f"; the nearest: {', '.join(near)}" if near else ""
            raise ValueError(f"no case is named {pattern!r}{hint}. See: parsimax bench --list")
        chosen.update(dict.fromkeys(found, True))
    return [CASES[name] for name, wanted in chosen.items() if wanted]


def _words() -> set[str]:
    return {word for name in CASES for word in name.split("/")}

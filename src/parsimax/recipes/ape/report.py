"""A page of post-edits: what was kept, changed and added, and at which text the decoder looked."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..kit.runs import Run, write
from ..text.codec import PAD, Codec
from ..text.lengths import spread
from ..text.seq2seq.evaluate import decode
from ..text.seq2seq.examples import Examples
from ..text.seq2seq.model import Seq2Seq
from ..text.seq2seq.recipe import Pairs
from ..text.seq2seq.settings import Search
from .dual import DualLayer, DualSource
from .edits import edits
from .model import PostEditor, segments
from .task import written

SHOWN = 30
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1a1a1a; background: #fff }
h1 { font-size: 1.3rem }
h2 { font-size: 1rem; margin: 2rem 0 .3rem }
th { text-align: left; font-weight: 500; color: #555; padding-right: 1rem }
td, th { vertical-align: top }
.replace { background: #ffe9a8 }
.insert { background: #c9efc9 }
.delete { background: #f6c9c9; text-decoration: line-through }
.shift { background: #cfe0fb }
.key span { padding: 0 .4em; margin-right: .6em }
.bar { display: inline-block; width: 12rem; height: .8rem; background: #d98f3d; vertical-align: middle }
.bar i { display: block; height: 100%; background: #3d76d9 }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #161616 }
  th { color: #aaa }
  .replace { background: #6b5310 }
  .insert { background: #1f5a1f }
  .delete { background: #6a2323 }
  .shift { background: #24467a }
}
"""
KEY = (
    '<p class="key"><span class="keep">kept</span><span class="replace">changed</span><span class="insert">added</span>'
    '<span class="delete">removed</span><span class="shift">moved</span></p>'
)

ATTENTION = "The bars are the share of the decoder's attention that each text gets."
ADDED = (
    "This model attends to each text by an attention of its own, whose weights sum to 1 whatever it sees: a share of "
    "attention would always be a half. The bars are the share in length of what each of the two adds to the states."
)
REFERENCE = "They are taken while the decoder reads the post-edit by a person, token after token, not its own output."


@torch.no_grad()
def shares(model: PostEditor, examples: Examples) -> Tensor:
    """(layers, examples): of the decoder's attention to both texts, the share that the source gets."""
    batch = examples.batch(range(len(examples)))
    second, _ = segments(batch.source)
    memory, allowed = model.encode(batch.source)
    x, real, found = model.entered(batch.entered), batch.wanted != PAD, []
    for layer in model.decoder:
        x, seen = layer(x, memory, allowed, weights=True)
        assert seen is not None
        first = (seen * (second == 0)[:, None, None, :]).sum(-1).mean(1)  # (B, T)
        found.append((first * real).sum(1) / real.sum(1))
    return torch.stack(found)


@torch.no_grad()
def added(model: DualSource, examples: Examples) -> Tensor:
    """(layers, examples): of what both contexts add to the decoder's states, by length, the share of the source's."""
    batch = examples.batch(range(len(examples)))
    read = model.encode(batch.source)
    places = torch.arange(batch.entered.shape[1]).expand_as(batch.entered)
    x, real, found = model.embed(batch.entered, places), batch.wanted != PAD, []
    for layer in model.decoder:
        assert isinstance(layer, DualLayer)
        own, _ = layer.own(x, causal=True)
        first, _ = layer.context_source(own, read.memories[0], read.paddings[0])
        both, _ = layer.context_machine(first, read.memories[1], read.paddings[1])
        x = layer.think(both)
        one, other = (first - own).norm(dim=-1), (both - first).norm(dim=-1)
        share = one / (one + other).clamp_min(torch.finfo(one.dtype).tiny)
        found.append((share * real).sum(1) / real.sum(1))
    return torch.stack(found)


def report(model: Seq2Seq, codec: Codec, pairs: Pairs, search: Search, run: Run, folder: Path) -> list[Path]:
    """``edits.html`` in ``folder``, with the share that each text gets of what the decoder looks at."""
    examples = Examples.of([pairs[index] for index in spread(len(pairs), SHOWN)], codec)
    model.eval()
    found = decode(model, examples, search, lambda text: None)
    by_layer = shares(model, examples) if isinstance(model, PostEditor) else None
    said = ATTENTION
    if isinstance(model, DualSource):
        by_layer, said = added(model, examples), ADDED
    parts = [f"<h1>Post-edits: {html.escape(str(run.folder))}</h1>", KEY]
    if by_layer is not None:
        parts.append("<h2>Where the decoder looks, by layer: source (blue) and machine output (orange)</h2>")
        parts.append(f"<p>{said} {REFERENCE}</p>")
        parts.append(_table([(f"layer {number}", _bar(row.mean().item())) for number, row in enumerate(by_layer)]))
    for index, one in enumerate(found):
        source, _, machine = examples.texts[index][0].partition("\t")
        output = written(codec, examples.texts[index][0], one)
        rows = [
            ("source", html.escape(source)),
            ("machine output", html.escape(codec.clean(machine))),
            ("post-edit by the model", coloured(codec.clean(machine).split(), output.split())),
            (
                "post-edit by a person",
                coloured(codec.clean(machine).split(), codec.clean(examples.texts[index][1]).split()),
            ),
        ]
        if by_layer is not None:
            rows += [(f"layer {layer}", _bar(row[index].item())) for layer, row in enumerate(by_layer)]
        parts += [f"<h2>{index + 1}</h2>", _table(rows)]
    page = folder / "edits.html"
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>Post-edits</title><style>{STYLE}</style>'
    write(page, f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>')
    return [page]


def coloured(before: Sequence[str], after: Sequence[str]) -> str:
    """The words after, with what was done to those before."""
    parts = []
    for edit in edits(before, after):
        removed = edit.old if edit.kind in ("delete", "replace") else ()
        if removed:
            parts.append(f'<span class="delete">{html.escape(" ".join(removed))}</span>')
        if edit.new:
            parts.append(f'<span class="{edit.kind}">{html.escape(" ".join(edit.new))}</span>')
    return " ".join(parts)


def _bar(share: float) -> str:
    return f'<span class="bar"><i style="width: {100 * share:.1f}%"></i></span> {100 * share:.0f} % source'


def _table(rows: Sequence[tuple[str, Any]]) -> str:
    return "<table>" + "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows) + "</table>"

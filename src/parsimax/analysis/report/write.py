"""A recording as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from ..recording import Recording
from ..roles import HeadRoles
from ..roles import roles as find_roles
from ..tables import Table
from .facts import page_facts
from .pack import pack

SCRIPTS = ("data.js", "paint.js", "words.js", "overview.js", "matrix.js", "main.js")
UNWRITABLE = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
LARGEST = 400_000_000  # bytes; beyond, browsers take long to open the page


def write_report(
    recording: Recording,
    path: str | os.PathLike[str],
    title: str = "Attention",
    *,
    examples: Sequence[int] | None = None,
    roles: Table[HeadRoles] | None = None,
    captions: Sequence[str] | None = None,
    facts: Mapping[str, str] | None = None,
    pictures: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write one HTML file in which every head of a recording can be looked at.

    The file opens in any browser without a network: all heads as small maps of their exact zeros, with α, density and
    role, sorted and filtered as one likes; an opened head shows its weights token by token. Weights are stored without
    their zeros and rounded to steps of about 1/65 000 (half a step is the largest error); no weight becomes zero by it
    and no zero becomes anything else.

    Args:
        recording: what :func:`record` recorded.
        path: of the file; its folder is made if it is not there.
        title: the heading of the page.
        examples: the numbers of those to show; all of them by default. Figures of heads are means over these.
        roles: of :func:`roles`, with predicates of your own; by default those that it finds by itself.
        captions: a line about each shown example, such as whether its target is the reference or the model's own.
        facts: what else is known, by name, for a table below the heads.
        pictures: PNG files by their titles, shown below the heads.
        overwrite: whether a file that is there may be replaced; else it stays, and ``FileExistsError`` is raised.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile, torch
        >>> from parsimax import analysis
        >>> weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> recording = analysis.Recording.from_weights({"layer.0": weights}, tokens=[["so", "it"]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = analysis.write_report(recording, f"{folder}/report.html", title="Two tokens")
        ...     path.read_text(encoding="utf-8").splitlines()[0]
        '<!doctype html>'
    """
    recording = _chosen(recording, examples)
    if captions is not None and len(captions) != len(recording.examples):
        raise ValueError(f"write_report: {len(captions)} captions for {len(recording.examples)} examples")
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"write_report: {path} is a folder; name a file in it, such as {path / 'report.html'}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"write_report: {path} is there already; pass overwrite=True to replace it")
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")  # so that no half-written page ever has the name of a page
    try:
        with open(half, "w", encoding="utf-8", newline="\n") as file:
            more = more_html(facts or {}, pictures or {})
            found = find_roles(recording) if roles is None else roles
            file.writelines(_page(recording, title, found, captions, more))
        os.replace(half, path)
    except OSError as error:  # a full disk is told without a name
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        half.unlink(missing_ok=True)
    return path


def _chosen(recording: Recording, examples: Sequence[int] | None) -> Recording:
    total = len(recording.examples)
    if not total or not recording.layers:
        raise ValueError(
            "write_report: the recording is empty; run the model inside `with parsimax.analysis.record(model)` first"
        )
    if examples is not None:
        wrong = [i for i in examples if not -total <= i < total]
        if wrong or not examples:
            raise ValueError(
                f"write_report: examples must be numbers from 0 to {total - 1}, at least one, got {list(examples)}"
            )
        recording = Recording(recording.layers, [recording.examples[i] for i in examples])
    # A non-zero takes 3 bytes, and base64 makes 4 of them.
    size = 4 * sum(weights.values.numel() for example in recording.examples for weights in example.weights)
    if size > LARGEST:
        raise ValueError(
            f"write_report: the page would have about {size / 1e6:.0f} MB, more than browsers like "
            f"({LARGEST / 1e6:.0f} MB); pass examples=… to show some of the {len(recording.examples)} examples, or "
            "record a sparser mapping"
        )
    return recording


def more_html(facts: Mapping[str, str], pictures: Mapping[str, bytes]) -> str:
    """A table and pictures; nothing if there are none."""

    def safe(text: str) -> str:
        return html.escape(_plain(text))

    rows = "".join(f"<div><dt>{safe(name)}</dt><dd>{safe(value)}</dd></div>" for name, value in facts.items())
    shown = "".join(
        f'<figure><img alt="{safe(name)}" src="data:image/png;base64,{base64.b64encode(content).decode()}">'
        f"<figcaption>{safe(name)}</figcaption></figure>"
        for name, content in pictures.items()
    )
    table = f"<dl>{rows}</dl>" if rows else ""
    return f'<section id="more" aria-label="The run">{table}{shown}</section>' if table or shown else ""


def _page(
    recording: Recording, title: str, roles: Table[HeadRoles], captions: Sequence[str] | None, more: str
) -> Iterator[str]:
    """The page in pieces: what is seen first, then the weights, a block at a time."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    parts = {
        "TITLE": html.escape(_plain(title)),
        "STYLE": _asset("report.css"),
        "SCRIPT": f'(() => {{\n"use strict";\n{script}}})();',
        # In JSON a < can always be written so, and then nothing in a token can end the script element.
        "MORE": more,
        "REPORT": json.dumps(page_facts(recording, roles, captions), allow_nan=False, separators=(",", ":")).replace(
            "<", "\\u003c"
        ),
    }
    parts |= {f"{name}_HASH": _digest(parts[name]) for name in ("STYLE", "SCRIPT")}
    before, _, after = _asset("page.html").partition("@@WEIGHTS@@")
    yield re.sub("@@([A-Z_]+)@@", lambda mark: parts[mark[1]], before)  # in one pass: a title cannot name a part
    for i, example in enumerate(recording.examples):
        for j, weights in enumerate(example.weights):
            block = pack(weights)
            planes = " ".join(map(str, block.planes))
            yield f'<script type="text/plain" id="w{i}-{j}" data-planes="{planes}" data-scale="{block.scale!r}">'
            yield f"{block.text}</script>\n"
    yield after


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plain(text: str) -> str:
    """Without what HTML and UTF-8 cannot hold, and without what turns the text around it."""
    return re.sub(UNWRITABLE, "\N{REPLACEMENT CHARACTER}", text)


def _digest(text: str) -> str:
    """What a content security policy calls an inline script or style, so that no other can run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

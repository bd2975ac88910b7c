"""The results as lines on a terminal, as CSV and as a page for the docs."""

from __future__ import annotations

import csv
import math
import os
import platform
from collections.abc import Iterable
from pathlib import Path

from .cases import GROUPS, Case
from .measure import Result, Times

TITLES = {
    "small": "Small tensors: 2 × 10 forward; 25 and 64 scores forward and backward",
    "mapping": "Mappings, forward and backward",
    "others": "Other mappings, forward and backward",
    "dims": "Rows along another dimension, forward and backward",
    "steep": "float64 with α above 2, forward and backward",
    "segments": "Segments, forward and backward",
    "loss": "Losses, forward and backward",
    "head": "Losses of output heads, forward and backward",
    "attention": "Attention, forward and backward",
    "dense": "Nearly dense rows: scores × 0.01",
    "peer": "Against the `entmax` package",
    "scaling": "Growth: log-log slopes",
    "structured": "Structures: SparseMAP forward and backward, top-10 forward; against 4 of the items in plain torch",
}


def machine() -> dict[str, str]:
    """Where and with what the figures were taken."""
    import torch

    import parsimax

    from ..kernels import dispatch, library

    return {
        "machine": platform.node(),
        "cpu": _cpu(),
        "system": platform.system(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "parsimax": parsimax.__version__,
        "kernels": f"{dispatch.wanted()}: {library.level()}",
    }


def load() -> float:
    """Processes that wanted to run in the last minute; above the number of cores, times mean little."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def verdict(result: Result) -> str:
    return {True: "pass", False: "FAIL", None: "–"}[result.passed]


def _number(value: float, form: str = ".2f") -> str:
    return "–" if math.isnan(value) else format(value, form)


def _milliseconds(times: Times | None) -> str:
    return "–" if times is None else f"{1e3 * times.minimum:.4g}"


def header() -> str:
    return f"{'case':48} {'ours ms':>9} {'other ms':>9} {'ratio':>7} {'limit':>6}  {'':4}  remarks"


def line(result: Result) -> str:
    """One row for a terminal."""
    limit = _number(math.nan if result.case.limit is None else result.case.limit, ".3g")
    cells = f"{_milliseconds(result.ours):>9} {_milliseconds(result.against):>9} {_number(result.value, '.3f'):>7}"
    return f"{result.case.name:48} {cells} {limit:>6}  {verdict(result):4}  {remarks(result)}".rstrip()


def remarks(result: Result) -> str:
    """What does not fit into a column."""
    if result.problem is not None:
        return result.problem
    said = []
    if result.ours and result.against:
        said.append(
            f"p20 {1e3 * result.ours.p20:.4g}/{1e3 * result.against.p20:.4g}, "
            f"p50 {1e3 * result.ours.p50:.4g}/{1e3 * result.against.p50:.4g}, {result.ours.rounds} rounds"
        )
    if not math.isnan(result.nonzeros):
        said.append(f"{result.nonzeros:.1f} non-zeros")
    if result.memory:
        most = result.case.memory_limit if isinstance(result.case, Case) else None
        bound = "" if most is None else f" of at most {most:.3g}"
        said.append(
            f"extra memory {result.memory[0] / 1e6:.0f}/{result.memory[1] / 1e6:.0f} MB = "
            f"{result.memory_ratio:.3f}{bound}"
        )
    if result.slopes:
        said.append(f"slopes {result.slopes[0]:.2f} / {result.slopes[1]:.2f}; {', '.join(result.notes)}")
    return "; ".join(said)


def write(results: list[Result], wanted: int, csv_file: str | None, page: str | None, load_at_start: float) -> None:
    """Both files, where they are asked for; ``wanted`` is the number of cases of the whole run."""
    if csv_file:
        write_csv(results, Path(csv_file), load_at_start)
    if page:
        Path(page).parent.mkdir(parents=True, exist_ok=True)
        Path(page).write_text(markdown(results, wanted, load_at_start), encoding="utf-8")


def write_csv(results: Iterable[Result], path: Path, load_at_start: float) -> None:
    """A line a case, each with the machine and the versions, so that files can be put together."""
    common = {**machine(), "load_start": f"{load_at_start:.2f}", "load_end": f"{load():.2f}"}
    rows = [{**_fields(result), **common} for result in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _fields(result: Result) -> dict[str, object]:
    case = result.case
    one = case if isinstance(case, Case) else case.cases[0]
    fields: dict[str, object] = {
        "case": case.name,
        "group": case.group,
        "ours": one.ours,
        "against": one.against,
        "dtype": one.dtype,
        "scale": one.scale if one.nonzeros is None else "",
        "gradient": one.gradient,
        "value": result.value,
        "limit": case.limit,
        "verdict": verdict(result),
        "problem": result.problem or "",
        "error": result.error,
        "nonzeros": result.nonzeros,
    }
    for name, times in (("ours", result.ours), ("against", result.against)):
        fields[f"{name}_min_s"] = times.minimum if times else ""
        fields[f"{name}_p20_s"] = times.p20 if times else ""
        fields[f"{name}_p50_s"] = times.p50 if times else ""
    fields["rounds"] = result.ours.rounds if result.ours else ""
    fields["ours_peak_bytes"], fields["against_peak_bytes"] = result.memory or ("", "")
    fields["ours_slope"], fields["against_slope"] = result.slopes or ("", "")
    return fields


def markdown(results: list[Result], wanted: int, load_at_start: float) -> str:
    """The page: one table a group, each row with its verdict."""
    where = machine()
    judged = [r for r in results if r.passed is not None]
    lines = [
        "# Speed",
        "",
        f"Written by `parsimax bench` on {where['cpu']}, {where['threads']} threads, torch {where['torch']}, "
        f"kernels {where['kernels']}. Load average {load_at_start:.1f} at the start, {load():.1f} at the end.",
        "",
        "The answer of each case is checked against float64 first. The sides run in turns in one process; times are "
        "minima in milliseconds, the ratio is ours to the other's, so less is better. Memory is what the process "
        "holds at its peak beyond the inputs.",
        "",
        f"{sum(bool(r.passed) for r in judged)} of {len(judged)} cases are within their limit."
        + ("" if len(results) == wanted else f" The run was stopped after {len(results)} of its {wanted} cases."),
    ]
    for group in GROUPS:
        rows = [r for r in results if r.case.group == group]
        if rows:
            lines += ["", f"## {TITLES[group]}", "", "| case | against | ours | other | value | limit | | remarks |"]
            lines += ["|---|---|---|---|---|---|---|---|", *map(_markdown_row, rows)]
    return "\n".join(lines) + "\n"


def _markdown_row(result: Result) -> str:
    case = result.case
    against = (case if isinstance(case, Case) else case.cases[0]).against
    limit = "–" if case.limit is None else f"{case.limit:.3g}"
    cells = [
        case.name,
        against,
        _milliseconds(result.ours),
        _milliseconds(result.against),
        _number(result.value, ".3f"),
    ]
    return f"| {' | '.join([*cells, limit, verdict(result), remarks(result)])} |"

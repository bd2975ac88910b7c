"""``parsimax bench``."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from .cases import CASES, Case, select


def listing() -> str:
    """A case a line: its name, its group, the other side, its limit."""
    lines = []
    for case in CASES.values():
        against = (case if isinstance(case, Case) else case.cases[0]).against
        limit = "–" if case.limit is None else f"{case.limit:.3g}"
        lines.append(f"{case.name:48} {case.group:10} {against:32} {limit}")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """1 if a case is above its limit, or has a wrong answer."""
    cases = select(options.case)
    if options.list:
        print(listing())
        return 0
    from .measure import keep_freed_memory

    keep_freed_memory()
    import torch

    from . import report
    from .measure import measure

    torch.set_num_threads(options.threads)
    load = report.load()
    where = report.machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()) + f", load average {load:.1f}")
    print(report.header())
    results = []
    for case in cases:
        results.append(measure(case, options.seconds))
        print(report.line(results[-1]), flush=True)
    failed = [r for r in results if r.passed is False]
    print(f"{len(failed)} of {len(results)} cases failed; load average {report.load():.1f}")
    if not math.isnan(load) and load > options.threads / 2:
        print("Other work kept the machine busy, so the times mean little.", file=sys.stderr)
    if options.csv:
        report.write_csv(results, Path(options.csv), load)
    if options.markdown:
        report.write_markdown(results, Path(options.markdown), load)
    return int(bool(failed))

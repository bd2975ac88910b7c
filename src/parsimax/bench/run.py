"""``parsimax bench``."""

from __future__ import annotations

import argparse
import math
import sys
import time

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
    from .measure import Result, measure

    threads = options.threads or 2
    torch.set_num_threads(threads)
    load = report.load()
    where = report.machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()) + f", load average {load:.1f}")
    print(report.header())
    results: list[Result] = []
    began = time.perf_counter()
    try:
        for case in cases:
            _show(f"{len(results) + 1} of {len(cases)}, {time.perf_counter() - began:.0f} s: {case.name}")
            results.append(measure(case, options.seconds))
            _show("")
            print(report.line(results[-1]), flush=True)
            report.write(results, len(cases), options.csv, options.markdown, load)  # each time, so that nothing is lost
    except KeyboardInterrupt:
        files = " and ".join(filter(None, (options.csv, options.markdown)))
        print(f"\nstopped after {len(results)} of {len(cases)} cases{f'; they are in {files}' if files else ''}")
        raise
    failed = [r for r in results if r.passed is False]
    print(f"{len(failed)} of {len(results)} cases failed; load average {report.load():.1f}")
    if not math.isnan(load) and load > threads / 2:
        print("Other work kept the machine busy, so the times mean little.", file=sys.stderr)
    return int(bool(failed))


def _show(text: str) -> None:
    """Progress, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

"""The command line of the demo."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

NEEDED = {name: name for name in ("matplotlib", "lightning", "sacrebleu", "tokenizers")}


def missing() -> list[str]:
    """What has to be installed, by the names that pip knows."""
    return [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m parsimax.demo", description="Print, train and draw the mappings of parsimax."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out"),
        metavar="DIR",
        help="where pictures, runs and the page go (default: out)",
    )
    parser.add_argument("--quick", action="store_true", help="a few steps: a look in seconds, not a result")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    from . import picture, table, twins

    started = time.perf_counter()
    print(table.text())
    print()
    shown, page = twins.text(options.out, options.quick)
    print(shown)
    print()
    path = picture.write(options.out)
    print(f"{path} shows the mappings: on each border between colours a probability becomes exactly 0.")
    print(f"{page} shows what the sparse model attends to: open it in a browser.")
    print(f"{time.perf_counter() - started:.0f} s in all.")


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if lacking := missing():
        names = " ".join(lacking)
        print(
            f"parsimax.demo needs {' and '.join(lacking)}; install with: python -m pip install {names}", file=sys.stderr
        )
        return 1
    try:
        run(options)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

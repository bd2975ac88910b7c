"""The command line of the demo."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

NEEDED = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}


def missing() -> list[str]:
    """What has to be installed, by the names that pip knows."""
    return [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m parsimax.demo", description="Print, train and draw the mappings of parsimax."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="where the picture goes (default: out)"
    )
    parser.add_argument("--quick", action="store_true", help="one seed and few epochs: a look in seconds, not a result")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    from . import digits, picture, table

    started = time.perf_counter()
    print(table.text())
    print()
    print(digits.text(seeds=1 if options.quick else 3, epochs=4 if options.quick else digits.EPOCHS))
    print()
    path = picture.write(options.out)
    print(
        f"{path} is the picture ({time.perf_counter() - started:.0f} s in all). Look at where the colours meet: on each"
    )
    print("border a probability becomes exactly 0. Softmax has no border; the curve of entmax at α = 1.5 reaches 0")
    print("smoothly, that of sparsemax with a corner, and r-softmax always gives 0 to the smallest score.")


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

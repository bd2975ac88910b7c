"""The command ``parsimax``. A subcommand imports what it needs when it runs: ``--help`` does not wait for torch."""

from __future__ import annotations

import argparse
import sys


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _bench(options: argparse.Namespace) -> int:
    from .bench.run import run

    return run(options)


def _info(options: argparse.Namespace) -> int:
    from .info import text

    print(text())
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("parsimax", description="Exact, sparse and fast alternatives to softmax.")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    bench = commands.add_parser("bench", help="time the library against torch's softmax and the entmax package")
    bench.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a name, a group, a part of names, or names with *; may repeat",
    )
    bench.add_argument("--list", action="store_true", help="print the cases and their limits")
    bench.add_argument("--seconds", type=_positive, default=3.0, metavar="S", help="for each case (%(default)s)")
    bench.add_argument("--threads", type=_count, default=2, metavar="N", help="of torch (%(default)s)")
    bench.add_argument("--csv", metavar="FILE", help="write the figures, with machine and versions")
    bench.add_argument("--markdown", metavar="FILE", help="write the page for the docs")
    bench.set_defaults(run=_bench)
    info = commands.add_parser("info", help="versions, and which kernel runs for which function")
    info.set_defaults(run=_info)
    return top


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        result: int = options.run(options)
        return result
    except (ValueError, RuntimeError, OSError) as error:
        print(f"parsimax: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

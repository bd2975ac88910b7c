"""Commands of the recipe ``ape`` beside training: ``parsimax ape noise``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """The commands, as subcommands of ``parser``."""
    tools = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "artificial triplets: right texts made worse by mistakes as real machine output has them"
    noise = tools.add_parser("noise", help=text, description=text)
    noise.add_argument("--real", type=Path, metavar="DIR", required=True, help="folder of real triplets: train.src …")
    noise.add_argument("--target", type=Path, metavar="FILE", required=True, help="right texts, one a line")
    noise.add_argument("--source", type=Path, metavar="FILE", help="their sources, one a line (the texts themselves)")
    noise.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder of what is written")
    noise.add_argument("--name", default="artificial", help="of the files: NAME.src, NAME.mt, NAME.pe (%(default)s)")
    noise.add_argument("--seed", type=int, default=1, help="of the mistakes (%(default)s)")
    noise.set_defaults(run=_noise)


def _noise(options: argparse.Namespace) -> int:
    from ..kit.recipe import DataError
    from ..kit.show import progress
    from ..text import files
    from .noise import write_noise
    from .settings import Data
    from .triplets import read

    if not options.name or Path(options.name).name != options.name:
        raise DataError(f"--name is the beginning of a file's name, got {options.name!r}")
    if not options.real.is_dir():
        raise DataError(
            f"--real: {options.real} is not a folder; it holds real triplets, train.src, train.mt and train.pe"
        )
    texts = files.lines(options.target)
    sources = files.lines(options.source) if options.source else None
    if sources is not None and len(sources) != len(texts):
        raise DataError(
            f"{options.source} has {len(sources)} lines and {options.target} has {len(texts)}: they must be parallel"
        )
    if empty := next((number for number, text in enumerate(texts, 1) if not text.strip()), None):
        raise DataError(f"{options.target}, line {empty}: empty; remove it")
    real = read(Data(root=options.real), "train")
    count = write_noise(real, texts, sources, options.out, options.name, options.seed, progress)
    print(f"{count} triplets written to {options.out / options.name}.src, .mt and .pe, of {len(texts)}")
    return 0

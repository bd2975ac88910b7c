"""The command ``parsimax``. A subcommand imports what it needs when it runs: ``--help`` does not wait for torch."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TOLERANCE = 0.01  # of the dial


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _bench(options: argparse.Namespace) -> int:
    if options.device != "cpu":
        if options.markdown or options.list or options.threads:
            raise ValueError(
                f"--markdown, --list and --threads are of the CPU's table, not of --device {options.device}; use --csv"
            )
        from .bench.gpu import run as run_on_gpu

        return run_on_gpu(options)
    from .bench.run import run

    return run(options)


def _tune(options: argparse.Namespace) -> int:
    from .bench.tune import run

    return run(options)


def _selftest(options: argparse.Namespace) -> int:
    from .bench.selftest import run

    return run(options)


def _info(options: argparse.Namespace) -> int:
    from .info import text

    print(text())
    return 0


def _recipe(options: argparse.Namespace) -> int:
    from .recipes import commands

    match options.command:
        case "list":
            commands.list_recipes()
        case "config":
            commands.show_config(options.recipe)
        case "train" if options.resume:
            if options.recipe and "=" in options.recipe:  # the first word is taken for a recipe
                options.settings.insert(0, options.recipe)
                options.recipe = None
            if options.recipe or options.config or options.run_folder:
                raise ValueError("--resume goes on with a run as it was begun; it takes no recipe, config or folder")
            commands.resume(options.resume, options.settings, options.changed_data)
        case "train":
            if options.changed_data:
                raise ValueError("--changed-data is for --resume RUN: a new run takes its data as they are")
            if not options.recipe:
                raise ValueError("train needs the name of a recipe (see `parsimax list`), or --resume RUN")
            commands.train(options.recipe, options.settings, options.config, options.run_folder)
        case "eval" if options.settings:
            how = (options.split, options.checkpoint, options.changed_data)
            tolerance = TOLERANCE if options.tolerance is None else options.tolerance
            commands.turn(options.run_folder, *how, options.settings, tolerance)
        case "eval":
            if options.tolerance is not None:
                raise ValueError("--tolerance is for values to compare, such as model.rate=0,0.1,…,0.9")
            commands.evaluate(options.run_folder, options.split, options.checkpoint, options.changed_data)
        case "predict":
            return commands.predict(options.run_folder, options.checkpoint, options.input, options.format, options)
        case "report":
            commands.report(options.run_folder, options.out, options.checkpoint, options.changed_data)
        case "compare":
            commands.compare(options.run_folders, options.split)
    return 0


def _add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Those of every recipe: which of them a run has is known when it is opened."""
    from .recipes import RECIPES
    from .recipes.kit.options import add

    add(parser, {name: entry.about.options for name, entry in RECIPES.items()})


def _add_recipes(commands: Any, wanted: str) -> None:
    commands.add_parser("list", help="the recipes")
    config = commands.add_parser("config", help="every setting of a recipe, its default and what it does")
    config.add_argument("recipe", metavar="RECIPE")
    train = commands.add_parser("train", help="train a recipe into a folder of its own, or go on with a run")
    train.add_argument("recipe", metavar="RECIPE", nargs="?")
    train.add_argument("settings", metavar="KEY=VALUE", nargs="*", help="as `parsimax config RECIPE` prints them")
    train.add_argument(
        "--config", metavar="FILE", help="settings in YAML, or the name of shipped ones; words after it count more"
    )
    train.add_argument("--run", type=Path, metavar="DIR", dest="run_folder", help="a new folder (runs/RECIPE/0001 …)")
    train.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with a run; steps=N and data.root=PATH may be given anew"
    )
    evaluate = commands.add_parser("eval", help="the figures of a run on a split, and its outputs")
    predict = commands.add_parser("predict", help="an answer for each line of the standard input or of a file")
    report = commands.add_parser("report", help="figures of a run, and a page to look at its attention")
    for one in (evaluate, predict, report):
        one.add_argument("run_folder", type=Path, metavar="RUN")
        one.add_argument("--checkpoint", choices=("best", "last"), default="best", help="(%(default)s)")
    evaluate.add_argument(
        "settings",
        metavar="KEY=VALUE,VALUE,…",
        nargs="*",
        help="other values of the mapping's setting, such as model.rate=0,0.1,…,0.9: figures of each, without training",
    )
    evaluate.add_argument(
        "--tolerance",
        type=_share,
        metavar="SHARE",
        help=f"name the sparsest of these values within this share of the best ({TOLERANCE})",
    )
    predict.add_argument("--input", type=Path, metavar="FILE", help="read this file (the standard input)")
    predict.add_argument(
        "--format", choices=("text", "csv", "tsv", "jsonl"), help="of the input (by the file's ending, or text)"
    )
    if wanted == "predict":
        _add_predict_options(predict)
    report.add_argument("--out", type=Path, metavar="DIR", help="where to (RUN/report)")
    compare = commands.add_parser("compare", help="one table of several runs")
    compare.add_argument("run_folders", type=Path, metavar="RUN", nargs="+")
    for one in (evaluate, compare):
        one.add_argument("--split", choices=("val", "test"), default="test", help="(%(default)s)")
    compare.set_defaults(split="val")
    for one in (train, evaluate, report):
        one.add_argument("--changed-data", action="store_true", help="allow data that changed since the run began")
    for name in ("list", "config", "train", "eval", "predict", "report", "compare"):
        commands.choices[name].set_defaults(run=_recipe, command=name)
    for path in sorted(Path(__file__).parent.glob("recipes/*/tools.py")):
        name = path.parent.name
        tools = commands.add_parser(name, help=f"tools of the recipe {name}: see parsimax {name} --help")
        if wanted == name:
            import_module(f"{__package__}.recipes.{name}.tools").add(tools)


def parser(wanted: str = "") -> argparse.ArgumentParser:
    """The parser of all commands; ``wanted`` is the one that will run, if it is known."""
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
    bench.add_argument("--device", default="cpu", help="cpu, cuda, or interpreter: Triton's, tiny sizes (%(default)s)")
    bench.add_argument("--list", action="store_true", help="print the cases and their limits")
    bench.add_argument("--seconds", type=_positive, default=3.0, metavar="S", help="for each case (%(default)s)")
    bench.add_argument("--threads", type=_count, metavar="N", help="of torch, on the CPU (2)")
    bench.add_argument("--csv", metavar="FILE", help="write the figures, with machine and versions")
    bench.add_argument("--markdown", metavar="FILE", help="write the page for the docs")
    bench.set_defaults(run=_bench)
    selftest = commands.add_parser("selftest", help="every function with kernels against float64, on a device of yours")
    selftest.add_argument(
        "--device", default="cpu", help="cpu, cuda, … or interpreter: Triton's, on the CPU (%(default)s)"
    )
    selftest.add_argument("--tiny", action="store_true", help="small sizes only, as in the interpreter")
    selftest.add_argument("--report", metavar="FILE", help="write the results as JSON, to send back")
    selftest.set_defaults(run=_selftest)
    tune = commands.add_parser("tune", help="measure the launch table of the Triton kernels on a GPU, and keep it")
    tune.add_argument("--device", default="cuda", help="cuda, or interpreter: Triton's, tiny sizes (%(default)s)")
    tune.add_argument("--out", metavar="FILE", help="write it here (where parsimax looks for it)")
    tune.set_defaults(run=_tune)
    info = commands.add_parser("info", help="versions, and which kernel runs for which function")
    info.set_defaults(run=_info)
    _add_recipes(commands, wanted)
    return top


def main(arguments: list[str] | None = None) -> int:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack α
    top = parser(next(iter(sys.argv[1:] if arguments is None else arguments), ""))
    options, rest = top.parse_known_args(arguments)
    if (
        rest
        and getattr(options, "command", None) in ("train", "eval")
        and not any(word.startswith("-") for word in rest)
    ):
        options.settings += rest  # argparse gives up on settings that stand behind an option
    elif rest:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        result: int = options.run(options)
        return result
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except (ValueError, RuntimeError, OSError) as error:
        print(f"parsimax: {_said(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _said(error: Exception) -> str:
    """The system's word on a file without its number, and what to do."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return f"{error.filename}: {error.strerror}: there is a file where a folder is needed; give another path"
    return f"{error.filename}: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())

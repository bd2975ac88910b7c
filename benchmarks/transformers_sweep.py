"""Every config type of ``transformers`` that can be built small: sparsified, is it right, or refused with a reason?

    python benchmarks/transformers_sweep.py                     go on where it stopped, then write the table
    python benchmarks/transformers_sweep.py --only bert gpt2    these again
    python benchmarks/transformers_sweep.py --quick …           with fewer small configs, where none is found soon
    python benchmarks/transformers_sweep.py --table             only write the table

Each type runs in a process of its own, so that a crash ends nothing; each result is a line of OUT/results.jsonl. The
checks are in float64 with random weights and padding: softmax against the model's own attention; α = 1.5 against the
model's eager function with entmax for softmax; one more token with a cache against none; saved and loaded with a
learned α.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers

import parsimax
from parsimax.huggingface import desparsify, sparsify

sys.path.insert(0, str(Path(__file__).parent))
import small_inputs
import small_models

HERE = Path(__file__).resolve().parent.parent
WARM = ("bert", "llama", "t5", "clip", "whisper")
TOLERANCE = 1e-5  # of the largest output: some models compute parts of attention in float32


def check(kind: str, quick: bool = False) -> dict[str, Any]:
    """What became of one type: ``status`` and ``why``, and which checks it went through."""
    try:
        model = small_models.build(kind, quick)
        kinds = small_inputs.inputs(model)
    except Exception as error:
        return {"status": "not built", "why": f"{type(error).__name__}: {_short(error)}"}
    result: dict[str, Any] = {"model": type(model).__name__, "checks": []}
    owns = [_run(model, given) for given in kinds]
    same = [i for i, given in enumerate(kinds) if owns[i] and _distance(owns[i], _run(model, given)) < TOLERANCE]
    if not same:
        return {**result, "status": "not built", "why": "its own output is not a number, or differs from call to call"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            sparsify(model, "softmax")
            runs = [_watched(model, kinds[i]) for i in same]
        except (ValueError, NotImplementedError, TypeError) as error:
            return {**result, "status": "refused", "why": _short(error)}
    best = max(range(len(same)), key=lambda i: runs[i][1])  # the inputs that reach most layers
    own, given, (soft, reached) = owns[same[best]], kinds[same[best]], runs[best]
    result |= {"inputs": sorted(given), "layers": len(_cores(model)), "reached": reached}
    result["warned"] = [str(each.message) for each in caught if "attention" in str(each.message)]
    problems = [] if reached else ["no layer was reached"]
    for name, test in CHECKS.items():
        try:
            distance = _distance(own, soft) if test is None else test(model, given)
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {_short(error)}")
            continue
        if distance is not None:
            result["checks"].append(name)
            if not distance <= TOLERANCE:
                problems.append(f"{name}: off by {distance:.1e}")
    return {**result, "status": "wrong" if problems else "right", "why": "; ".join(problems)}


def _cores(model: Any) -> list[parsimax.AttentionCore]:
    return [module for module in model.modules() if isinstance(module, parsimax.AttentionCore)]


def _watched(model: Any, given: dict[str, Any]) -> tuple[dict[str, torch.Tensor], int]:
    """The output, and how many layers asked their core."""
    for core in _cores(model):
        core.reached = False
    out = _run(model, given)
    return out, sum(core.reached for core in _cores(model))


def _run(model: Any, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return {name: value for name, value in small_inputs.outputs(model, given).items() if value.isfinite().all()}


def _distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference, in parts of the largest value."""
    if not one or one.keys() != other.keys():
        return float("inf")
    pairs = [(one[name], other[name]) for name in one]
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max((float((a - b).abs().max() / a.abs().max().clamp_min(1e-3)) for a, b in pairs if a.numel()), default=0.0)


def entmax_for_softmax(model: Any, given: dict[str, Any]) -> float | None:
    """α = 1.5 against the model's own eager function, where that calls softmax. Padding on the right: eager functions
    in float32 make NaN of a row where all is the lowest number of float64."""
    if "attention_mask" in given:
        given = {**given, "attention_mask": given["attention_mask"].sort(-1, descending=True).values}
    got = _run(sparsify(model, alpha=1.5), given)
    desparsify(model)
    own = _run(model, given)
    before = [(config, config._attn_implementation) for config in _configs(model)]
    try:
        model.set_attn_implementation("eager")
        for config, _ in before:  # the copies too that a part of the model made for itself
            config._attn_implementation = {"": "eager"}
        try:
            plain = _run(model, given)
        except Exception:
            return None  # the model's eager function does not run
        if not _distance(own, plain) <= TOLERANCE:
            return None  # nor is it what the model computes
        with _entmax_in_eager() as calls:
            expected = _run(model, given)
    finally:
        for config, name in before:
            config._attn_implementation = {"": name}
    if not calls or "logsumexp" in calls or _distance(plain, expected) < TOLERANCE:
        return None  # not softmax and nothing else in an eager function, or attention does not matter to the output
    return _distance(expected, got)


@contextmanager
def _entmax_in_eager() -> Iterator[list[str]]:
    calls: list[str] = []
    real = {torch.nn.functional: torch.nn.functional.softmax, torch: torch.softmax}

    def swapped(old: Any) -> Any:
        def softmax(scores: Any, dim: Any = None, *args: Any, **more: Any) -> Any:
            caller = sys._getframe(1).f_code.co_name
            if "eager" not in caller:
                return old(scores, dim, *args, **more)
            calls.append(caller)
            return parsimax.entmax15(scores, dim=-1 if dim is None else dim)

        return softmax

    def logsumexp(scores: Any, *args: Any, **more: Any) -> Any:
        if "eager" in sys._getframe(1).f_code.co_name:
            calls.append("logsumexp")
        return summed(scores, *args, **more)

    summed = torch.logsumexp
    with (
        mock.patch.object(torch.nn.functional, "softmax", swapped(real[torch.nn.functional])),
        mock.patch.object(torch, "softmax", swapped(real[torch])),
        mock.patch.object(torch, "logsumexp", logsumexp),
    ):
        yield calls


def with_a_cache(model: Any, given: dict[str, Any]) -> float | None:
    """One more token with what was cached against all of them at once, if the model does that right by itself."""
    if set(given) != {"input_ids", "attention_mask"} or not getattr(model, "can_generate", lambda: False)():
        return None
    desparsify(model)
    try:
        own = _step(model, given)
    except Exception:
        return None
    if not own <= TOLERANCE:
        return None
    return _step(sparsify(model, alpha=1.5), given)


def _step(model: Any, given: dict[str, Any]) -> float:
    ids, mask = given["input_ids"], given["attention_mask"]
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, position_ids=places).logits[:, -1]
        first = model(ids[:, :-1], attention_mask=mask[:, :-1], position_ids=places[:, :-1], use_cache=True)
        last = model(
            ids[:, -1:],
            attention_mask=mask,
            position_ids=places[:, -1:],
            past_key_values=first.past_key_values,
            use_cache=True,
        ).logits[:, -1]
    return _distance({"logits": whole}, {"logits": last})


def saved_and_loaded(model: Any, given: dict[str, Any]) -> float | None:
    """With a learned α, by the plain ``from_pretrained`` of its class."""
    desparsify(model)
    if not _loads(model, given):
        return None
    sparsify(model, alpha="learned", alpha_start=1.3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "learned_alpha" in name:
                parameter += 0.5 * torch.randn_like(parameter)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = _loaded(model, folder)
    return _distance(_run(model, given), _run(again, given))


def _loaded(model: Any, folder: str) -> Any:
    return type(model).from_pretrained(folder, experts_implementation="eager").double()


def _loads(model: Any, given: dict[str, Any]) -> bool:
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            return _distance(_run(model, given), _run(_loaded(model, folder), given)) < TOLERANCE
    except Exception:
        return False


def _configs(model: Any) -> list[Any]:
    from parsimax.huggingface.sparsify import configs

    return configs(model)


CHECKS = {
    "softmax": None,
    "entmax": entmax_for_softmax,
    "cache": with_a_cache,
    "reload": saved_and_loaded,
}


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:240] or type(error).__name__


def _child(kind: str, quick: bool, out: Any) -> None:
    os.environ["TQDM_DISABLE"] = "1"
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    warnings.simplefilter("ignore")
    try:
        out.send(check(kind, quick))
    except Exception as error:
        out.send({"status": "wrong", "why": f"{type(error).__name__}: {_short(error)}"})


def run_one(kind: str, timeout: float, quick: bool = False) -> dict[str, Any]:
    """In a process of its own: forked, since the imports take longer than the checks."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(kind, quick, theirs))
    start = time.monotonic()
    child.start()
    theirs.close()
    try:
        result: dict[str, Any] = mine.recv() if mine.poll(timeout) else {"status": "not built", "why": "took too long"}
    except EOFError:
        result = {"status": "wrong", "why": "its process ended without an answer"}
    if child.is_alive():
        child.kill()
    child.join()
    return {"type": kind, **result, "seconds": round(time.monotonic() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "out" / "sweep")
    parser.add_argument("--only", nargs="+", default=None, metavar="TYPE")
    parser.add_argument("--again", nargs="+", default=(), metavar="STATUS", help='such as "wrong": try these again')
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("--quick", action="store_true", help="no small configs with one rule left out")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--markdown", type=Path, default=HERE / "docs" / "huggingface_models.md")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "results.jsonl"
    done = {line["type"]: line for line in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    wanted = given.only or [k for k in small_models.types() if k not in done or done[k]["status"] in given.again]
    for kind in WARM if wanted and not given.table else ():
        small_models.build(kind)  # imports that every child would do again
    for number, kind in enumerate([] if given.table else wanted, 1):
        done[kind] = run_one(kind, given.timeout, given.quick)
        with file.open("a") as lines:
            lines.write(json.dumps(done[kind]) + "\n")
        print(f"{number}/{len(wanted)} {kind}: {done[kind]['status']} {done[kind].get('why', '')}", flush=True)
    write(list(done.values()), given.markdown)


HEAD = """# Models of transformers, one by one

What `parsimax.huggingface.sparsify` does with {total} of the {known} config types of `transformers` {version}, tried by
`python benchmarks/transformers_sweep.py` on small random models in float64 (parsimax {ours}, torch {torch}).

| result | types | what it means |
|---|---|---|
| right | {right} | every check that applies passed |
| refused | {refused} | `sparsify` or the first call raises, with the reason below |
| not built | {built} | no model of its own, a package is missing, no small config or inputs found, or random output |
| wrong | {wrong} | a check failed |

The checks: **softmax** against the model's own attention; **entmax**, α = 1.5, against the model's eager function with
entmax in the place of softmax; **cache**, one more token with a cache against all tokens at once; **reload**, saved and
loaded by the plain `from_pretrained` with a learned α. A check that does not apply to a model (no cache, an eager
function that does more than softmax, that fails, or that is not what the model computes by itself) is left out.
*Layers* are those that asked for their mapping in the pass, of all that have one. A row is of the last time that its
type was tried: the script tries some types again and keeps the rest, so that rows may be older than the versions above.
Those not built were last tried with `--quick`, which leaves out small configs where one rule is put back, and a limit
of 15 to 40 seconds, or are rows of an older builder.

The sweep needs torch and `transformers`. Types that say so below need another package besides: `timm` (which cannot be
imported without `torchvision`), `natten`, `detectron2` or `torchaudio`; none of them was there.

"""


def write(results: list[dict[str, Any]], file: Path) -> None:
    """The page of the docs, and the counts on the screen."""
    counts = collections.Counter(each["status"] for each in results)
    print(dict(counts))
    names = {"right": "right", "refused": "refused", "built": "not built", "wrong": "wrong"}
    versions = {"version": transformers.__version__, "ours": parsimax.__version__, "torch": torch.__version__}
    page = HEAD.format(
        total=len(results),
        known=len(small_models.types()),
        **{key: counts[name] for key, name in names.items()},
        **versions,
    )
    for status in names.values():
        rows = sorted((each for each in results if each["status"] == status), key=lambda each: each["type"])
        if rows:
            page += f"## {status.capitalize()}\n\n" + "\n".join(_table(rows, status)) + "\n\n"
    file.write_text(page.rstrip() + "\n", encoding="utf-8")


def _table(rows: list[dict[str, Any]], status: str) -> Iterator[str]:
    if status != "right":
        yield from ("| type | why |", "|---|---|")
        yield from (f"| {each['type']} | {each['why'].replace('|', chr(92) + '|')} |" for each in rows)
        return
    yield from ("| type | model | checks | layers | keeps softmax |", "|---|---|---|---|---|")
    for each in rows:
        kept = "; ".join(warning.split(": ", 1)[-1].split(" keep their own")[0] for warning in each["warned"])
        shown = f"{each['reached']} of {each['layers']}"
        yield f"| {each['type']} | {each['model']} | {', '.join(each['checks'])} | {shown} | {kept} |"


if __name__ == "__main__":
    main()

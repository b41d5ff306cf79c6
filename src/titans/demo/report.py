"""One self-contained page, and the plots in it as files."""

from __future__ import annotations

import dataclasses
import html
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans import html_page, plots
from titans.data.synthetic.fact_recall import VALUES
from titans.demo.experiment import WINDOW
from titans.demo.measure import ModelReport
from titans.evaluation.synthetic import score_as_json
from titans.io import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = list[ModelReport]
CHANCE = 1 / len(VALUES)


def write(folder: Path, results: Results, facts: dict[str, str], quick: bool = False) -> Path:
    """Write `report.html`, which needs no other file, the plots as PNG, and `results.json`.

    Args:
        folder: made if it does not exist.
        results: of the models, the one without memory last.
        facts: what to say about the run (name to value).
        quick: whether the run was too short to learn from. Default: no.

    Returns:
        The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"loss": _loss(results), "positions": _positions(results), "recall": _recall(results)}
    images = {name: html_page.image(plots.save(one, folder / f"{name}.png"), name) for name, one in drawn.items()}
    atomic.write_json(folder / "results.json", {"run": facts} | {c.name: _as_json(c) for c in results})
    page = folder / "report.html"
    atomic.write(page, html_page.page("Titans demo", _body(results, facts, images, quick)).encode())
    return page


def verdict(results: Results, quick: bool = False) -> list[str]:
    """State in sentences what was measured, whichever way it came out."""
    *with_memory, attention = results
    sentences = ["The quick form trains for seconds, too short to learn recall: see the full demo."] if quick else []
    for model in with_memory:
        answers = ", ".join(
            f"{score.accuracy:.0%} over {distance:,} bytes{'' if score.low > CHANCE else ' (chance)'}"
            for distance, score in model.recall.items()
        )
        sentences.append(f"{model.name} recalls facts: {answers}.")
        gain = attention.text.bits_per_byte - model.text.bits_per_byte
        sentences.append(
            f"{model.name} predicts held-out text with {model.text.bits_per_byte:.3f} bits per byte, "
            f"{abs(gain):.3f} {'less' if gain > 0 else 'more'} than attention only."
        )
    answers = ", ".join(f"{score.accuracy:.0%} over {distance:,} bytes" for distance, score in attention.recall.items())
    sentences.append(
        f"Attention only, with {WINDOW} bytes in view per layer, recalls: {answers} (chance {CHANCE:.0%})."
    )
    return sentences


def _as_json(model: ModelReport) -> dict[str, Any]:
    recall = [{"distance": distance} | score_as_json(score) for distance, score in model.recall.items()]
    return dataclasses.asdict(model) | {"recall": recall}


def _body(results: Results, facts: dict[str, str], images: dict[str, str], quick: bool) -> list[str]:
    rows = {
        "parameters": [f"{c.parameters:,}" for c in results],
        "attention window (bytes)": [f"{WINDOW}" for _ in results],
        "trained on (bytes)": [f"{c.training.curve[-1].bytes:,}" for c in results],
        "training speed (bytes/s)": [f"{c.training.bytes_per_second:,.0f}" for c in results],
        "peak memory (MiB)": [f"{c.peak_memory / 2**20:,.0f}" for c in results],
        "state per stream (bytes), however much was read": [f"{c.state_bytes:,}" for c in results],
        "held-out text (bits per byte)": [f"{c.text.bits_per_byte:.3f}" for c in results],
    }
    for distance in results[0].recall:
        scores = [c.recall[distance] for c in results]
        rows[f"recall over {distance:,} bytes ({distance // WINDOW} × window)"] = [
            f"{score.accuracy:.0%} ({score.low:.0%}–{score.high:.0%})" for score in scores
        ]
    return [
        f"""<p>What lies outside the attention window? Byte-level models of equal size, trained alike; bytes and steps
are below. <b>Titans MAC</b> sees {WINDOW} bytes by attention and has a memory that goes on learning while it reads;
<b>Titans LMM</b> is the memory alone, the last model the attention alone. Facts like <code>#Qx</code> are stated once,
text follows, and then <code>#Q</code> is asked: the right next byte is <code>x</code>. Every question has new facts, so
no answer can be known from training.</p>""",
        html_page.bullets(verdict(results, quick)),
        f"<h2>Recall</h2>{images['recall']}<h2>Loss by position</h2>{images['positions']}",
        f"<h2>Training</h2>{images['loss']}<h2>Numbers</h2>",
        html_page.table(([name, *cells] for name, cells in rows.items()), ["", *(c.name for c in results)]),
        "<p>Recall in brackets: 95 % Wilson intervals.</p><h2>Text the models write</h2>",
        *(f"<h3>{html.escape(c.name)}</h3><pre>{html.escape(c.sample)}</pre>" for c in results),
        f"<h2>The run</h2>{html_page.table(facts.items(), name='facts')}",
    ]


def _loss(results: Results) -> Figure:
    drawn, (left, right) = plots.figure(2, size=(8, 3.6))
    for number, model in enumerate(results):
        curve = model.training.curve
        read, fmt = [point.bytes / 1e6 for point in curve], "o" if len(curve) < 3 else "-"
        plots.line(left, read, [point.text_bits for point in curve], number, fmt=fmt, label=model.name)
        plots.line(right, read, [point.recall_loss for point in curve], number, fmt=fmt, label=model.name)
    left.set(xlabel="million bytes read", ylabel="bits per byte", title="text (training)")
    right.set(xlabel="million bytes read", ylabel="nats per answer", title="recall (training)")
    plots.legend(left)
    plots.legend(right)
    return drawn


def _positions(results: Results) -> Figure:
    drawn, (axes,) = plots.figure(size=(8, 3.6))
    for number, model in enumerate(results):
        buckets = model.text.positions
        bits = [bucket.loss / math.log(2) for bucket in buckets]
        plots.line(axes, [bucket.first for bucket in buckets], bits, number, label=model.name)
    axes.axvline(WINDOW, color=plots.MUTED, linestyle=":")
    axes.text(WINDOW, axes.get_ylim()[1], " window", va="top", color=plots.MUTED)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="bytes before the predicted one", ylabel="bits per byte", title="held-out text")
    plots.legend(axes)
    return drawn


def _recall(results: Results) -> Figure:
    drawn, (axes,) = plots.figure(size=(8, 3.6))
    for number, model in enumerate(results):
        scores = model.recall.values()
        interval = [score.low for score in scores], [score.high for score in scores]
        values = [score.accuracy for score in scores]
        plots.line(axes, list(model.recall), values, number, interval=interval, label=model.name)
    axes.axhline(CHANCE, color=plots.MUTED, linestyle=":", label="chance")
    axes.set_xscale("log", base=2)
    distances = list(results[0].recall)
    axes.set_xticks(distances, [f"{distance:,}\n{distance // WINDOW} × window" for distance in distances])
    axes.set(ylim=(0, 1.02), xlabel="bytes between facts and question", ylabel="right answers", title="recall")
    plots.legend(axes)
    return drawn

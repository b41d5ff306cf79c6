"""The demonstration from corpus to report."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import Progress

from titans.data.corpora import Document
from titans.demo import report
from titans.demo.experiment import FULL, QUICK, Point, configurations, peak_memory, read_corpus, train
from titans.demo.measure import measure


class _Line:
    """One contestant's line of the progress display."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.name = progress, name
        self.task = progress.add_task(name, total=1.0)

    def say(self, doing: str) -> None:
        self.progress.update(self.task, description=f"{self.name}: {doing}")

    def trained(self, done: float, point: Point | None) -> None:
        self.progress.update(self.task, completed=done)
        if point is not None:
            self.say(f"text {point.text_bits:.2f} bits/byte, recall {point.recall_loss:.2f} nats")


def run(
    corpus: Iterator[Document], described: str, folder: Path, quick: bool, progress: Progress
) -> tuple[Path, list[str]]:
    """Train both contestants, measure them, and write the report.

    Args:
        corpus: text to train on.
        described: what the report calls it.
        folder: where the report goes.
        quick: take a minute instead of several.
        progress: where progress is shown.

    Returns:
        The report's page, and what it says in sentences.

    Raises:
        TitansError: the corpus cannot be read or is too small.
    """
    start, plan = time.monotonic(), QUICK if quick else FULL
    text, held_out = read_corpus(corpus)
    results = []
    for name, config in configurations().items():
        line = _Line(progress, name)
        trained = train(name, config, text, plan, line.trained)
        measured = measure(trained, held_out, plan, line.say)
        line.say("done")
        results.append((trained, measured))
    facts = {
        "corpus": f"{described}; {len(text):,} bytes for training, {len(held_out):,} held out",
        "form": "quick: too short to learn recall" if quick else "full",
        "training stopped by": ", ".join(
            f"{t.name}: {'steps' if t.steps >= plan.steps else 'time'} ({t.steps} steps)" for t, _ in results
        ),
        "took": f"{time.monotonic() - start:.0f} s",
        "peak memory of the process": f"{peak_memory() / 2**20:.0f} MiB",
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}",
    }
    return report.write(folder, results, facts), report.verdict(results)

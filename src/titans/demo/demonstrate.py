"""The demonstration from corpus to report: two models at a time, each on a core of its own."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers.utils.logging import disable_progress_bar

from titans.data.corpora import Document
from titans.data.synthetic.text_pieces import HELD_OUT, TextPieces
from titans.data.tokenizers import byte_tokenizer
from titans.demo import report
from titans.demo.experiment import FULL, QUICK, VOCABULARY, Plan, model_fields, train
from titans.demo.measure import DISTANCES, ModelReport, measure
from titans.errors import TitansError
from titans.evaluation.model_zoo import make_model
from titans.evaluation.processes import call_in_processes

PROCESSES = 2


def demonstrate(
    corpus: Iterable[Document], described: str, folder: Path, quick: bool, progress: Progress
) -> tuple[Path, list[str]]:
    """Train the models, measure them, and write the report and the models.

    Args:
        corpus: text to train on.
        described: what the report calls it.
        folder: where the report goes; the models go into folders below it.
        quick: take a minute instead of several.
        progress: where progress is shown.

    Returns:
        The report's page, and what it says in sentences.

    Raises:
        TitansError: the corpus cannot be read or is too small.
    """
    start, plan = time.monotonic(), QUICK if quick else FULL
    text, needed = TextPieces.read(corpus), int((max(DISTANCES) + 1) / HELD_OUT) + 1
    if len(text.text) < needed:
        raise TitansError(f"the corpus holds {len(text.text):,} bytes of text: the demo needs at least {needed:,}")
    models = model_fields()
    bars = {name: progress.add_task(name, total=1.0) for name in models}

    def show(message: tuple[str, float | None, str]) -> None:
        name, done, doing = message
        progress.update(bars[name], completed=done, description=f"{name}: {doing}")

    calls = ((name, fields, text, plan, folder) for name, fields in models.items())
    results = call_in_processes(_train_and_measure, calls, PROCESSES, show)  # operations too small to share by threads
    sizes = [len(text.part(part).text) for part in ("train", "test")]
    facts = {
        "corpus": f"{described}; {sizes[0]:,} bytes for training, {sizes[1]:,} held out",
        "form": "quick: too short to learn recall" if quick else "full",
        "training ended by": ", ".join(
            f"{c.name}: {'steps' if c.training.steps >= plan.steps else 'time'} ({c.training.steps})" for c in results
        ),
        "took": f"{time.monotonic() - start:.0f} s, {PROCESSES} models at a time, one thread each",
        "machine": f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}",
    }
    return report.write(folder, results, facts, quick), report.verdict(results, quick)


def _train_and_measure(
    name: str,
    fields: dict[str, Any],
    text: TextPieces,
    plan: Plan,
    folder: Path,
    tell: Callable[[tuple[str, float | None, str]], None],
) -> ModelReport:
    """Train, measure and save one model; tells its name, the share of the training that is done, and what it does."""
    disable_progress_bar()  # of writing weights, which would stand in the bars of the training
    model = make_model(fields, VOCABULARY)
    training = train(
        model,
        text.part("train"),
        plan,
        lambda done, point: tell(
            (name, done, f"text {point.text_bits:.2f} bits/byte, recall {point.recall_loss:.2f} nats")
        ),
    )
    found = measure(name, model, training, text.part("test"), plan, lambda doing: tell((name, None, doing)))
    target = folder / name.lower().replace(" ", "-")
    model.save_pretrained(target)
    byte_tokenizer().save_pretrained(target)
    tell((name, None, "done"))
    return found

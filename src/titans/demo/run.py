"""The demonstration from corpus to report: two models at a time, each on a core of its own."""

from __future__ import annotations

import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

from titans.data.corpora import Document
from titans.data.tokenizers import byte_tokenizer
from titans.demo import report
from titans.demo.experiment import FULL, QUICK, Plan, configurations, read_corpus, train
from titans.demo.measure import ModelReport, measure
from titans.models.configuration import TitansConfig
from titans.models.modeling import TitansForCausalLM

PROCESSES = 2


def run(
    corpus: Iterator[Document], described: str, folder: Path, quick: bool, progress: Progress
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
    text, held_out = read_corpus(corpus)
    models = configurations()
    context = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    pool = ProcessPoolExecutor(PROCESSES, context, _end_with_parent, max_tasks_per_child=1)
    with manager, pool:
        messages = manager.Queue()
        jobs = [
            pool.submit(_compete, name, config, text, held_out, plan, folder, messages)
            for name, config in models.items()
        ]
        try:
            _show(jobs, messages, {name: progress.add_task(name, total=1.0) for name in models}, progress)
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        results = [job.result() for job in jobs]
    facts = {
        "corpus": f"{described}; {len(text):,} bytes for training, {len(held_out):,} held out",
        "form": "quick: too short to learn recall" if quick else "full",
        "training ended by": ", ".join(
            f"{c.name}: {'steps' if c.training.steps >= plan.steps else 'time'} ({c.training.steps})" for c in results
        ),
        "took": f"{time.monotonic() - start:.0f} s, {PROCESSES} models at a time, one thread each",
        "machine": f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}",
    }
    return report.write(folder, results, facts, quick), report.verdict(results, quick)


def _compete(
    name: str, config: TitansConfig, text: Tensor, held_out: Tensor, plan: Plan, folder: Path, messages: Queue[Any]
) -> ModelReport:
    """Train, measure and save one model; says how far it is as (name, share done or None, what it does)."""
    torch.set_num_threads(1)  # the operations are too small to share
    torch.manual_seed(0)
    model = TitansForCausalLM(config)
    training = train(
        model,
        text,
        plan,
        lambda done, point: messages.put(
            (name, done, f"text {point.text_bits:.2f} bits/byte, recall {point.recall_loss:.2f} nats")
        ),
    )
    measured = measure(name, model, training, held_out, plan, lambda doing: messages.put((name, None, doing)))
    target = folder / name.lower().replace(" ", "-")
    model.save_pretrained(target)
    byte_tokenizer().save_pretrained(target)
    messages.put((name, None, "done"))
    return measured


def _end_with_parent() -> None:
    """Have this process end when its parent does, however that ends."""
    parent = multiprocessing.parent_process()

    def wait_for_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def _show(jobs: list[Future[ModelReport]], messages: Queue[Any], tasks: dict[str, Any], progress: Progress) -> None:
    """Show what the models report until all are done or one has failed."""
    while not any(job.done() and job.exception() for job in jobs):
        while not messages.empty():
            name, done, doing = messages.get()
            progress.update(tasks[name], completed=done, description=f"{name}: {doing}")
        if all(job.done() for job in jobs):
            return
        wait(jobs, timeout=0.2)

"""What the experiments have in common around their models: the command line, shares with intervals, the files."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from titans.evaluation.comparison.report import STYLES
from titans.evaluation.intervals import wilson
from titans.io import atomic

Cells = dict[str, dict[str, Any]]  # by length


def command(name: str, about: str, models: Iterable[str], seeds: Iterable[int] = (1,)) -> argparse.ArgumentParser:
    """Return the command line of an experiment, to which it adds its own arguments.

    Args:
        name: of the experiment.
        about: its module's docstring.
        models: that it knows.
        seeds: that it takes by default.
    """
    torch.set_num_threads(1)  # the operations are too small to share
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(models), default=list(models), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--work", type=Path, default=Path(f"runs/long-context-{name}"), help="models and answers")
    parser.add_argument("--out", type=Path, default=Path("docs/long-context"))
    return parser


def write(name: str, out: Path, content: Mapping[str, Any], picture: bytes) -> None:
    """Write the result of an experiment and its picture, each whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    atomic.write_json(out / f"{name}.json", dict(content))
    atomic.write(out / f"{name}.png", picture)


def pooled(found: Mapping[int, Mapping[int, int]], samples: int) -> Cells:
    """Put the seeds of a model together.

    A seed that was no longer asked at a length, since it failed at the one before, counts there as it did when it was
    asked last.

    Args:
        found: right answers by seed and length.
        samples: questions of each seed and length.

    Returns:
        By length the share of right answers, its 95 % Wilson interval, and the shares of the seeds that were asked.
    """
    cells = {}
    for length in sorted({length for by_length in found.values() for length in by_length}):
        last = [max(known for known in by_length if known <= length) for by_length in found.values()]
        correct = sum(by_length[known] for by_length, known in zip(found.values(), last, strict=True))
        trials = samples * len(found)
        low, high = wilson(correct, trials)
        shares = {str(seed): at[length] / samples for seed, at in found.items() if length in at}
        cells[str(length)] = {"accuracy": correct / trials, "low": low, "high": high, "seeds": shares}
    return cells


def plot(panels: Mapping[str, Mapping[str, Cells]], guesses: Mapping[str, float] | None = None) -> bytes:
    """Draw accuracy by length.

    Args:
        panels: by title, the models and their cells.
        guesses: by title, the accuracy of a guess, where one is known.

    Returns:
        A PNG picture.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for models in panels.values() for name in models))
    lengths = sorted({int(length) for models in panels.values() for cells in models.values() for length in cells})
    figure = Figure(figsize=(4.5 * len(panels) + 2, 4.2), layout="constrained")
    for axes, (title, models) in zip(
        figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0], panels.items(), strict=True
    ):
        for name, cells in models.items():
            number = names.index(name)
            values = [cell["accuracy"] for cell in cells.values()]
            errors = [[v - c["low"] for v, c in zip(values, cells.values(), strict=True)]]
            errors.append([c["high"] - v for v, c in zip(values, cells.values(), strict=True)])
            style, color = STYLES[number // 10 % len(STYLES)], f"C{number % 10}"
            places = [lengths.index(int(length)) for length in cells]
            axes.errorbar(places, values, errors, fmt=style, color=color, capsize=3, label=name)
        if guesses is not None:
            axes.axhline(guesses[title], color="#777777", linestyle=":", label="a guess")
        axes.set(ylim=(-0.03, 1.03), xlabel="tokens", ylabel="right answers, 95 % intervals", title=title)
        axes.set_xticks(range(len(lengths)), [_short(length) for length in lengths])
        axes.grid(alpha=0.3)
    handles = {label: h for axes in figure.axes for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside right center", fontsize="small", frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _short(length: int) -> str:
    """Write a length as its readers do: 2 K, whether that is 2,000 or 2,048."""
    thousand = 1024 if length % 1024 == 0 else 1000
    if length >= thousand**2:
        return f"{length // thousand**2} M"
    return f"{length // thousand} K" if length >= thousand else str(length)

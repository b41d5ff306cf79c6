"""What the experiments have in common around their models: the command line, shares with intervals, the files."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from titans import plots
from titans.evaluation.intervals import wilson

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
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/long-context"))
    return parser


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


def plot(panels: Mapping[str, Mapping[str, Cells]], guesses: Mapping[str, float] | None = None) -> Figure:
    """Draw accuracy by length.

    Args:
        panels: by title, the models and their cells.
        guesses: by title, the accuracy of a guess, where one is known.
    """
    names = list(dict.fromkeys(name for models in panels.values() for name in models))
    lengths = sorted({int(length) for models in panels.values() for cells in models.values() for length in cells})
    drawn, all_axes = plots.figure(len(panels), size=(4.5 * len(panels) + 2, 4.2), sharex=True, sharey=True)
    for axes, (title, models) in zip(all_axes, panels.items(), strict=True):
        for name, cells in models.items():
            places = [lengths.index(int(length)) for length in cells]
            values, low, high = ([cell[key] for cell in cells.values()] for key in ("accuracy", "low", "high"))
            plots.line(axes, places, values, names.index(name), interval=(low, high), label=name)
        if guesses is not None:
            axes.axhline(guesses[title], color=plots.MUTED, linestyle=":", label="a guess")
        axes.set(ylim=(-0.03, 1.03), xlabel="tokens", ylabel="right answers, 95 % intervals", title=title)
        plots.length_ticks(axes, lengths)
    plots.legend(drawn, loc="outside right center", fontsize="small")
    return drawn

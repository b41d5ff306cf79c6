"""What layers of the memory cost and bring: recall and text loss of one to four layers, against their speed.

    python experiments/baselines/depth.py

Reads the results of ablation-recall.yaml and ablation-text.yaml; speeds are those of their trainings, so that only
their ratios mean anything.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from titans import plots
from titans.evaluation.results import save_result

MODELS = {1: "depth-1", 2: "titans-lmm", 3: "depth-3", 4: "depth-4"}
TASKS = {"recall": ("64/8", "right answers, %", 100, (-3, 103)), "text": ("1024", "bits per byte", 1, None)}


def by_depth(results: dict[str, Any], size: str) -> dict[int, dict[str, float]]:
    """Return value, half width of its interval and tokens a second of each depth."""
    found = {}
    for depth, name in MODELS.items():
        model = next(model for model in results["models"] if model["name"] == name)
        mean = model["means"][size]
        rates = [run["tokens_per_second"] for run in model["runs"] if run["tokens_per_second"] is not None]
        found[depth] = {
            "value": mean["mean"],
            "half_width": mean["half_width"] or math.nan,
            "tokens_per_second": statistics.median(rates),
        }
    return found


def main() -> None:
    """Read, draw, and write `depth.json` and `depth.png`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("docs/lab-notes/baselines"))
    folder = parser.parse_args().results
    drawn, all_axes = plots.figure(2, size=(10, 4))
    kept = {}
    for axes, (task, (size, measure, scale, limits)) in zip(all_axes, TASKS.items(), strict=True):
        found = by_depth(json.loads((folder / f"ablation-{task}" / "results.json").read_text()), size)
        kept[task] = {"size": size, "depths": found}
        for depth, one in found.items():
            height, half = scale * one["value"], scale * one["half_width"]
            label = "1 layer" if depth == 1 else f"{depth} layers"
            ends = [height - half], [height + half]
            plots.line(axes, [one["tokens_per_second"]], [height], depth - 1, interval=ends, label=label)
        axes.set(xlabel="tokens per second of the training", ylabel=measure, title=f"{task}, {size}", ylim=limits)
        plots.legend(axes)
    save_result(folder, "depth", kept, drawn)


if __name__ == "__main__":
    main()

"""The field's tables on one data set: the memory, the same network with something else in its place, and baselines.

    python experiments/forecasting/tables.py path/to/ETTh1.csv.gz        # 20 (ETTh1) to 60 minutes; resumes
    python experiments/forecasting/tables.py path/to/ETTm1.csv.gz --models lmm none

The twins differ in the mixer alone: "none" has feed-forward layers only, "swa" attention (over all patches of the
window), "gated-deltanet" a gated linear recurrence. Writes `runs/<data set>/` and, into
`docs/lab-notes/forecasting`, the result as JSON and as a picture.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from rich.progress import Progress

from titans.evaluation.forecasting_run import load

MODELS = ("lmm", "none", "swa", "gated-deltanet")


def main() -> None:
    """Run what is missing and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="CSV of an ETT data set")
    parser.add_argument(
        "--models", nargs="+", default=MODELS, help="default: those above; also mac, mag, mal, dlinear, …"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--look-back", type=int, default=96)
    parser.add_argument("--runs", type=Path, default=Path("runs/forecasting"))
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/forecasting"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the operations are too small to share
    evaluation = load(arguments.dataset, "ett", context_length=arguments.look_back)
    name = evaluation.benchmark.name + ("" if arguments.look_back == 96 else f"-{arguments.look_back}")
    with Progress() as progress:
        task = progress.add_task(name, total=1.0)
        result = evaluation.measure(
            arguments.runs / name,
            arguments.models,
            arguments.seeds,
            progress=lambda done, doing: progress.update(task, completed=done, description=doing),
        )
    for model in result.models:
        mean = result.mean(model)
        print(f"{model:15} {mean}" if mean is None else f"{model:15} {mean.mse:.4f} {mean.mae:.4f}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for suffix in (".json", ".png"):
        shutil.copyfile(arguments.runs / name / f"forecasting{suffix}", arguments.out / f"{name}{suffix}")


if __name__ == "__main__":
    main()

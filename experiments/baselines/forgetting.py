"""Forgetting-MQAR for all models of mqar.yaml, each with the learning rate that MQAR chose for it.

    titans compare experiments/baselines/mqar.yaml --jobs 2 --out docs/lab-notes/baselines/mqar
    python experiments/baselines/forgetting.py --jobs 2

Same budget and models; sizes are larger, because half of the keys are stated twice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from titans.evaluation.comparison import compare, load_comparison
from titans.evaluation.comparison.report import markdown

RECIPE = Path(__file__).with_name("mqar.yaml")
SIZES = ("task.name=forgetting-mqar", "train=[12/2, 24/4, 40/8]", "lengths=[40/8, 64/8, 128/8, 256/8]")


def main() -> None:
    """Take the learning rates from MQAR's results, train, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    rates = Path("docs/lab-notes/baselines/mqar/results.json")
    parser.add_argument("--rates", type=Path, default=rates, help="of MQAR")
    parser.add_argument("--jobs", type=int, default=1, help="models to train at a time")
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/baselines/forgetting-mqar"))
    arguments = parser.parse_args()
    found = json.loads(arguments.rates.read_text())["models"]
    rates = [f"models.{model['name']}.learning_rates=[{model['learning_rate']}]" for model in found]
    comparison = load_comparison(RECIPE, [*SIZES, *rates])
    result = compare(
        comparison, arguments.out, jobs=arguments.jobs, progress=lambda share, what: print(f"{share:4.0%}", what)
    )
    print(markdown(result))


if __name__ == "__main__":
    main()

"""Is it the inner gradient that a memory recalls by? Four checks of arXiv 2602.21204, each retrained.

    python experiments/deep_memory/checks.py

Gradient ascent in place of descent, queries that are the keys, two inner steps for each token, and layers below the
last that learn while reading, each beside the memory as it is, in the LMM of mqar.yaml: MQAR, and MQAR with keys stated
anew.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titans import NeuralMemory, register_mixer
from titans.evaluation.comparison import compare, load_comparison
from titans.evaluation.comparison.report import markdown
from titans.layers.projection import ConvolvedProjection

RECIPE = Path(__file__).with_name("mqar.yaml")
TASKS = {
    "mqar": (),
    "forgetting-mqar": ("task.name=forgetting-mqar", "train=[12/2, 24/4, 40/8]", "lengths=[40/8, 64/8, 128/8, 256/8]"),
}
BASE = "{ chunk_size: 16 }"
MODELS = {
    "as-it-is": f"{{ layers: [memory], memory: {BASE} }}",
    "ascent": f"{{ layers: [memory_by_ascent], memory: {BASE} }}",
    "queries-are-keys": f"{{ layers: [memory_asked_by_keys], memory: {BASE} }}",
    "two-steps": f"{{ layers: [memory_in_two_steps], memory: {BASE} }}",
    "all-layers": "{ layers: [memory], memory: { chunk_size: 16, hidden_lr: 1.0 } }",
}


class MemoryByAscent(NeuralMemory):
    """A memory that goes up its loss: every step has the wrong sign."""

    def _gates(self, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        theta, alpha, eta, carried = super()._gates(*args)
        return -theta, alpha, eta, carried


class KeysForQueries(ConvolvedProjection):
    """Queries, keys and values, of which the queries are the keys."""

    def forward(self, *args: Any) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Project the next tokens of a stream."""
        (_, k, v), conv_state = super().forward(*args)
        return (k, k, v), conv_state


class MemoryAskedByKeys(NeuralMemory):
    """A memory that is asked by what it is written by."""

    def __init__(self, hidden_size: int, *args: Any, **options: Any) -> None:
        super().__init__(hidden_size, *args, **options)
        self.qkv_proj = KeysForQueries(hidden_size, self.num_heads, self.qkv_proj.norms, self.config.use_short_conv)


class Twice(ConvolvedProjection):
    """Queries, keys and values, each token's two times."""

    def forward(self, *args: Any) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Project the next tokens of a stream."""
        parts, conv_state = super().forward(*args)
        return tuple(x.repeat_interleave(2, 1) for x in parts), conv_state


class MemoryInTwoSteps(NeuralMemory):
    """A memory that takes two steps for each token, forgets in the first, and reads after the second."""

    def __init__(self, hidden_size: int, *args: Any, **options: Any) -> None:
        super().__init__(hidden_size, *args, **options)
        self.qkv_proj = Twice(hidden_size, self.num_heads, self.qkv_proj.norms, self.config.use_short_conv)

    def _gates(self, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        theta, alpha, eta, carried = super()._gates(*args)
        forgetting = torch.stack([alpha, torch.zeros_like(alpha)], 2).flatten(1, 2)
        return theta.repeat_interleave(2, 1), forgetting, eta.repeat_interleave(2, 1), carried

    def _norm_gate_project(self, y: Tensor, x: Tensor) -> Tensor:
        return super()._norm_gate_project(y[:, 1::2], x)


def main() -> None:
    """Train, and write the results of each task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/deep-memory"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    register_mixer("memory_by_ascent", MemoryByAscent)
    register_mixer("memory_asked_by_keys", MemoryAskedByKeys)
    register_mixer("memory_in_two_steps", MemoryInTwoSteps)
    models = "models={ " + ", ".join(f"{name}: {fields}" for name, fields in MODELS.items()) + " }"
    for task, overrides in TASKS.items():
        comparison = load_comparison(RECIPE, [models, *overrides])
        result = compare(comparison, arguments.out / f"checks-{task}", progress=lambda done, what: print(what))
        print(markdown(result))


if __name__ == "__main__":
    main()

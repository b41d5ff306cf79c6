"""What a new memory holds: random pairs of unit keys and values, each written once, in one pass, with open gates.

    python experiments/deep_memory/capacity.py

A read is right where the value nearest to it is the right one. Two questions: is one write enough (16 pairs; the chunk
size, the depth and the size of the values must not matter); and how many pairs fit until fewer than 90 % are read
right, for one, two and three layers at equal width and at equal bytes of state. No layer has been trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from titans import NeuralMemory, plots
from titans.evaluation.intervals import wilson
from titans.evaluation.results import save_result
from titans.ops import associative_memory
from titans.ops.associative_memory import memory_features, read_memory

HEADS = 8
PAIRS = tuple(round(2 ** (n / 4)) for n in range(12, 41))  # 8 to 1,024
TICKS = (8, 16, 32, 64, 128, 256)
VALUES = {"1": 1.0, "0.3": 0.3, "0.05, a new layer's": 0.05}
RULES = {"token": {}, "token, all layers learn": {"hidden_lr": 1.0}, "chunk": {"rule": "chunk"}}
SHAPES = {  # head width and options: the same width, or the same numbers in the state
    "matrix": (32, {"depth": 1}),
    "two layers": (32, {"depth": 2}),
    "three layers": (32, {"depth": 3}),
    "two layers, expansion 8": (32, {"depth": 2, "expansion": 8}),
    "matrix twice as wide, as many bytes as two layers": (64, {"depth": 1}),
    "two layers, twice as wide": (64, {"depth": 2}),
}


@torch.inference_mode()
def right_answers(width: int, pairs: int, rms: float, seeds: int, **options: Any) -> tuple[int, int]:
    """Write pairs into new memories; return how many are read right, and of how many."""
    right = 0
    for seed in range(seeds):
        torch.manual_seed(seed)
        layer = NeuralMemory(HEADS * width, HEADS, **{"rule": "token", **options})
        keys = F.normalize(torch.randn(1, pairs, HEADS, width), dim=-1)
        values = rms * torch.randn(1, pairs, HEADS, width)
        features = memory_features(keys, list(layer.feature_weights), activation=layer.config.activation)
        step = torch.full((1, pairs, HEADS), layer.config.max_step)
        off = torch.zeros_like(step)
        network = {**layer.network_options, "norm_weight": layer.memory_norm}
        memory = layer.empty_state(1).memory
        _, memory = associative_memory(features, features, values, step, off, off, memory, **layer.options, **network)
        read = read_memory(features, memory.weights, **network)
        distance = torch.cdist(read.transpose(1, 2), values.transpose(1, 2))  # [1, H, pairs, pairs]
        right += int((distance.argmin(-1) == torch.arange(pairs)).sum())
    return right, seeds * HEADS * pairs


def one_shot(seeds: int) -> list[dict[str, Any]]:
    """Return the share of 16 pairs that is read right, for each rule, depth, chunk size and size of the values."""
    found = []
    for rule, options in RULES.items():
        for depth in (2, 3):
            for chunk_size in (16, 64, 128):
                for name, rms in VALUES.items():
                    counts = right_answers(64, 16, rms, seeds, depth=depth, chunk_size=chunk_size, **options)
                    low, high = wilson(*counts)
                    cell = {"rule": rule, "depth": depth, "chunk_size": chunk_size, "values": name}
                    found.append({**cell, "right": counts[0] / counts[1], "low": low, "high": high})
    return found


def capacity(seeds: int) -> dict[str, dict[str, Any]]:
    """Return for each shape the bytes of a head's state and the share of right answers by the number of pairs."""
    found: dict[str, dict[str, Any]] = {}
    for name, (width, options) in SHAPES.items():
        shares: dict[int, float] = {}
        for pairs in PAIRS:
            right, total = right_answers(width, pairs, 0.3, seeds, **options)
            shares[pairs] = right / total
            if right < total / 4:
                break
        layer = NeuralMemory(HEADS * width, HEADS, **{"rule": "token", **options})
        weights = 4 * layer.size // HEADS
        held = max((pairs for pairs, share in shares.items() if share >= 0.9), default=0)
        found[name] = {"width": width, "bytes_of_weights": weights, "right": shares, "pairs_at_90": held}
        print(f"{name}: {weights:,} bytes of weights a head hold {held} pairs")
    return found


def main() -> None:
    """Measure, draw, and write `capacity.json` and `capacity.png`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="memories of 8 heads for each number (default 5)")
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/deep-memory"))
    arguments = parser.parse_args()
    table = one_shot(arguments.seeds)
    for cell in table:
        place = f"{cell['rule']}, {cell['depth']} layers, chunk {cell['chunk_size']}, values {cell['values']}"
        print(f"{place}: {cell['right']:.1%} ({cell['low']:.1%} to {cell['high']:.1%})")
    held = capacity(arguments.seeds)
    drawn, (axes,) = plots.figure(size=(8, 4.5))
    for number, (name, found) in enumerate(held.items()):
        shares = found["right"]
        plots.line(axes, shares, [100 * share for share in shares.values()], number, label=name)
    axes.axhline(90, color=plots.RULE)
    axes.set(xlabel="pairs written once", ylabel="read right, %", ylim=(0, 103))
    axes.set_xscale("log", base=2)
    axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axes.minorticks_off()
    plots.legend(axes)
    save_result(arguments.out, "capacity", {"one_shot": table, "capacity": held}, drawn)


if __name__ == "__main__":
    main()

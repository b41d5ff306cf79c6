"""What a memory holds of data that repeats, with and without limited steps (docs/lab-notes/stability.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from titans import NeuralMemory

DIM, HEADS, ROWS, PIECE, PIECES = 16, 2, 6, 512, 40
LAYERS = {
    "depth 1": {"depth": 1},
    "default": {},
    "depth 3": {"depth": 3},
    "depth 4": {"depth": 4},
    "chunk 16": {"chunk_size": 16},
}


def losses(layer: NeuralMemory, pattern: Tensor) -> Tensor:
    """Return the inner loss before the first token and after each piece, over its start: `[1 + P, B]`."""
    state = layer.initial_state(len(pattern))
    # Three tokens ahead, so that the convolution sees the pattern repeated.
    (_, k, v), _ = layer.qkv_proj(torch.cat([pattern[:, -3:], pattern], 1), state.conv_state, None)
    k, v = k[:, 3:], v[:, 3:]
    found = []
    for piece in range(PIECES + 1):
        if piece:
            _, state = layer(pattern.repeat(1, PIECE // pattern.shape[1], 1), state)
        found.append((layer.recall(k, state.memory.weights) - v).square().sum(-1).mean((1, 2)))
    return torch.stack(found) / found[0]


def split_error(layer: NeuralMemory, pattern: Tensor) -> float:
    """Return the largest relative difference in the weights between one call of 2,048 tokens and two."""
    x = pattern.repeat(1, 2048 // pattern.shape[1], 1)
    _, whole = layer(x)
    _, split = layer(x[:, 777:], layer(x[:, :777])[1])
    pairs = zip(whole.memory.weights, split.memory.weights, strict=True)
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)


@torch.no_grad()
def main() -> None:
    """Print one line per layer, period and setting."""
    print("loss over its start: mean after 2,048 tokens, largest, last; float32 error of a split")
    for name, options in LAYERS.items():
        for period in (4, 8):
            for limited in (False, True):
                torch.manual_seed(0)
                layer = NeuralMemory(DIM, HEADS, limit_steps=limited, **options)
                pattern = torch.randn(ROWS, period, DIM, generator=torch.Generator().manual_seed(2))
                if period == 4:
                    pattern = pattern[:, :1].repeat(1, 4, 1)  # one token
                ratio = losses(layer, pattern)
                print(
                    f"{name:9} {'one token  ' if period == 4 else '8 in turn  '} {'limited' if limited else 'plain  '}"
                    f"  {ratio[4:].mean():5.2f}  {ratio[1:].max():5.2f}  {ratio[-1].max():5.2f}"
                    f"   {split_error(layer, pattern):.0e}"
                )


if __name__ == "__main__":
    main()

"""The selective scan token by token: the oracle that the chunked form must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_selective_scan(
    u: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, vector: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Read and write one token after the other.

    Args:
        u: inputs `[B, T, D]`.
        step: time steps `[B, T, D]`.
        rate: `[D, S]`.
        b: `[B, T, S]`.
        c: `[B, T, S]`.
        vector: the state before the first token `[B, D, S]`.
        chunk_size: not used.

    Returns:
        The reads `[B, T, D]` and the state after the last token.
    """
    outputs = []
    for t in range(u.shape[1]):
        dt = step[:, t].unsqueeze(-1)  # [B, D, 1]
        vector = (-dt * rate).exp() * vector + dt * u[:, t].unsqueeze(-1) * b[:, t].unsqueeze(1)
        outputs.append((vector * c[:, t].unsqueeze(1)).sum(-1))
    return torch.stack(outputs, 1), vector

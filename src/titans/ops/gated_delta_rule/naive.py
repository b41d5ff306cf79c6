"""The linear recurrences token by token: the oracle that the chunked form must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor | None, matrix: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Read and write one token after the other.

    Args:
        q: queries `[B, H, T, d_k]`.
        k: keys `[B, H, T, d_k]`.
        v: values `[B, H, T, d_v]`.
        log_decay: `[B, H, T, c]`, c = 1 or d_k.
        beta: `[B, H, T, 1]`, or None for no delta rule.
        matrix: the memory before the first token `[B, H, d_k, d_v]`.
        chunk_size: not used.

    Returns:
        The reads `[B, H, T, d_v]` and the memory after the last token.
    """
    outputs = []
    for t in range(q.shape[2]):
        key, value, query = k[:, :, t : t + 1], v[:, :, t : t + 1], q[:, :, t : t + 1]  # [B, H, 1, d]
        decayed = log_decay[:, :, t].exp().unsqueeze(-1) * matrix
        if beta is not None:
            value = beta[:, :, t : t + 1] * (value - key @ decayed)
        matrix = decayed + key.mT @ value
        outputs.append(query @ matrix)
    return torch.cat(outputs, 2), matrix

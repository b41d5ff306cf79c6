"""The chunked form: all chunks step through their tokens side by side, then their starts are carried through.

The recurrence is linear, so a chunk may start from 0 and have added to it what is left of its true start.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.ops.scan import group_size, scan
from titans.ops.tracing import require_static_length


class Tokens(NamedTuple):
    """The inputs of consecutive chunks of n tokens."""

    u: Tensor  # [B, C, n, D]
    step: Tensor  # [B, C, n, D]
    b: Tensor  # [B, C, n, S]
    c: Tensor  # [B, C, n, S]


def chunk_selective_scan(
    u: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, vector: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Read and write chunk by chunk; arguments and results as of `naive_selective_scan`."""
    tokens = u.shape[1]
    require_static_length(tokens)
    size = min(chunk_size, tokens)
    chunks = -(-tokens // size)
    rest = chunks * size - tokens  # filled up with tokens that take no time
    cut = [F.pad(x, (0, 0, 0, rest)).unflatten(1, (chunks, size)) for x in (u, step, b, c)]
    groups = [Tokens(*x) for x in zip(*(x.split(group_size(chunks), 1) for x in cut), strict=True)]
    vector, outputs = scan(partial(_group, rate), vector, groups, recompute=len(groups) > 1)
    return torch.cat(outputs, 1).flatten(1, 2)[:, :tokens], vector


def _group(rate: Tensor, vector: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    u, step, b, c = tokens
    decay = (-step.unsqueeze(-1) * rate).exp()  # [B, C, n, D, S]
    write = (step * u).unsqueeze(-1) * b.unsqueeze(-2)
    states = [torch.zeros_like(write[:, :, 0])]
    for d, w in zip(decay.unbind(2), write.unbind(2), strict=True):
        states.append(d * states[-1] + w)
    inner = torch.stack(states[1:], 2)
    reach = (-step.cumsum(2).unsqueeze(-1) * rate).exp()  # decay since the chunk's start
    starts = []
    for left, end in zip(reach[:, :, -1].unbind(1), states[-1].unbind(1), strict=True):
        starts.append(vector)
        vector = left * vector + end
    inner = inner + reach * torch.stack(starts, 1).unsqueeze(2)
    return vector, (inner @ c.unsqueeze(-1)).squeeze(-1)

"""How much of what one token wrote is left for another: decays as sums of logarithms that are never subtracted.

A difference of two running sums is wrong where one of them is infinite (a decay of exactly 0) and overflows where
it is turned the wrong way round. Every sum here runs over the tokens it is about and no others, so it is at most 0:
its exponential neither overflows nor is 0 divided by 0, and the gradients are finite too.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def segments(log_decay: Tensor) -> Tensor:
    """Compute the decay from each token to each later one.

    Args:
        log_decay: `[..., b, c]`.

    Returns:
        `exp(sum_{j < s <= t} log_decay_s)` for `j <= t`, 0 for `j > t`: `[..., b, b, c]`, t before j.
    """
    b = log_decay.shape[-2]
    later = torch.ones(b, b, dtype=torch.bool, device=log_decay.device).tril(-1).unsqueeze(-1)  # [t, j, 1]: t > j
    sums = torch.where(later, log_decay.unsqueeze(-2), 0.0).cumsum(-3)
    return torch.where(later.transpose(0, 1), 0.0, sums.exp())


def since_start(log_decay: Tensor) -> Tensor:
    """Decay from before the first token to each one, itself included: `[..., b, c]`."""
    return log_decay.cumsum(-2).exp()


def until_end(log_decay: Tensor) -> Tensor:
    """Decay from each token, itself excluded, to the last one: `[..., b, c]`."""
    return _after(log_decay).exp()


def products(q: Tensor, k: Tensor, log_decay: Tensor) -> Tensor:
    """Compute the inner products of queries with decayed keys.

    With one decay a head that is a product of two matrices times `segments`. With one a channel, the chunk is cut
    into pieces of about its square root: within a piece every pair of tokens has its own vector of decays; between
    pieces the decay splits at the start of the query's piece into a factor of the query and one of the key.

    Args:
        q: `[..., b, d]`.
        k: `[..., b, d]`.
        log_decay: `[..., b, c]`, c = 1 or d.

    Returns:
        `sum_d q[t, d] k[j, d] exp(sum_{j < s <= t} log_decay[s, d])` for `j <= t`, 0 for `j > t`: `[..., b, b]`.
    """
    if log_decay.shape[-1] == 1:
        return (q @ k.mT) * segments(log_decay).squeeze(-1)
    b = q.shape[-2]
    size = max(1, math.isqrt(b))
    count = -(-b // size)
    q, k, log_decay = (F.pad(x, (0, 0, 0, count * size - b)).unflatten(-2, (count, size)) for x in (q, k, log_decay))
    within = ((q.unsqueeze(-2) * segments(log_decay)) * k.unsqueeze(-3)).sum(-1)  # [..., count, size, size]
    between = _earlier_pieces(q, k, log_decay)  # [..., count, size, count, size]
    diagonal = torch.eye(count, dtype=torch.bool, device=q.device)[:, None, :, None]
    found = torch.where(diagonal, within.unsqueeze(-2), between).flatten(-4, -3).flatten(-2)
    return found[..., :b, :b]


def _earlier_pieces(q: Tensor, k: Tensor, log_decay: Tensor) -> Tensor:
    """Products of queries with the keys of earlier pieces, 0 for other keys; inputs are `[..., count, size, d]`."""
    count = q.shape[-3]
    whole = log_decay.sum(-2)  # [..., count, d]
    # From the end of the key's piece j to the start of the query's piece i, over the pieces between.
    inner = torch.ones(count, count, dtype=torch.bool, device=q.device).tril(-1)
    sums = torch.where(inner.unsqueeze(-1), whole.unsqueeze(-2), 0.0).cumsum(-3)  # [..., i, j, d]: pieces j + 1 .. i
    gap = F.pad(sums[..., :-1, :, :], (0, 0, 0, 0, 1, 0))  # pieces j + 1 .. i - 1
    left = (_after(log_decay).unsqueeze(-4) + gap.unsqueeze(-2)).exp()  # [..., i, j, size, d]
    keys = torch.where(inner[..., None, None], k.unsqueeze(-4) * left, 0.0).flatten(-3, -2)  # [..., i, count size, d]
    found: Tensor = ((q * since_start(log_decay)) @ keys.mT).unflatten(-1, (count, -1))
    return found


def _after(log_decay: Tensor) -> Tensor:
    """Sum over the tokens after each one: `[..., b, c]`."""
    later = F.pad(log_decay[..., 1:, :], (0, 0, 0, 1))
    return later.flip(-2).cumsum(-2).flip(-2)

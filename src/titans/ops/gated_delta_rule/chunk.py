"""The parallel form: chunks of tokens as matrix products; only one matrix a chunk passes from chunk to chunk.

With `G_t` the decay since the chunk's start, `S` the memory there and `u_t` what token t writes (`S_t` grows by
`k_t^T u_t`), a chunk reads

    y_t = (q_t G_t) S + sum_{j <= t} (q_t G_t / G_j . k_j) u_j

and under the delta rule `u_t = beta_t (v_t - (k_t G_t) S - sum_{j < t} (k_t G_t / G_j . k_j) u_j)`: one unit
lower-triangular system a chunk, whose solution is linear in S and so is found for all chunks before any memory is
known (Yang et al., 2024, the WY form of DeltaNet).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.ops.gated_delta_rule.decay import products, since_start, until_end
from titans.ops.scan import group_size, scan
from titans.ops.tracing import require_static_length


class Tokens(NamedTuple):
    """The inputs of consecutive chunks of b tokens, stacked over chunks in dimension 2."""

    q: Tensor  # [B, H, C, b, d_k]
    k: Tensor  # [B, H, C, b, d_k]
    v: Tensor  # [B, H, C, b, d_v]
    log_decay: Tensor  # [B, H, C, b, c]
    beta: Tensor | None  # [B, H, C, b, 1]


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor | None, matrix: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Read and write chunk by chunk; arguments and results as of `naive_gated_delta_rule`."""
    tokens = q.shape[2]
    require_static_length(tokens)
    size = min(chunk_size, tokens)
    chunks = -(-tokens // size)
    whole = [_cut(x, chunks, size) for x in (q, k, v, log_decay, beta)]
    step = group_size(chunks)
    parts = [[None] * -(-chunks // step) if x is None else x.split(step, 2) for x in whole]
    groups = [Tokens(*x) for x in zip(*parts, strict=True)]
    matrix, outputs = scan(_group, matrix, groups, recompute=len(groups) > 1)
    return torch.cat(outputs, 2).flatten(2, 3)[:, :, :tokens], matrix


def _cut(x: Tensor | None, chunks: int, size: int) -> Tensor | None:
    """Cut into chunks, filled up with tokens that change nothing: no key, no decay."""
    if x is None:
        return None
    cut: Tensor = F.pad(x, (0, 0, 0, chunks * size - x.shape[2])).unflatten(2, (chunks, size))
    return cut


def _group(matrix: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Run consecutive chunks; all that does not depend on the memory is computed for all of them at once."""
    q, k, v, log_decay, beta = tokens
    reach = since_start(log_decay)
    write, sees = (v, None) if beta is None else _solve(k, v, log_decay, beta, reach)
    kept = k * until_end(log_decay)
    whole = log_decay.sum(-2).exp().unsqueeze(-1)  # [B, H, C, c, 1]
    starts, writes = [], []
    for i in range(q.shape[2]):
        u = write[:, :, i] if sees is None else write[:, :, i] - sees[:, :, i] @ matrix
        starts.append(matrix)
        writes.append(u)
        matrix = whole[:, :, i] * matrix + kept[:, :, i].mT @ u
    y = (q * reach) @ torch.stack(starts, 2) + products(q, k, log_decay) @ torch.stack(writes, 2)
    return matrix, y


def _solve(k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Return `[B, H, C, b, d_v]` and `[B, H, C, b, d_k]`: the writes are the first minus the second times S."""
    system = (beta * products(k, k, log_decay)).tril(-1)
    right = beta * torch.cat([v, k * reach], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    write, sees = solved.split([v.shape[-1], k.shape[-1]], -1)
    return write, sees

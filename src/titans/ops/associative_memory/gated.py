"""The parallel form where a gate decides, chunk by chunk, which tokens are written (docs/semantics.md, section 6).

What a gate sees of a chunk's tokens, their gradient norms, depends on what was written before, so no chunk can be
prepared ahead of the one before it. Under the token rule the same holds from token to token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from titans.ops.associative_memory.arguments import Inputs, is_anchored, prepare
from titans.ops.associative_memory.chunk_step import ChunkState, errors, limited, read, slowed, token_errors, write
from titans.ops.associative_memory.network import Options, gradient_square
from titans.ops.associative_memory.recurrence import coefficients
from titans.ops.associative_memory.state import AssociativeMemoryState
from titans.ops.chunk_alignment import chunk_alignment, renew
from titans.ops.tracing import disable_autocast, is_concrete

Carry = TypeVar("Carry")


class Decision(NamedTuple):
    """What becomes of the b tokens of a chunk, `[B, b]` each.

    Args:
        written: bool. The others leave the memory as it is; they are read, and count as positions of the chunk.
        dropped: bool, which of the others were left out as outliers; for the caller's information.
        kept: share of the weights that each written token keeps, beside its own forget gate.
    """

    written: Tensor
    dropped: Tensor
    kept: Tensor


# (carry, gradient norms [B, b] as the mean over heads, mask [B, b] or None) -> (carry, decision)
Gate = Callable[[Carry, Tensor, Tensor | None], tuple[Carry, Decision]]


class Gated(NamedTuple, Generic[Carry]):
    """What `gated_associative_memory` returns; False and 0 for padding.

    Args:
        y: reads `[B, T, H, d_out]`.
        memory: the memory after the last token.
        carry: the gate's carry after it.
        surprise: gradient norms `[B, T, H]`.
        written: `[B, T]`, bool.
        dropped: `[B, T]`, bool.
        kept: `[B, T]`, see `Decision`.
    """

    y: Tensor
    memory: AssociativeMemoryState
    carry: Carry
    surprise: Tensor
    written: Tensor
    dropped: Tensor
    kept: Tensor


def gated_associative_memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    theta: Tensor,
    alpha: Tensor,
    eta: Tensor,
    state: AssociativeMemoryState,
    gate: Gate[Carry],
    carry: Carry,
    *,
    mask: Tensor | None = None,
    **options: Any,
) -> Gated[Carry]:
    """Read every token and write those that the gate lets in.

    Args:
        q: queries `[B, T, H, d_in]`; like all tensors and options as of `associative_memory`.
        k: keys `[B, T, H, d_in]`.
        v: values `[B, T, H, d_out]`.
        theta: step sizes `[B, T, H]`.
        alpha: forget gates `[B, T, H]` or `[B, T, H, c]`.
        eta: momentum `[B, T, H]`.
        state: the memory before the first token.
        gate: decides chunk by chunk, or token by token under the token rule.
        carry: what the gate starts from.
        mask: `[B, T]`, False for padding, which no gate sees as a token.
        **options: `chunk_size`, `rule`, `activation`, `residual`, `norm_weight` and `limit_steps`.

    Returns:
        Reads, the memory and the carry after the last token, and each token's surprise and fate.
    """
    chosen, inputs, state = prepare((q, k, v, theta, alpha, eta), state, mask, surprise=True, **options)
    with disable_autocast(q.device):
        found = _chunks(chosen, inputs, mask, state, gate, carry)
    y = found.y.transpose(1, 2).to(v.dtype)
    return found._replace(y=y, surprise=found.surprise.transpose(1, 2))


def _chunks(
    options: Options,
    inputs: Inputs,
    mask: Tensor | None,
    state: AssociativeMemoryState,
    gate: Gate[Carry],
    carry: Carry,
) -> Gated[Carry]:
    """Run through the chunks; reads and surprise with heads before tokens."""
    offset = state.offset if options.anchored else 0
    q, k, v, theta, alpha, eta = inputs
    alignment = chunk_alignment(offset, mask, q.shape[0], q.shape[2], options.chunk_size, q.device)
    decay = (1 - alpha).unsqueeze(-1) if alpha.dim() == 3 else 1 - alpha
    aligned = [alignment.align(x, 2) for x in (q, k, v, theta, decay, eta)]
    memory = ChunkState(state.weights, state.surprise, state.anchor)
    chunks: list[tuple[Tensor, ...]] = []
    for span in alignment.spans:
        parts = [span.cut(x, 2).unbind(2) for x in aligned]
        masks = [None] * span.chunks if alignment.mask is None else span.cut(alignment.mask, 1).unbind(1)
        for tokens, here, end in zip(zip(*parts, strict=True), masks, span.ends(), strict=True):
            for piece, piece_mask, piece_end in _decided_together(options, tokens, here, end):
                memory, carry, found = _chunk(options, gate, memory, carry, piece, piece_mask, piece_end)
                chunks.append(found)
    along = (2, 2, 1, 1, 1)  # the dimension of tokens
    outputs = (torch.cat(x, dim) for x, dim in zip(zip(*chunks, strict=True), along, strict=True))
    y, norm, written, dropped, kept = (alignment.unalign(x, dim) for x, dim in zip(outputs, along, strict=True))
    if mask is not None:
        y, norm = torch.where(mask[:, None, :, None], y, 0.0), torch.where(mask[:, None], norm, 0.0)
        written, dropped = written & mask, dropped & mask
    return Gated(y, memory.state(options.anchored, state.offset, alignment.end), carry, norm, written, dropped, kept)


def _decided_together(
    options: Options, tokens: tuple[Tensor, ...], mask: Tensor | None, end: bool | Tensor
) -> Iterator[tuple[tuple[Tensor, ...], Tensor | None, bool | Tensor]]:
    """Split a chunk into what a gate can decide on at once: under the token rule, where every write counts, tokens."""
    if options.rule == "chunk":
        yield tokens, mask, end
        return
    count = tokens[0].shape[2]
    for t in range(count):
        here = slice(t, t + 1)
        last = t == count - 1
        yield tuple(x[:, :, here] for x in tokens), None if mask is None else mask[:, here], last and end


def _chunk(
    options: Options,
    gate: Gate[Carry],
    memory: ChunkState,
    carry: Carry,
    tokens: tuple[Tensor, ...],
    mask: Tensor | None,
    end: bool | Tensor,
) -> tuple[ChunkState, Carry, tuple[Tensor, ...]]:
    """Decide on one chunk, write and read it; outputs are reads, gradient norms and the decision."""
    network, (q, k, v, theta, decay, eta) = options.network, tokens
    if options.rule == "token":  # a single one, whose errors do not depend on whether it is written
        inputs, deltas = token_errors(network, k, v, memory, coefficients(theta, decay.mT, eta))
    else:
        inputs, deltas, z = errors(network, k, v, memory)
    square = gradient_square(inputs, deltas)
    norm = square.detach().sqrt().squeeze(-1)
    carry, decision = gate(carry, norm.mean(1), mask)
    # Worth waiting for: most chunks of a stream without surprises need no more.
    if is_concrete(norm) and not decision.written.any():
        y, memory = network(memory.weights, q), memory._replace(anchor=renew(memory.anchor, memory.weights, end))
    else:
        if options.limit_steps:
            deltas = limited(network, z, deltas, square)
        deltas = slowed(deltas, options.hidden_lr)
        c = coefficients(theta, decay.mT * decision.kept[:, None, None], eta, decision.written.unsqueeze(1))
        y, memory = read(network, q, inputs, deltas, c, memory), write(inputs, deltas, c, memory, end)
    return memory, carry, (y, norm, *decision)


def skip_tokens(
    state: AssociativeMemoryState, tokens: int, mask: Tensor | None, rule: str, chunk_size: int
) -> AssociativeMemoryState:
    """Move a memory past tokens that are not written: its place in the chunk changes and, at an end, the anchor.

    Args:
        state: before the tokens, of B rows.
        tokens: T.
        mask: `[B, T]`, False for padding; None for none.
        rule: "chunk" or "token".
        chunk_size: tokens per chunk.

    Returns:
        The state after them.
    """
    if not is_anchored(rule, state):
        return state
    stop = state.offset + (tokens if mask is None else mask.sum(1))
    anchor = renew(state.anchor, state.weights, stop >= chunk_size)
    return AssociativeMemoryState(state.weights, state.surprise, anchor, stop % chunk_size)

"""The parallel form: chunks of tokens as matrix products, without a weight matrix per token.

See docs/semantics.md, section 2.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.associative_memory import manual_backward, native
from titans.ops.associative_memory.arguments import Inputs
from titans.ops.associative_memory.chunk_autograd import Backend, ChunkFunction, thirds
from titans.ops.associative_memory.chunk_step import ChunkState, errors, limited, read, slowed, token_errors, write
from titans.ops.associative_memory.network import Options, gradient_square
from titans.ops.associative_memory.recurrence import Coefficients, coefficients
from titans.ops.associative_memory.state import AssociativeMemoryState
from titans.ops.chunk_alignment import Span, chunk_alignment
from titans.ops.scan import group_size, join_blocks, scan, scan_blocks
from titans.ops.tracing import is_dynamic, is_eager

MANUAL_BACKWARD_CHUNKS = 4  # fewer are faster by autograd: laying them out costs more than it saves

Output = tuple[Tensor, Tensor | None]  # reads [B, H, n, d] and, where asked for, gradient norms [B, H, n]


class Tokens(NamedTuple):
    """The inputs of consecutive chunks, stacked over chunks in dimension 2."""

    q: Tensor  # [B, H, C, b, d_in]
    k: Tensor  # [B, H, C, b, d_in]
    v: Tensor  # [B, H, C, b, d_out]
    theta: Tensor  # [B, H, C, b]
    decay: Tensor  # [B, H, C, c, b]
    eta: Tensor  # [B, H, C, b]
    mask: Tensor | None  # [B, 1, C, b], bool

    def groups(self, size: int) -> list[Tokens]:
        """Split into groups of `size` chunks; the last may be smaller."""
        count = -(-self.q.shape[2] // size)
        # split, like unbind below, and not slices: the backward of a slice writes a zero tensor of full size.
        return [
            Tokens(*x) for x in zip(*([None] * count if y is None else y.split(size, 2) for y in self), strict=True)
        ]


def chunk_associative_memory(
    options: Options, inputs: Inputs, mask: Tensor | None, state: AssociativeMemoryState
) -> tuple[Tensor, Tensor | None, AssociativeMemoryState]:
    """Read and write chunk by chunk.

    Args:
        options: of the call.
        inputs: the tokens.
        mask: `[B, T]`, False for padding.
        state: the memory before the first token, of B rows.

    Returns:
        Reads `[B, H, T, d_out]`, gradient norms `[B, H, T]` where asked for, and the memory after the last token.
    """
    q, k, v, theta, alpha, eta = inputs
    offset = state.offset if options.anchored else 0
    alignment = chunk_alignment(offset, mask, q.shape[0], q.shape[2], options.chunk_size, q.device, loops=True)
    q, k, v, theta, decay, eta = (alignment.align(x, 2) for x in (q, k, v, theta, 1 - alpha, eta))
    if decay.dim() == 3:
        decay = decay.unsqueeze(-1)  # [B, H, M, c]
    memory = ChunkState(state.weights, state.surprise, state.anchor)
    outputs: list[Output] = []
    for span in alignment.spans:
        q_, k_, v_, theta_, decay_, eta_ = (span.cut(x, 2) for x in (q, k, v, theta, decay, eta))
        mask_ = None if alignment.mask is None else span.cut(alignment.mask.unsqueeze(1), 2)
        tokens = Tokens(q_, k_, v_, theta_, decay_.mT, eta_, mask_)
        memory, parts = (_loop if is_dynamic(span.chunks) else _run)(options, tokens, memory, span)
        outputs += parts
    y = alignment.unalign(torch.cat([y for y, _ in outputs], 2), 2)
    norm = alignment.unalign(torch.cat([n for _, n in outputs if n is not None], 2), 2) if options.surprise else None
    if mask is not None:
        y = torch.where(mask[:, None, :, None], y, 0.0)
        norm = None if norm is None else torch.where(mask[:, None, :], norm, 0.0)
    return y, norm, memory.state(options.anchored, state.offset, alignment.end)


def _run(options: Options, tokens: Tokens, memory: ChunkState, span: Span) -> tuple[ChunkState, list[Output]]:
    """Run through a span's chunks; by the written-out derivative where rows are alike and have one forget gate."""
    backend = _backend(options, tokens, span)
    if backend is None:
        return _scan(options, tokens, memory, span.ends())

    def generic(*inputs: Tensor) -> tuple[Tensor, ...]:
        same = options._replace(network=options.network._replace(norm_weight=inputs[6]))
        q, k, v, theta, decay, eta = inputs[:6]
        start = ChunkState(*thirds(inputs[7:]))
        memory, outputs = _scan(same, Tokens(q, k, v, theta, decay, eta, None), start, span.ends())
        return torch.cat([y for y, _ in outputs], 2).unflatten(2, (span.chunks, -1)), *memory.weights, *memory.surprise

    inputs = (*tokens[:6], options.network.norm_weight, *memory.weights, *memory.surprise, *memory.anchor)
    y, *rest = ChunkFunction.apply(backend, options, generic, *inputs)  # type: ignore[no-untyped-call]
    layers = len(memory.weights)
    weights, surprise = rest[:layers], rest[layers : 2 * layers]
    norm = rest[-1].flatten(2, 3) if options.surprise else None
    return ChunkState(weights, surprise, weights if span.complete else memory.anchor), [(y.flatten(2, 3), norm)]


def _backend(options: Options, tokens: Tokens, span: Span) -> Backend | None:
    """Choose what runs a span's chunks; None: autograd."""
    alike = isinstance(span.complete, bool) and tokens.mask is None and tokens.decay.shape[-2] == 1
    if not alike or not is_eager():
        return None
    if options.backend in (None, "native") and native.available(tokens.q):
        return native
    if options.rule == "token" or options.network.feature_norm:
        return None
    worthwhile = options.backend is None and span.chunks >= MANUAL_BACKWARD_CHUNKS
    return manual_backward if worthwhile or options.backend == "manual_backward" else None


def _scan(
    options: Options, tokens: Tokens, memory: ChunkState, ends: list[bool | Tensor]
) -> tuple[ChunkState, list[Output]]:
    size = group_size(len(ends))
    groups = [(group, ends[i * size : (i + 1) * size]) for i, group in enumerate(tokens.groups(size))]
    return scan(partial(_group, options), memory, groups, recompute=len(groups) > 1)


def _group(
    options: Options, memory: ChunkState, group: tuple[Tokens, list[bool | Tensor]]
) -> tuple[ChunkState, Output]:
    """Run consecutive chunks; all that does not depend on the memory is computed for all of them at once."""
    tokens, ends = group
    chunks = coefficients(tokens.theta, tokens.decay, tokens.eta, tokens.mask).unbind()
    outputs, norms = [], []
    for q, k, v, c, end in zip(*(x.unbind(2) for x in tokens[:3]), chunks, ends, strict=True):
        memory, (y, norm) = _chunk(options, memory, (q, k, v, c, end))
        outputs.append(y)
        norms += [] if norm is None else [norm]
    return memory, (torch.cat(outputs, 2), torch.cat(norms, 2) if norms else None)


def _loop(options: Options, tokens: Tokens, memory: ChunkState, span: Span) -> tuple[ChunkState, list[Output]]:
    """Run through a span's chunks in a graph that leaves their number open; these rows are not alike."""
    assert isinstance(span.complete, Tensor)
    assert tokens.mask is not None  # aligned tokens

    def step(memory: ChunkState, block: list[Tensor]) -> tuple[ChunkState, list[Tensor]]:
        q, k, v, theta, decay, eta, mask, end = block
        c = coefficients(theta, decay, eta, mask)
        memory, (y, norm) = _chunk(options, memory, (q, k, v, c, end))
        return memory, [y] if norm is None else [y, norm]

    blocks = [x.movedim(2, 0) for x in tokens if x is not None]
    memory, outputs = scan_blocks(step, memory, [*blocks, span.complete.movedim(1, 0)])
    y, *norms = (join_blocks(x.movedim(0, 2), 2) for x in outputs)
    return memory, [(y, norms[0] if norms else None)]


def _chunk(
    options: Options, memory: ChunkState, chunk: tuple[Tensor, Tensor, Tensor, Coefficients, bool | Tensor]
) -> tuple[ChunkState, Output]:
    """Read and write one chunk: queries, keys, values, coefficients, and whether it ends there."""
    network, (q, k, v, c, end) = options.network, chunk
    if options.rule == "token":
        inputs, deltas = token_errors(network, k, v, memory, c)
    else:
        inputs, deltas, z = errors(network, k, v, memory)
    if options.surprise or options.limit_steps:
        square = gradient_square(inputs, deltas)
    norm = square.detach().sqrt().squeeze(-1) if options.surprise else None
    if options.limit_steps:
        deltas = limited(network, z, deltas, square)
    deltas = slowed(deltas, options.hidden_lr)
    return write(inputs, deltas, c, memory, end), (read(network, q, inputs, deltas, c, memory), norm)

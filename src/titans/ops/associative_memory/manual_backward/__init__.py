"""A run of whole chunks with its derivative written out, for the chunk rule with one forget gate a head.

The derivative of an inner gradient is again matrix products, so only the coefficients are left to autograd. The
forward pass keeps each token's products and errors, and the state at the start of each group of chunks; the backward
pass makes the states within a group anew and walks back through it. What does not depend on the chunk before, above
all the reads, is one product for a whole group.

Tensors are laid out `[C, M, b, d]`: chunk, row and head, token, channel. A state is one tensor per layer,
`[M, 2 d_in, d_out]`, the weights on top of the surprise, so that one product reads or writes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from titans.ops.associative_memory.chunk_autograd import thirds
from titans.ops.associative_memory.manual_backward.backward import Gradients, Rewritten, walk_back
from titans.ops.associative_memory.manual_backward.forward import Constants, GroupTrace, Tokens, read, rewrite, write
from titans.ops.associative_memory.network import Options, gradient_square
from titans.ops.associative_memory.recurrence import Coefficients, coefficients

GROUP = 1024  # tokens whose states are kept at once and whose reads are one product


def forward(
    options: Options, inputs: Sequence[Any], keep: bool
) -> tuple[list[Tensor], list[tuple[list[Tensor], GroupTrace]]]:
    """Run through the groups, keeping their traces where asked to; arguments and results as of `Backend`."""
    batch = len(inputs[0])
    constants = _constants(options, inputs[6], inputs[0])
    weights, surprise, anchor = thirds([x.flatten(0, 1) for x in inputs[7:]])
    states = [torch.cat(pair, 1) for pair in zip(weights, surprise, strict=True)]
    y, kept = torch.empty_like(inputs[2]), []
    norms = y.new_empty(y.shape[:-1]) if options.surprise else None
    for i, place in enumerate(_places(inputs[0])):
        q, k, v, *gates = _lay_out(inputs[:6], place)
        tokens = Tokens(q, k, v, coefficients(*gates))
        stacks, given, deltas, trace = write(constants, tokens, states, None if i else anchor)
        found, reads = read(constants, tokens, stacks, given, deltas, trace.limits)
        if keep:
            kept.append((states, trace._replace(reads=reads)))
        y[:, :, place] = _rows(found, batch)
        if norms is not None:
            norms[:, :, place] = _rows(gradient_square(given, deltas).sqrt().squeeze(-1), batch)
        states = [stack[-1].clone() for stack in stacks]
    outputs = [y, *_unpack(states, batch)]
    return outputs if norms is None else [*outputs, norms], kept


def backward(
    options: Options, inputs: Sequence[Any], kept: list[tuple[list[Tensor], GroupTrace]], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Go through the groups from the last to the first; arguments and results as of `Backend`."""
    batch, layers = len(inputs[0]), len(inputs[7:]) // 3
    constants = _constants(options, inputs[6], inputs[0])
    anchor = thirds([x.flatten(0, 1) for x in inputs[7:]])[2]
    ahead = [x.flatten(0, 1) for x in grads[1 : 1 + 2 * layers]]
    after = [torch.cat(pair, 1) for pair in zip(ahead[:layers], ahead[layers:], strict=True)]
    places = _places(inputs[0])
    results = [torch.empty_like(x) for x in inputs[:6]]
    at_norm, at_anchor = [], None
    for i in reversed(range(len(places))):
        q, k, v, *gates, grad = _lay_out([*inputs[:6], grads[0]], places[i])
        with torch.enable_grad():
            gates = [x.detach().requires_grad_() for x in gates]
            c = coefficients(*gates)
        tokens = Tokens(q, k, v, Coefficients(*(x.detach() for x in c)))
        start, trace = kept.pop()
        rewritten = Rewritten(*rewrite(constants, tokens, start, trace))
        here = walk_back(constants, tokens, trace, rewritten, grad, after, None if i else anchor)
        found = [*here.tokens[:3], *torch.autograd.grad(c, gates, here.tokens.c)]
        for result, x in zip(results, found, strict=True):
            result[:, :, places[i]] = _rows(x, batch)
        at_norm.append(here)
        after, at_anchor = here.states, here.anchor
    assert at_anchor is not None
    state = [*_unpack(after, batch), *(x.unflatten(0, (batch, -1)) for x in at_anchor)]
    return [*results, _scale_gradient(inputs[6], at_norm, batch), *state]


def _constants(options: Options, scale: Tensor | None, like: Tensor) -> Constants:
    network = options.network
    if scale is not None:
        scale = scale.repeat(len(like), 1, 1)  # [M, 1, d]
    steepest = None
    if options.limit_steps:
        steepest = like.new_ones(()) if scale is None else scale.square().amax(-1, keepdim=True)
    return Constants(network.sigma, network.residual, scale, steepest)


def _scale_gradient(scale: Tensor | None, groups: list[Gradients], batch: int) -> Tensor | None:
    """Gradient of the norm's scale `[H, 1, d]`: directly, and through its largest square where steps are limited."""
    if scale is None:
        return None
    found = _total([g.scale for g in groups])
    if groups[0].steepest is not None:
        with torch.enable_grad():
            leaf = scale.detach().repeat(batch, 1, 1).requires_grad_()
            steepest = leaf.square().amax(-1, keepdim=True)
        found = found + torch.autograd.grad(steepest, leaf, _total([g.steepest for g in groups]))[0]
    by_row: Tensor = found.unflatten(0, (batch, -1))
    return by_row.sum(0)


def _total(parts: list[Tensor | None]) -> Tensor:
    return torch.stack([x for x in parts if x is not None]).sum(0)


def _places(q: Tensor) -> list[slice]:
    """Divide the chunks of `q` `[B, H, C, b, d]` into groups."""
    size = max(1, GROUP // q.shape[3])
    return [slice(first, first + size) for first in range(0, q.shape[2], size)]


def _lay_out(inputs: Sequence[Tensor], place: slice) -> list[Tensor]:
    """Lay out one group of inputs `[B, H, C, ...]` as `[C, M, ...]`."""
    return [x[:, :, place].permute(2, 0, 1, *range(3, x.dim())).flatten(1, 2).contiguous() for x in inputs]


def _unpack(states: list[Tensor], batch: int) -> list[Tensor]:
    """Take states `[M, 2 d_in, d_out]` apart: all weights, then all surprises, each with memory of its own."""
    halves = [x.unflatten(0, (batch, -1)).chunk(2, 2) for x in states]
    return [half[i].clone(memory_format=torch.contiguous_format) for i in range(2) for half in halves]


def _rows(x: Tensor, batch: int) -> Tensor:
    """Bring `[C, M, ...]` back to `[B, H, C, ...]`."""
    y: Tensor = x.unflatten(1, (batch, -1))
    return y.permute(1, 2, 0, *range(3, y.dim()))

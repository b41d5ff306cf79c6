"""A run of whole chunks with its derivative written out, for the chunk rule with one forget gate a head.

The derivative of an inner gradient is again matrix products, so only the coefficients are left to autograd. The
forward pass keeps each token's products and errors, and the state at the start of each group of chunks; the backward
pass makes the states within a group anew and walks back through it. What does not depend on the chunk before, above
all the reads, is one product for a whole group.

Tensors are laid out `[C, M, b, d]`: chunk, row and head, token, channel. A state is one tensor per layer,
`[M, 2 d_in, d_out]`, the weights on top of the surprise, so that one product reads or writes both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from titans.ops.associative_memory.analytic.backward import Gradients, Rewritten, backward
from titans.ops.associative_memory.analytic.forward import Constants, Tokens, Trace, read, rewrite, write
from titans.ops.associative_memory.network import Options, gradient_square
from titans.ops.associative_memory.recurrence import Coefficients, coefficients

GROUP = 1024  # tokens whose states are kept at once and whose reads are one product


class AnalyticRun(torch.autograd.Function):
    """Read and write whole chunks.

    Inputs: the options; the same by autograd, for derivatives of derivatives; q, k, v `[B, H, C, b, d]`, theta, decay
    (one a head, `[B, H, C, 1, b]`) and eta; the norm's scale `[H, 1, d]` or None; the weights, surprises and anchors.
    Outputs: reads `[B, H, C, b, d]`, the final weights and surprises, and the gradient norms where asked for.
    """

    @staticmethod
    def forward(ctx: Any, options: Options, generic: Callable[..., Any], *inputs: Any) -> tuple[Tensor, ...]:
        """Run through the groups, keeping their traces where a gradient may be asked for."""
        batch, keep = len(inputs[0]), any(ctx.needs_input_grad)
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
        leaves, ctx.structure = tree_flatten(kept)
        ctx.options, ctx.generic = options, generic
        ctx.save_for_backward(*inputs, *leaves)  # nowhere else: autograd frees these, and hooks see them
        if norms is None:
            return y, *_unpack(states, batch)
        ctx.mark_non_differentiable(norms)
        return y, *_unpack(states, batch), norms

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Walk back through the groups; by autograd where the result must itself be differentiable."""
        saved, count = ctx.saved_tensors, len(ctx.needs_input_grad) - 2  # once: under a checkpoint they come only once
        inputs, leaves = saved[:count], saved[count:]
        with torch.autocast(grads[0].device.type, enabled=False):
            if torch.is_grad_enabled():
                return None, None, *_by_autograd(ctx.generic, inputs, grads)
            return None, None, *_walk_back(ctx.options, inputs, tree_unflatten(leaves, ctx.structure), grads)


def _walk_back(
    options: Options, inputs: Sequence[Any], kept: list[tuple[list[Tensor], Trace]], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Go through the groups, with what was kept of each, from the last to the first; returns all inputs' gradients."""
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
        here = backward(constants, tokens, trace, rewritten, grad, after, None if i else anchor)
        found = [*here.tokens[:3], *torch.autograd.grad(c, gates, here.tokens.c)]
        for result, x in zip(results, found, strict=True):
            result[:, :, places[i]] = _rows(x, batch)
        at_norm.append(here)
        after, at_anchor = here.states, here.anchor
    assert at_anchor is not None
    state = [*_unpack(after, batch), *(x.unflatten(0, (batch, -1)) for x in at_anchor)]
    return [*results, _scale_gradient(inputs[6], at_norm, batch), *state]


def _by_autograd(generic: Callable[..., Any], inputs: Sequence[Any], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """Differentiate the parallel form by autograd, so that the gradients can be differentiated again."""
    wanted = [i for i, x in enumerate(inputs) if x is not None and x.requires_grad]
    outputs = generic(*inputs)
    pairs = [(y, g) for y, g in zip(outputs, grads, strict=False) if y.requires_grad]
    found = torch.autograd.grad(
        [y for y, _ in pairs], [inputs[i] for i in wanted], [g for _, g in pairs], create_graph=True, allow_unused=True
    )
    results: list[Tensor | None] = [None] * len(inputs)
    for i, grad in zip(wanted, found, strict=True):
        results[i] = grad
    return results


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


def thirds(x: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Split the tensors of a memory into weights, surprises and anchors."""
    x = list(x)
    layers = len(x) // 3
    return x[:layers], x[layers : 2 * layers], x[2 * layers :]


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

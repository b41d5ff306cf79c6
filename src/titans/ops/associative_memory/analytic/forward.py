"""The forward pass over consecutive chunks: write chunk after chunk, then read all of them at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.associative_memory.network import NORM_EPS, Activation
from titans.ops.associative_memory.recurrence import Coefficients


class Constants(NamedTuple):
    """What is the same for all tokens.

    Args:
        sigma: the function between the layers.
        residual: whether the input is added to the output.
        scale: scale of the norm on the last product, `[M, 1, d]`; None for no norm.
        steepest: its largest square `[M, 1, 1]` (1 without norm) where steps are limited; None where they are not.
    """

    sigma: Activation
    residual: bool
    scale: Tensor | None
    steepest: Tensor | None


class Tokens(NamedTuple):
    """The inputs of consecutive chunks: `[C, M, b, d]`, and coefficients of the same leading dimensions."""

    q: Tensor
    k: Tensor
    v: Tensor
    c: Coefficients


class Trace(NamedTuple):
    """What the forward pass keeps of each token: one tensor per layer, and how far its step was shortened.

    Args:
        products: keys times the anchor, layer by layer.
        pulls: the errors carried back to the output of each layer but the last, and to the last product.
        reads: queries times the memory as of their token.
        limits: `[C, M, b, 1]`; None where steps are not limited.
    """

    products: list[Tensor]
    pulls: list[Tensor]
    reads: list[Tensor]
    limits: Tensor | None


def standardise(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Layer-normalise without scale: the result, the mean and the reciprocal standard deviation."""
    unit, mean, rstd = torch.native_layer_norm(z, z.shape[-1:], None, None, NORM_EPS)
    return unit, mean, rstd


def unstandardise(grad: Tensor, z: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """Carry `grad` back through `standardise`."""
    found: Tensor = torch.ops.aten.native_layer_norm_backward(
        grad, z, z.shape[-1:], mean, rstd, None, None, [True, False, False]
    )[0]
    return found


def square(x: Tensor) -> Tensor:
    """Squared norm of each token's vector, `[..., 1]`."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square()


def aim(constants: Constants, k: Tensor, v: Tensor) -> Tensor:
    """The part of the error at the last product (or, with a norm, at its unit) that does not depend on the memory."""
    difference = k - v if constants.residual else -v
    return 2 * difference if constants.scale is None else 2 * constants.scale * difference


def pull(constants: Constants, z: Tensor, aim: Tensor, out: Tensor) -> Tensor | None:
    """Write the gradient at the last product `z` into `out`; return the inverse standard deviation of `z`, if any."""
    if constants.scale is None:
        torch.add(aim, z, alpha=2, out=out)
        return None
    unit, mean, rstd = standardise(z)
    out.copy_(unstandardise(torch.addcmul(aim, unit, 2 * constants.scale.square()), z, mean, rstd))
    return rstd


def curvature_along(sizes: list[Tensor], errors: list[Tensor]) -> Tensor:
    """Squared norm of each gradient over that of its error at the last product, from the squares of its factors."""
    total = sizes[0] * errors[0]
    for a, d in zip(sizes[1:], errors[1:], strict=True):
        total.addcmul_(a, d)
    return total.div_(errors[-1].clamp(min=torch.finfo(total.dtype).tiny))


def limit(constants: Constants, rstd: Tensor | None, inputs: list[Tensor], deltas: list[Tensor], out: Tensor) -> None:
    """How far each token's step is shortened, as `Network.step_limit`, into `out` `[..., 1]`."""
    assert constants.steepest is not None
    curvature = curvature_along([square(a) for a in inputs], [square(d) for d in deltas])
    curvature *= constants.steepest if rstd is None else constants.steepest * rstd.square()
    torch.reciprocal(curvature.clamp_(min=1), out=out)


def spread(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """`[x * first, x * second]` side by side, for a product with weights on top of surprise: `[..., 2 d]`."""
    both = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
    torch.mul(x, first, out=both[..., : x.shape[-1]])
    torch.mul(x, second, out=both[..., x.shape[-1] :])
    return both


class Chunk(NamedTuple):
    """One chunk's part of what the forward pass fills in: one tensor `[M, b, d]` per layer, and the limits if any."""

    inputs: list[Tensor]
    deltas: list[Tensor]
    products: list[Tensor]
    pulls: list[Tensor]
    limits: Tensor | None


def errors(constants: Constants, aim: Tensor, anchor: list[Tensor], chunk: Chunk) -> None:
    """Forward and backward of one chunk's keys, `inputs[0]`: fills everything else."""
    inputs, deltas, products, pulls, limits = chunk
    sigma, layers = constants.sigma, len(anchor)
    for i in range(layers):
        torch.bmm(inputs[i], anchor[i], out=products[i])
        if i + 1 < layers:
            inputs[i + 1].copy_(sigma(products[i]))
    rstd = pull(constants, products[-1], aim, pulls[-1])
    for i in reversed(range(layers - 1)):
        torch.bmm(deltas[i + 1], anchor[i + 1].mT, out=pulls[i])
        deltas[i].copy_(sigma.backward(pulls[i], products[i]))
    if limits is not None:
        limit(constants, rstd, inputs, deltas, limits)


def advance(old: Tensor, new: Tensor, c: Coefficients, a: Tensor, delta: Tensor) -> None:
    """Carry one layer's state `[M, 2 d_in, d_out]` over a chunk into `new`; the coefficients are those of its end."""
    half = old.shape[1] // 2
    weights, surprise = new[:, :half], new[:, half:]
    torch.mul(old[:, :half], c.weights, out=weights)
    weights.addcmul_(old[:, half:], c.surprise)
    torch.mul(old[:, half:], c.memory, out=surprise)
    new.baddbmm_(spread(a, c.gradient, c.momentum).mT, delta, alpha=-1)


def at_end(c: Coefficients, chunk: int, limits: Tensor | None) -> Coefficients:
    """Pick what carries a state over one chunk: the last row of each coefficient, gradients shortened by the limits."""
    gradient, momentum = c.gradient[chunk, :, 0, -1, :, None], c.momentum[chunk]
    if limits is not None:
        gradient, momentum = gradient * limits, momentum * limits
    return Coefficients(c.weights[chunk, :, -1:], c.surprise[chunk, :, -1:], gradient, momentum, c.memory[chunk])


def read(
    constants: Constants, tokens: Tokens, states: list[Tensor], inputs: list[Tensor], deltas: list[Tensor],
    limits: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Read every query at the memory as of its own token: outputs `[C, M, b, d]` and each layer's product."""
    c, x = tokens.c, tokens.q
    reads: list[Tensor] = []
    gradient = c.gradient.squeeze(2) if limits is None else c.gradient.squeeze(2) * limits.mT
    for state, a, delta in zip(states, inputs, deltas, strict=True):
        x = constants.sigma(reads[-1]) if reads else x
        z = spread(x, c.weights, c.surprise) @ state[:-1]
        z.flatten(0, 1).baddbmm_((x @ a.mT).mul_(gradient).flatten(0, 1), delta.flatten(0, 1), alpha=-1)
        reads.append(z)
    y = reads[-1]
    if constants.scale is not None:
        y = standardise(y)[0].mul_(constants.scale)
    return tokens.q + y if constants.residual else y, reads


def write(
    constants: Constants, tokens: Tokens, start: list[Tensor], anchor: list[Tensor] | None
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Trace]:
    """Run through the chunks of a group one after the other.

    Args:
        constants: of the network.
        tokens: the group's inputs.
        start: each layer's state before the group.
        anchor: where the first chunk's gradients are taken; None: at its own start, as those of all others.

    Returns:
        Each layer's states `[C + 1, M, 2 d_in, d_out]`, inputs and errors, and the trace, still without reads.
    """
    k = tokens.k
    widths = [x.shape[-1] for x in start]
    products, pulls = ([k.new_empty(*k.shape[:-1], d) for d in widths] for _ in range(2))
    inputs, deltas = ([k.new_empty(*k.shape[:-1], d) for d in widths[:-1]] for _ in range(2))
    inputs, deltas = [k, *inputs], [*deltas, pulls[-1]]
    limits = None if constants.steepest is None else k.new_empty(*k.shape[:-1], 1)
    states, aims = _stacks(start, len(k)), aim(constants, k, tokens.v)
    for chunk in range(len(k)):
        weights = [stack[chunk, :, : stack.shape[2] // 2] for stack in states]
        parts = [[x[chunk] for x in layers] for layers in (inputs, deltas, products, pulls)]
        here = Chunk(parts[0], parts[1], parts[2], parts[3], None if limits is None else limits[chunk])
        errors(constants, aims[chunk], weights if chunk or anchor is None else anchor, here)
        c = at_end(tokens.c, chunk, here.limits)
        for stack, a, delta in zip(states, here.inputs, here.deltas, strict=True):
            advance(stack[chunk], stack[chunk + 1], c, a, delta)
    return states, inputs, deltas, Trace(products, pulls, [], limits)


def rewrite(
    constants: Constants, tokens: Tokens, start: list[Tensor], trace: Trace
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Make states, inputs and errors of a group anew from its trace: as `write`, without the products."""
    sigma = constants.sigma
    inputs = [tokens.k, *(sigma(z) for z in trace.products[:-1])]
    deltas = [sigma.backward(u, z) for u, z in zip(trace.pulls[:-1], trace.products[:-1], strict=True)]
    deltas.append(trace.pulls[-1])
    states = _stacks(start, len(tokens.k))
    for chunk in range(len(tokens.k)):
        c = at_end(tokens.c, chunk, None if trace.limits is None else trace.limits[chunk])
        for stack, a, delta in zip(states, inputs, deltas, strict=True):
            advance(stack[chunk], stack[chunk + 1], c, a[chunk], delta[chunk])
    return states, inputs, deltas


def _stacks(start: list[Tensor], chunks: int) -> list[Tensor]:
    """Make room for the states before and after each chunk, the first filled in."""
    states = [x.new_empty(chunks + 1, *x.shape) for x in start]
    for stack, x in zip(states, start, strict=True):
        stack[0] = x
    return states

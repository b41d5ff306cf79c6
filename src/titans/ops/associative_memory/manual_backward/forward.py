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


class GroupTrace(NamedTuple):
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


def known_error(constants: Constants, tokens: Tokens) -> Tensor:
    """The part of each token's error that does not depend on the memory."""
    return tokens.k - tokens.v if constants.residual else -tokens.v


def aim(constants: Constants, tokens: Tokens) -> Tensor:
    """The gradient of the loss that the known error makes at the last product or, with a norm, at its unit."""
    error = known_error(constants, tokens)
    return 2 * error if constants.scale is None else 2 * constants.scale * error


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


def shortened(c: Coefficients, limits: Tensor | None) -> Tensor:
    """How much of each gradient, its step limited, has reached the weights: `[C, M, b, b]`."""
    gradient = c.gradient.squeeze(2)
    return gradient if limits is None else gradient * limits.mT


def ends(c: Coefficients, limits: Tensor | None = None) -> Coefficients:
    """Pick what carries a state over each chunk: the coefficients of its last token, `[C, M, 1 or b, 1]`.

    Those of gradients are negative, as gradients are subtracted, and shortened where steps are limited.
    """
    gradient, momentum = -c.gradient[:, :, 0, -1, :, None], -c.momentum
    if limits is not None:
        gradient, momentum = gradient * limits, momentum * limits
    return Coefficients(c.weights[:, :, -1:], c.surprise[:, :, -1:], gradient, momentum, c.memory)


class Chunk(NamedTuple):
    """One chunk's views of what the forward pass fills in, one layer's unless said otherwise.

    Views are taken for all chunks at once: taking them one by one costs more than some of the products.
    """

    a: Tensor  # inputs [M, b, d_in]
    delta: Tensor  # errors [M, b, d_out]
    product: Tensor
    pull: Tensor
    by_gradient: Tensor  # a times what multiplies its gradient in the weights [M, b, d_in]
    by_momentum: Tensor  # and in the surprise; beside it in `both`
    both: Tensor
    weights: Tensor  # before the chunk [M, d_in, d_out]
    surprise: Tensor
    new: Tensor  # after it, one on top of the other
    new_weights: Tensor
    new_surprise: Tensor


def errors(constants: Constants, aim: Tensor, anchor: list[Tensor], layers: list[Chunk]) -> Tensor | None:
    """Forward and backward of one chunk's keys: fills inputs, products, pulls and errors of its layers.

    Returns the inverse standard deviation of the last product, if there is a norm.
    """
    sigma, last = constants.sigma, len(layers) - 1
    for i, (w, here) in enumerate(zip(anchor, layers, strict=True)):
        torch.bmm(here.a, w, out=here.product)
        if i < last:
            layers[i + 1].a.copy_(sigma(here.product))
    rstd = pull(constants, layers[-1].product, aim, layers[-1].pull)
    for i in reversed(range(last)):
        here = layers[i]
        torch.bmm(layers[i + 1].delta, anchor[i + 1].mT, out=here.pull)
        here.delta.copy_(sigma.backward(here.pull, here.product))
    return rstd


def carry(here: Chunk, weights: Tensor, surprise: Tensor, memory: Tensor) -> None:
    """Add the decayed state to what the chunk's gradients have made of the new one."""
    here.new_weights.addcmul_(here.weights, weights).addcmul_(here.surprise, surprise)
    here.new_surprise.addcmul_(here.surprise, memory)


def read(
    constants: Constants, tokens: Tokens, states: list[Tensor], inputs: list[Tensor], deltas: list[Tensor],
    limits: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Read every query at the memory as of its own token: outputs `[C, M, b, d]` and each layer's product."""
    c, x = tokens.c, tokens.q
    reads: list[Tensor] = []
    gradient = shortened(c, limits)
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
) -> tuple[list[Tensor], list[Tensor], list[Tensor], GroupTrace]:
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
    both = [x.new_empty(*x.shape[:-1], 2 * x.shape[-1]) for x in inputs]
    limits = None if constants.steepest is None else k.new_empty(*k.shape[:-1], 1)
    states, end = _stacks(start, len(k)), ends(tokens.c)
    chunks = zip(
        _chunks(inputs, deltas, products, pulls, both, states), aim(constants, tokens).unbind(0),
        [None] * len(k) if limits is None else limits.unbind(0), *(x.unbind(0) for x in end), strict=True,
    )  # fmt: skip
    for i, (layers, goal, limited, weights, surprise, gradient, momentum, memory) in enumerate(chunks):
        at = [x.weights for x in layers] if i or anchor is None else anchor
        rstd = errors(constants, goal, at, layers)
        if limited is not None:
            limit(constants, rstd, [x.a for x in layers], [x.delta for x in layers], limited)
            gradient, momentum = gradient * limited, momentum * limited
        for here in layers:
            torch.mul(here.a, gradient, out=here.by_gradient)
            torch.mul(here.a, momentum, out=here.by_momentum)
            torch.bmm(here.both.mT, here.delta, out=here.new)
            carry(here, weights, surprise, memory)
    return states, inputs, deltas, GroupTrace(products, pulls, [], limits)


def rewrite(
    constants: Constants, tokens: Tokens, start: list[Tensor], trace: GroupTrace
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """Make states, inputs and errors of a group anew from its trace: as `write`, without the products.

    Also returns the inputs times what multiplies their gradients, `[C, M, b, 2 d_in]`.
    """
    sigma = constants.sigma
    inputs = [tokens.k, *(sigma(z) for z in trace.products[:-1])]
    deltas = [sigma.backward(u, z) for u, z in zip(trace.pulls[:-1], trace.products[:-1], strict=True)]
    deltas.append(trace.pulls[-1])
    states, end = _stacks(start, len(tokens.k)), ends(tokens.c, trace.limits)
    both = [spread(a, end.gradient, end.momentum) for a in inputs]
    for stack, x, delta in zip(states, both, deltas, strict=True):
        torch.matmul(x.mT, delta, out=stack[1:])
    chunks = _chunks(inputs, deltas, trace.products, trace.pulls, both, states)
    coefficients = zip(end.weights.unbind(0), end.surprise.unbind(0), end.memory.unbind(0), strict=True)
    for layers, (weights, surprise, memory) in zip(chunks, coefficients, strict=True):
        for here in layers:
            carry(here, weights, surprise, memory)
    return states, inputs, deltas, both


def _chunks(*parts: list[Tensor]) -> list[list[Chunk]]:
    """Take views of each chunk's part of each layer's inputs, errors, products, pulls, spread inputs and states."""
    layers = []
    for a, delta, product, pull, both, state in zip(*parts, strict=True):
        d, half = a.shape[-1], state.shape[2] // 2
        views = (
            a, delta, product, pull, both[..., :d], both[..., d:], both, state[:-1, :, :half], state[:-1, :, half:],
            state[1:], state[1:, :, :half], state[1:, :, half:],
        )  # fmt: skip
        layers.append([Chunk(*x) for x in zip(*(v.unbind(0) for v in views), strict=True)])
    return [list(x) for x in zip(*layers, strict=True)]


def _stacks(start: list[Tensor], chunks: int) -> list[Tensor]:
    """Make room for the states before and after each chunk, the first filled in."""
    states = [x.new_empty(chunks + 1, *x.shape) for x in start]
    for stack, x in zip(states, start, strict=True):
        stack[0] = x
    return states

"""The backward pass over consecutive chunks: formula by formula the transpose of `forward`.

A name here is the gradient of what has the same name there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.associative_memory.analytic.forward import (
    Constants,
    Tokens,
    Trace,
    aim,
    at_end,
    spread,
    square,
    standardise,
    unstandardise,
)
from titans.ops.associative_memory.recurrence import Coefficients


class Rewritten(NamedTuple):
    """What `rewrite` returns: states, inputs and errors, one tensor per layer."""

    states: list[Tensor]
    inputs: list[Tensor]
    deltas: list[Tensor]


class Gradients(NamedTuple):
    """Gradients of a group's tokens, of the constants, and of the state before it."""

    tokens: Tokens
    scale: Tensor | None
    steepest: Tensor | None
    states: list[Tensor]
    anchor: list[Tensor] | None  # None: the anchor is part of the state


class Reads(NamedTuple):
    """Gradients that reach each token and chunk through the reads."""

    q: Tensor
    inputs: list[Tensor]
    deltas: list[Tensor]
    states: list[Tensor]
    weights: Tensor  # of the coefficients
    surprise: Tensor
    gradient: Tensor  # of the shortened coefficients `[C, M, b, b]`
    scale: Tensor | None


def backward(
    constants: Constants,
    tokens: Tokens,
    trace: Trace,
    rewritten: Rewritten,
    grad: Tensor,
    after: list[Tensor],
    anchor: list[Tensor] | None,
) -> Gradients:
    """Walk back through one group of chunks.

    Args:
        constants: of the network.
        tokens: the group's inputs.
        trace: what the forward pass kept of it.
        rewritten: what it did not.
        grad: of the outputs `[C, M, b, d]`.
        after: of each layer's state after the group.
        anchor: the first chunk's anchor, where it is not the state before the group.
    """
    reads = read_backward(constants, tokens, trace, rewritten, grad)
    return Chunks(constants, tokens, trace, rewritten, reads).run(after, anchor)


def read_backward(constants: Constants, tokens: Tokens, trace: Trace, rewritten: Rewritten, grad: Tensor) -> Reads:
    """Transpose `read`: all chunks at once."""
    c, sigma = tokens.c, constants.sigma
    gradient = c.gradient.squeeze(2) if trace.limits is None else c.gradient.squeeze(2) * trace.limits.mT
    scale, z = None, grad
    if constants.scale is not None:
        unit, mean, rstd = standardise(trace.reads[-1])
        scale = _over_tokens(grad * unit)
        z = unstandardise(grad * constants.scale, trace.reads[-1], mean, rstd)
    sums: list[Tensor] | None = None  # gradients of C, A and B
    q = grad if constants.residual else torch.zeros_like(grad)
    inputs, deltas, states = [], [], []
    for layer in reversed(range(len(trace.reads))):
        x = sigma(trace.reads[layer - 1]) if layer else tokens.q
        a, delta, state = rewritten.inputs[layer], rewritten.deltas[layer], rewritten.states[layer][:-1]
        by_weights, by_surprise = (z @ state.mT).chunk(2, -1)
        states.append(spread(x, c.weights, c.surprise).mT @ z)
        mixed, gram = z @ delta.mT, x @ a.mT
        here = [-(mixed * gram), (x * by_weights).sum(-1, True), (x * by_surprise).sum(-1, True)]
        sums = here if sums is None else [a + b for a, b in zip(sums, here, strict=True)]
        mixed.mul_(gradient).neg_()
        deltas.append(gram.mul_(gradient).neg_().mT @ z)
        inputs.append(mixed.mT @ x)
        x = torch.addcmul(by_weights * c.weights, by_surprise, c.surprise) + mixed @ a
        if layer:
            z = sigma.backward(x, trace.reads[layer - 1])
        else:
            q = q + x
    assert sums is not None
    gradients, weights, surprise = sums
    return Reads(q, inputs[::-1], deltas[::-1], states[::-1], weights, surprise, gradients, scale)


class Curvature(NamedTuple):
    """What the limits of a group's steps were made of, all `[C, M, b, 1]`."""

    sizes: list[Tensor]  # squared norms of the inputs
    errors: list[Tensor]  # and of the errors
    value: Tensor  # the curvature before the norm's slope
    slope: Tensor
    slack: Tensor  # derivative of the limit in `value * slope`


class Chunks:
    """The part of the backward pass that goes from chunk to chunk: what a chunk wrote, and why.

    Args: as `backward`, with the gradients through the reads.
    """

    def __init__(self, constants: Constants, tokens: Tokens, trace: Trace, rewritten: Rewritten, reads: Reads) -> None:
        self.constants, self.tokens, self.trace, self.rewritten, self.reads = constants, tokens, trace, rewritten, reads
        sigma = constants.sigma
        self.bends = [u * sigma.second(z) for u, z in zip(trace.pulls[:-1], trace.products[:-1], strict=True)]
        self.ahead = aim(constants, tokens.k, tokens.v)
        if constants.scale is not None:
            self.unit, self.mean, self.rstd = standardise(trace.products[-1])
            self.ahead = torch.addcmul(self.ahead, self.unit, 2 * constants.scale.square())  # gradient at the unit
            self.radial = (self.ahead * self.unit).mean(-1, keepdim=True)
        self.curvature = None if trace.limits is None else self._curvature(trace.limits)
        chunks = len(tokens.k)
        self.k, self.aims = torch.empty_like(tokens.k), torch.empty_like(tokens.v)
        self.reached, self.momentum = (torch.empty_like(tokens.c.momentum) for _ in range(2))
        self.slopes: Tensor | None = None if self.curvature is None else torch.empty_like(self.curvature.value)
        self.after = [s.new_empty(s.shape) for s in rewritten.states]
        self.chunks = chunks

    def _curvature(self, limits: Tensor) -> Curvature:
        errors, sizes = [square(d) for d in self.rewritten.deltas], [square(a) for a in self.rewritten.inputs]
        errors[-1].clamp_(min=torch.finfo(limits.dtype).tiny)
        value = sizes[-1]
        for a, d in zip(sizes[:-1], errors[:-1], strict=True):
            value = torch.addcdiv(value, a * d, errors[-1])
        assert self.constants.steepest is not None
        slope = self.constants.steepest.expand_as(value)
        if self.constants.scale is not None:
            slope = slope * self.rstd.square()
        return Curvature(sizes, errors, value, slope, -limits.square() * (value * slope >= 1))

    def run(self, after: list[Tensor], anchor: list[Tensor] | None) -> Gradients:
        """Walk from the last chunk to the first."""
        for stack, x in zip(self.after, after, strict=True):
            stack[-1] = x
        found: list[Tensor] = []
        for chunk in reversed(range(self.chunks)):
            apart = anchor if chunk == 0 else None
            found = self._chunk(chunk, apart)
            for stack, read, g in zip(self.after, self.reads.states, found, strict=True):
                self._carry(stack[chunk + 1], stack[chunk], chunk)
                stack[chunk] += read[chunk]
                if apart is None:
                    stack[chunk, :, : g.shape[1]] += g
        return self._collect(found if anchor is not None else None)

    def _carry(self, after: Tensor, before: Tensor, chunk: int) -> None:
        """Transpose the decay of one layer's state."""
        c, half = self.tokens.c, after.shape[1] // 2
        torch.mul(after[:, :half], c.weights[chunk, :, -1:], out=before[:, :half])
        torch.mul(after[:, half:], c.memory[chunk], out=before[:, half:])
        before[:, half:].addcmul_(after[:, :half], c.surprise[chunk, :, -1:])

    def _chunk(self, chunk: int, anchor: list[Tensor] | None) -> list[Tensor]:
        """Transpose what a chunk writes and the errors it writes with; returns the gradients of the anchor."""
        done, trace, sigma = self.rewritten, self.trace, self.constants.sigma
        a, d = [x[chunk] for x in done.inputs], [x[chunk] for x in done.deltas]
        w = [s[chunk, :, : s.shape[2] // 2] for s in done.states] if anchor is None else anchor
        inputs, deltas = self._written(chunk, a, d)
        self._limited(chunk, a, d, inputs, deltas)
        found = [torch.zeros_like(x) for x in w]
        products = []
        for i in range(len(w) - 1):
            carried = sigma.backward(deltas[i], trace.products[i][chunk])
            products.append(deltas[i] * self.bends[i][chunk])
            deltas[i + 1] = torch.baddbmm(deltas[i + 1], carried, w[i + 1])
            found[i + 1].baddbmm_(carried.mT, d[i + 1])
        products.append(self._pulled(chunk, d[-1], deltas[-1]))
        for i in reversed(range(len(w))):
            found[i].baddbmm_(a[i].mT, products[i])
            inputs[i] = torch.baddbmm(inputs[i], products[i], w[i].mT)
            if i:
                products[i - 1] += sigma.backward(inputs[i], trace.products[i - 1][chunk])
        self.k[chunk] = inputs[0]
        return found

    def _written(self, chunk: int, a: list[Tensor], d: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Transpose the outer products of `advance`; returns the gradients of inputs and errors so far."""
        c = at_end(self.tokens.c, chunk, None if self.trace.limits is None else self.trace.limits[chunk])
        inputs, deltas = [], []
        self.reached[chunk], self.momentum[chunk] = 0, 0
        for i, stack in enumerate(self.after):
            after = stack[chunk + 1]
            by_weights, by_surprise = (d[i] @ after.mT).chunk(2, -1)
            self.reached[chunk] -= (a[i] * by_weights).sum(-1, True)
            self.momentum[chunk] -= (a[i] * by_surprise).sum(-1, True)
            x = torch.addcmul(self.reads.inputs[i][chunk], by_weights, c.gradient, value=-1)
            inputs.append(x.addcmul_(by_surprise, c.momentum, value=-1))
            both = spread(a[i], c.gradient, c.momentum)
            deltas.append(torch.baddbmm(self.reads.deltas[i][chunk], both, after, alpha=-1))
        return inputs, deltas

    def _limited(
        self, chunk: int, a: list[Tensor], d: list[Tensor], inputs: list[Tensor], deltas: list[Tensor]
    ) -> None:
        """Transpose `limit`: add to the gradients of inputs and errors."""
        if self.curvature is None or self.slopes is None:
            return
        sizes, errors, value, slope, slack = self.curvature
        c = at_end(self.tokens.c, chunk, None)
        grad = (self.reads.gradient[chunk] * self.tokens.c.gradient[chunk, :, 0]).sum(-2).unsqueeze(-1)
        grad = grad + self.reached[chunk] * c.gradient + self.momentum[chunk] * c.momentum
        grad = grad * slack[chunk]  # of value * slope
        self.slopes[chunk] = grad * value[chunk]
        grad = 2 * grad * slope[chunk]
        inputs[-1].addcmul_(a[-1], grad)
        grad = grad / errors[-1][chunk]
        for i in range(len(a) - 1):
            inputs[i].addcmul_(a[i], grad * errors[i][chunk])
            deltas[i].addcmul_(d[i], grad * sizes[i][chunk])
        deltas[-1].addcmul_(d[-1], grad * (value[chunk] - sizes[-1][chunk]), value=-1)

    def _pulled(self, chunk: int, d: Tensor, grad: Tensor) -> Tensor:
        """Transpose `pull`; returns the gradient of the last product."""
        scale = self.constants.scale
        if scale is None:
            self.aims[chunk] = grad
            return 2 * grad
        z, unit, mean, rstd = self.trace.products[-1][chunk], self.unit[chunk], self.mean[chunk], self.rstd[chunk]
        self.aims[chunk] = unstandardise(grad, z, mean, rstd)
        slope = (grad * d).sum(-1, True) / rstd
        if self.slopes is not None and self.constants.steepest is not None:
            slope = slope + 2 * self.constants.steepest * self.slopes[chunk] * rstd
        by_unit = self.aims[chunk] * (2 * scale.square())
        by_unit -= rstd * (self.radial[chunk] * grad + (grad * unit).mean(-1, True) * self.ahead[chunk])
        found = unstandardise(by_unit, z, mean, rstd)
        return found.addcmul_(slope * rstd.square(), unit, value=-1 / unit.shape[-1])

    def _collect(self, anchor: list[Tensor] | None) -> Gradients:
        """Sum up what does not pass from chunk to chunk."""
        constants, tokens, reads = self.constants, self.tokens, self.reads
        scale, aims = reads.scale, 2 * self.aims
        if constants.scale is not None:
            assert scale is not None
            difference = tokens.k - tokens.v if constants.residual else -tokens.v
            scale = scale + _over_tokens(aims * (difference + 2 * constants.scale * self.unit))
            aims = aims * constants.scale
        k = self.k + aims if constants.residual else self.k
        steepest = None
        if self.slopes is not None:
            steepest = _over_tokens(self.slopes if constants.scale is None else self.slopes * self.rstd.square())
        c = self._coefficients()
        return Gradients(Tokens(reads.q, k, -aims, c), scale, steepest, [s[0] for s in self.after], anchor)

    def _coefficients(self) -> Coefficients:
        """Add to the gradients through the reads those through the states."""
        c, limits = self.tokens.c, self.trace.limits
        gradient, momentum, reached = self.reads.gradient, self.momentum, self.reached
        if limits is not None:
            gradient, momentum, reached = gradient * limits.mT, momentum * limits, reached * limits
        gradient[:, :, -1] += reached.squeeze(-1)
        weights, surprise, memory = self.reads.weights, self.reads.surprise, torch.zeros_like(c.memory)
        for state, after in zip(self.rewritten.states, self.after, strict=True):
            half = state.shape[2] // 2
            weights[:, :, -1:] += _over_state(state[:-1, :, :half] * after[1:, :, :half])
            surprise[:, :, -1:] += _over_state(state[:-1, :, half:] * after[1:, :, :half])
            memory += _over_state(state[:-1, :, half:] * after[1:, :, half:])
        return Coefficients(weights, surprise, gradient.unsqueeze(2), momentum, memory)


def _over_tokens(x: Tensor) -> Tensor:
    """Sum `[C, M, b, d]` to `[M, 1, d]`."""
    return x.sum((0, 2)).unsqueeze(1)


def _over_state(x: Tensor) -> Tensor:
    """Sum `[C, M, i, j]` to `[C, M, 1, 1]`."""
    return x.sum((-2, -1), keepdim=True)

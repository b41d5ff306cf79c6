"""The backward pass over consecutive chunks: formula by formula the transpose of `forward`.

A name here is the gradient of what has the same name there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.associative_memory.manual_backward.forward import (
    Constants,
    GroupTrace,
    Tokens,
    aim,
    curvature_along,
    ends,
    known_error,
    shortened,
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
    both: list[Tensor]


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
    states: list[Tensor]  # [C + 1, ...], the last one still empty
    weights: Tensor  # of the coefficients
    surprise: Tensor
    gradient: Tensor  # of the shortened coefficients `[C, M, b, b]`
    scale: Tensor | None


def walk_back(
    constants: Constants,
    tokens: Tokens,
    trace: GroupTrace,
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


def read_backward(constants: Constants, tokens: Tokens, trace: GroupTrace, rewritten: Rewritten, grad: Tensor) -> Reads:
    """Transpose `read`: all chunks at once."""
    c, sigma = tokens.c, constants.sigma
    gradient = shortened(c, trace.limits)
    scale, z = None, grad
    if constants.scale is not None:
        unit, mean, rstd = standardise(trace.reads[-1])
        scale = _over_tokens(grad * unit)
        z = unstandardise(grad * constants.scale, trace.reads[-1], mean, rstd)
    sums: list[Tensor] | None = None  # gradients of C, A and B
    q = grad if constants.residual else torch.zeros_like(tokens.q)
    inputs, deltas, states = [], [], []
    for layer in reversed(range(len(trace.reads))):
        x = sigma(trace.reads[layer - 1]) if layer else tokens.q
        a, delta, state = rewritten.inputs[layer], rewritten.deltas[layer], rewritten.states[layer][:-1]
        by_weights, by_surprise = (z @ state.mT).chunk(2, -1)
        states.append(rewritten.states[layer].new_empty(rewritten.states[layer].shape))
        torch.matmul(spread(x, c.weights, c.surprise).mT, z, out=states[-1][:-1])
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

    Args: as `walk_back`, with the gradients through the reads.
    """

    def __init__(
        self, constants: Constants, tokens: Tokens, trace: GroupTrace, rewritten: Rewritten, reads: Reads
    ) -> None:
        self.constants, self.tokens, self.trace, self.rewritten, self.reads = constants, tokens, trace, rewritten, reads
        sigma, c = constants.sigma, tokens.c
        self.bends = [u * sigma.second(z) for u, z in zip(trace.pulls[:-1], trace.products[:-1], strict=True)]
        self.ahead = aim(constants, tokens)
        if constants.scale is not None:
            self.unit, self.mean, self.rstd = standardise(trace.products[-1])
            self.scale2 = 2 * constants.scale.square()
            self.ahead.addcmul_(self.unit, self.scale2)  # gradient at the unit
            self.radial = (self.ahead * self.unit).mean(-1, keepdim=True)
        self.ends, self.unlimited = ends(c, trace.limits), ends(c)
        self.curvature = None
        if trace.limits is not None:
            self.curvature = self._curvature(trace.limits)
            self.by_read = (reads.gradient * c.gradient[:, :, 0]).sum(-2).unsqueeze(-1)
        self.k, self.aims = torch.empty_like(tokens.k), torch.empty_like(tokens.v)
        self.reached, self.momentum = torch.zeros_like(c.momentum), torch.zeros_like(c.momentum)
        self.slopes = None if self.curvature is None else torch.empty_like(self.curvature.value)
        self.after = reads.states

    def _curvature(self, limits: Tensor) -> Curvature:
        errors, sizes = [square(d) for d in self.rewritten.deltas], [square(a) for a in self.rewritten.inputs]
        value = curvature_along(sizes, errors)
        assert self.constants.steepest is not None
        slope = self.constants.steepest.expand_as(value)
        if self.constants.scale is not None:
            slope = slope * self.rstd.square()
        return Curvature(sizes, errors, value, slope, -limits.square() * (value * slope >= 1))

    def run(self, after: list[Tensor], anchor: list[Tensor] | None) -> Gradients:
        """Walk from the last chunk to the first."""
        for stack, x in zip(self.after, after, strict=True):
            stack[-1] = x
        apart = None
        for chunk in reversed(range(len(self.k))):
            for stack in self.after:
                self._carry(stack[chunk + 1], stack[chunk], chunk)
            weights = [s[chunk, :, : s.shape[2] // 2] for s in self.rewritten.states]
            found = [s[chunk, :, : s.shape[2] // 2] for s in self.after]
            if chunk == 0 and anchor is not None:
                weights, found = anchor, [torch.zeros_like(x) for x in anchor]
                apart = found
            self._chunk(chunk, weights, found)
        return self._collect(apart)

    def _carry(self, after: Tensor, before: Tensor, chunk: int) -> None:
        """Transpose the decay of one layer's state, on top of the gradient through the reads."""
        c, half = self.ends, after.shape[1] // 2
        before[:, :half].addcmul_(after[:, :half], c.weights[chunk])
        before[:, half:].addcmul_(after[:, half:], c.memory[chunk]).addcmul_(after[:, :half], c.surprise[chunk])

    def _chunk(self, chunk: int, w: list[Tensor], found: list[Tensor]) -> None:
        """Transpose what a chunk writes and the errors it writes with; adds the gradients of its anchor to `found`."""
        done, trace, sigma = self.rewritten, self.trace, self.constants.sigma
        a, d = [x[chunk] for x in done.inputs], [x[chunk] for x in done.deltas]
        inputs, deltas = self._written(chunk, a, d)
        self._limited(chunk, a, d, inputs, deltas)
        products = []
        for i in range(len(w) - 1):
            carried = sigma.backward(deltas[i], trace.products[i][chunk])
            products.append(deltas[i].mul_(self.bends[i][chunk]))
            deltas[i + 1].baddbmm_(carried, w[i + 1])
            found[i + 1].baddbmm_(carried.mT, d[i + 1])
        products.append(self._pulled(chunk, d[-1], deltas[-1]))
        for i in reversed(range(len(w))):
            found[i].baddbmm_(a[i].mT, products[i])
            inputs[i].baddbmm_(products[i], w[i].mT)
            if i:
                products[i - 1] += sigma.backward(inputs[i], trace.products[i - 1][chunk])
        self.k[chunk] = inputs[0]

    def _written(self, chunk: int, a: list[Tensor], d: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Transpose the outer products of `write`; returns the gradients of inputs and errors so far."""
        done, gradient, momentum = self.rewritten, self.ends.gradient[chunk], self.ends.momentum[chunk]
        reached, kept = self.reached[chunk], self.momentum[chunk]
        inputs, deltas = [], []
        for i, stack in enumerate(self.after):
            after = stack[chunk + 1]
            by_weights, by_surprise = (d[i] @ after.mT).chunk(2, -1)
            reached -= (a[i] * by_weights).sum(-1, True)
            kept -= (a[i] * by_surprise).sum(-1, True)
            x = torch.addcmul(self.reads.inputs[i][chunk], by_weights, gradient)
            inputs.append(x.addcmul_(by_surprise, momentum))
            deltas.append(torch.baddbmm(self.reads.deltas[i][chunk], done.both[i][chunk], after))
        return inputs, deltas

    def _limited(
        self, chunk: int, a: list[Tensor], d: list[Tensor], inputs: list[Tensor], deltas: list[Tensor]
    ) -> None:
        """Transpose `limit`: add to the gradients of inputs and errors."""
        if self.curvature is None or self.slopes is None:
            return
        sizes, errors, value, slope, slack = self.curvature
        grad = torch.addcmul(self.by_read[chunk], self.reached[chunk], self.unlimited.gradient[chunk], value=-1)
        grad.addcmul_(self.momentum[chunk], self.unlimited.momentum[chunk], value=-1)
        grad *= slack[chunk]  # of value * slope
        torch.mul(grad, value[chunk], out=self.slopes[chunk])
        grad *= 2 * slope[chunk]
        grad /= errors[-1][chunk].clamp(min=torch.finfo(grad.dtype).tiny)
        for i in range(len(a)):
            inputs[i].addcmul_(a[i], grad * errors[i][chunk])
            deltas[i].addcmul_(d[i], grad * sizes[i][chunk])
        deltas[-1].addcmul_(d[-1], grad * value[chunk], value=-1)

    def _pulled(self, chunk: int, d: Tensor, grad: Tensor) -> Tensor:
        """Transpose `pull`; returns the gradient of the last product."""
        if self.constants.scale is None:
            self.aims[chunk] = grad
            return 2 * grad
        z, unit, mean, rstd = self.trace.products[-1][chunk], self.unit[chunk], self.mean[chunk], self.rstd[chunk]
        aims = unstandardise(grad, z, mean, rstd)
        self.aims[chunk] = aims
        slope = (grad * d).sum(-1, True) / rstd
        if self.slopes is not None and self.constants.steepest is not None:
            slope.addcmul_(self.slopes[chunk] * rstd, self.constants.steepest, value=2)
        tilt = (grad * unit).mean(-1, True)
        by_unit = aims * self.scale2
        by_unit -= rstd * torch.addcmul(self.radial[chunk] * grad, tilt, self.ahead[chunk])
        found = unstandardise(by_unit, z, mean, rstd)
        return found.addcmul_(slope * rstd.square(), unit, value=-1 / unit.shape[-1])

    def _collect(self, anchor: list[Tensor] | None) -> Gradients:
        """Sum up what does not pass from chunk to chunk."""
        constants, tokens, reads = self.constants, self.tokens, self.reads
        scale, aims = reads.scale, 2 * self.aims
        if constants.scale is not None:
            assert scale is not None
            error = known_error(constants, tokens)
            scale = scale + _over_tokens(aims * (error + 2 * constants.scale * self.unit))
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
            weights[:, :, -1:] += _inner(state[:-1, :, :half], after[1:, :, :half])
            surprise[:, :, -1:] += _inner(state[:-1, :, half:], after[1:, :, :half])
            memory += _inner(state[:-1, :, half:], after[1:, :, half:])
        return Coefficients(weights, surprise, gradient.unsqueeze(2), momentum, memory)


def _over_tokens(x: Tensor) -> Tensor:
    """Sum `[C, M, b, d]` to `[M, 1, d]`."""
    return x.sum((0, 2)).unsqueeze(1)


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of `[C, M, i, j]`: `[C, M, 1, 1]`."""
    product: Tensor = x.flatten(-2).unsqueeze(-2) @ y.flatten(-2).unsqueeze(-1)
    return product

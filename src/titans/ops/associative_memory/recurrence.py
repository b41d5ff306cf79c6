"""Coefficients of the two coupled recurrences (weight decay and momentum) inside one chunk."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.ops.tracing import in_forward_ad


class SegmentProduct(torch.autograd.Function):
    """`L[t, j] = prod_{j < s <= t} f_s` for `j <= t`, 0 above the diagonal.

    Built by multiplication, not as the exponential of a difference of sums of logarithms: factors of exactly 0
    and 1 give exact products, no precision is lost after many small factors, and the gradient needs no division:
    `df_s = sum_{t >= s, j < s} L[t, s] G[t, j] L[s - 1, j]`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(factors: Tensor) -> Tensor:
        """Multiply `factors` `[..., b]` over every segment; returns `[..., b, b]`."""
        b = factors.shape[-1]
        below = torch.ones(b, b, dtype=torch.bool, device=factors.device).tril(-1)
        return torch.where(below, factors.unsqueeze(-1), 1.0).cumprod(-2).tril()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep the products."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient of the factors."""
        (product,) = ctx.saved_tensors
        left = product.mT @ grad.tril()  # [..., s, j]
        return torch.cat([torch.zeros_like(grad[..., 0, :1]), (left[..., 1:, :] * product[..., :-1, :]).sum(-1)], -1)


def segment_product(factors: Tensor) -> Tensor:
    """Multiply `factors` `[..., b]` over every segment: `[..., b, b]`, see `SegmentProduct`."""
    if in_forward_ad():
        return SegmentProduct.forward(factors)
    product: Tensor = SegmentProduct.apply(factors)  # type: ignore[no-untyped-call]
    return product


class Coefficients(NamedTuple):
    """How far each quantity has reached by each token of a chunk of b tokens (docs/semantics.md, section 2).

    `c` is 1, or the number of channels where the forget gate is channel-wise.
    """

    weights: Tensor  # [..., b, c]     A: decay of the weights at the chunk's start
    surprise: Tensor  # [..., b, c]    B: how much of the surprise at the start has reached the weights
    gradient: Tensor  # [..., c, b, b] C: how much of gradient i has reached the weights at t
    momentum: Tensor  # [..., b, 1]    D: how much of gradient i is in the surprise at the end
    memory: Tensor  # [..., 1, 1]      H: decay of the surprise over the whole chunk

    def unbind(self) -> list[Coefficients]:
        """Take apart coefficients stacked over chunks in dimension 2."""
        return [Coefficients(*x) for x in zip(*(y.unbind(2) for y in self), strict=True)]

    def channels(self, width: int) -> Coefficients:
        """Spread channel-wise coefficients over `width` outputs: hidden channel j follows gate j // expansion."""
        c = self.weights.shape[-1]
        if c in (1, width):
            return self
        repeat = width // c
        return self._replace(
            weights=self.weights.repeat_interleave(repeat, -1),
            surprise=self.surprise.repeat_interleave(repeat, -1),
            gradient=self.gradient.repeat_interleave(repeat, -3),
        )

    def mix(self, gram: Tensor, delta: Tensor) -> Tensor:
        """Sum what the gradients of the chunk so far add to each read.

        Args:
            gram: inner products of the read tokens with the written ones `[..., b, b]`.
            delta: back-propagated errors `[..., b, d]`.

        Returns:
            `sum_i C[t, i] gram[t, i] delta[i]`, `[..., b, d]`.
        """
        if self.gradient.shape[-3] == 1:
            return (self.gradient.squeeze(-3) * gram) @ delta
        return torch.einsum("...cti,...ic->...tc", self.gradient * gram.unsqueeze(-3), delta)


def coefficients(theta: Tensor, decay: Tensor, eta: Tensor, mask: Tensor | None = None) -> Coefficients:
    """Compute the coefficients of chunks of b tokens.

    Args:
        theta: step sizes `[..., b]`.
        decay: `1 - alpha`, `[..., c, b]` with c = 1 or the number of channels.
        eta: momentum `[..., b]`.
        mask: `[..., b]`, bool; False marks tokens that leave the memory exactly as it is. None: all tokens write.

    Returns:
        The coefficients, differentiable in the three gates.
    """
    if mask is not None:
        # A skipped token must not even add the past surprise to the weights, which theta = 0, alpha = 0, eta = 1 would.
        theta = torch.where(mask, theta, 0.0)
        eta = torch.where(mask, eta, 1.0)
        decay = torch.where(mask.unsqueeze(-2), decay, 1.0)
    weight_product = segment_product(decay)  # [..., c, b, b]
    surprise_product = segment_product(eta)  # [..., b, b]
    reached = surprise_product[..., 0] * eta[..., :1]  # [..., b], prod_{s <= t} eta_s
    write = weight_product if mask is None else weight_product * mask[..., None, None, :]
    return Coefficients(
        weights=(weight_product[..., 0] * decay[..., :1]).mT,
        surprise=(write @ reached[..., None, :, None]).squeeze(-1).mT,
        gradient=(write @ surprise_product.unsqueeze(-3)) * theta[..., None, None, :],
        momentum=(surprise_product[..., -1, :] * theta).unsqueeze(-1),
        memory=reached[..., -1, None, None],
    )

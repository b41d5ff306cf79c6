"""Linear projection to heads with a causal short convolution: how queries, keys and values are made."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.mixer import bounded, last

TAPS = 4  # inputs that the convolution sees, the present one included


class ConvolvedProjection(nn.Module):
    """`SiLU(conv(x W))`, depthwise-separable (semantics, section 4).

    Args:
        dim: width D of the input and of each part.
        heads: heads H of each part.
        parts: projections made at once, for example 3 for queries, keys and values.
        convolution: off: `SiLU(x W)`.
    """

    def __init__(self, dim: int, heads: int, parts: int, convolution: bool) -> None:
        super().__init__()
        self.heads, self.parts = heads, parts
        self.linear = nn.Linear(dim, parts * dim, bias=False)
        self.taps = nn.Parameter(torch.empty(TAPS, parts * dim)) if convolution else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the taps as `torch.nn.Conv1d` does."""
        if self.taps is not None:
            nn.init.uniform_(self.taps, -(TAPS**-0.5), TAPS**-0.5)

    def initial_tail(self) -> Tensor | None:
        """Return the convolution's inputs before the first token, `[1, 3, parts D]`; None without convolution."""
        return None if self.taps is None else torch.zeros_like(self.taps[1:]).unsqueeze(0)

    def forward(
        self, x: Tensor, tail: Tensor | None, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Project the next tokens of a stream.

        Args:
            x: `[B, N, D]`.
            tail: the convolution's inputs before x, `[B, 3, parts D]`; None without convolution.
            lengths: tokens that count in each row `[B]`; None for all.

        Returns:
            The parts, `[B, H, N, D / H]` each, and the tail after x.
        """
        y = self.linear(bounded(x))
        if self.taps is not None:
            assert tail is not None  # checked with the state
            y, tail = short_convolution(y, self.taps, tail, lengths)
        y = F.silu(y).unflatten(-1, (self.parts, self.heads, -1))
        return y.permute(2, 0, 3, 1, 4).unbind(0), tail


def short_convolution(x: Tensor, taps: Tensor, tail: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Convolve each channel with its own taps; after a linear projection, a depthwise-separable convolution.

    Args:
        x: the next inputs `[B, N, C]`.
        taps: `[K, C]`; the last weighs the present input.
        tail: the inputs before x, `[B, K - 1, C]`; zeros at the start of a stream.
        lengths: inputs that count in each row `[B]`; None for all.

    Returns:
        `y_t = sum_i taps[i] x[t - K + 1 + i]`, `[B, N, C]`, and the tail after x.
    """
    x = torch.cat([tail.to(x.dtype), x], 1)
    y: Tensor = ShortConvolution.apply(x, taps)  # type: ignore[no-untyped-call]
    return y, last(x, lengths, tail.shape[1]).to(tail.dtype)


class ShortConvolution(torch.autograd.Function):
    """`y_t = sum_i taps[i] x[t + i]`, summed in place: autograd would keep and fill a tensor for every tap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor) -> Tensor:
        """Convolve `x` `[B, N + K - 1, C]` with `taps` `[K, C]`; returns `[B, N, C]`."""
        ctx.save_for_backward(x, taps)
        tokens = x.shape[1] - len(taps) + 1
        y = x[:, :tokens] * taps[0]
        for i, tap in enumerate(taps[1:], start=1):
            y.addcmul_(x[:, i : i + tokens], tap)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of `x` and `taps`."""
        x, taps = ctx.saved_tensors
        tokens, by_x = grad.shape[1], torch.zeros_like(x)
        for i, tap in enumerate(taps):
            by_x[:, i : i + tokens].addcmul_(grad, tap)
        return by_x, torch.stack([(grad * x[:, i : i + tokens]).sum((0, 1)) for i in range(len(taps))])

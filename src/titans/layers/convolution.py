"""Causal short convolution over a stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from titans.layers.mixer import last


class ShortConvolution(nn.Module):
    """Depthwise causal convolution; after a linear projection, a depthwise-separable one (semantics, section 4).

    Args:
        dim: channels.
        kernel_size: taps, the present token included.
    """

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(kernel_size, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the taps as `torch.nn.Conv1d` does."""
        bound = self.weight.shape[0] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, tail: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve the next tokens.

        Args:
            x: `[B, N, dim]`.
            tail: the inputs before x, `[B, kernel_size - 1, dim]`; zeros at the start of a stream.
            lengths: tokens that count in each row `[B]`; None for all.

        Returns:
            The convolved tokens `[B, N, dim]` and the tail after them.
        """
        tokens = x.shape[1]
        x = torch.cat([tail.to(x.dtype), x], 1)
        y = sum(w * x[:, i : i + tokens] for i, w in enumerate(self.weight))
        assert isinstance(y, Tensor)
        return y, last(x, lengths, tail.shape[1]).to(tail.dtype)

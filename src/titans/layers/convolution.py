"""The causal short convolution of the linear recurrences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from titans.layers.mixer import last
from titans.layers.projection import CONV_SIZE, no_inputs
from titans.ops.short_conv.naive import short_convolution


class CausalConvolution(nn.Module):
    """`y_t = bias + sum_i conv_weight[i] x_{t - 3 + i}`, each channel by itself.

    Args:
        channels: C.
        bias: add a learned bias. Default False.
    """

    def __init__(self, channels: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(CONV_SIZE, channels))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as `torch.nn.Conv1d` does."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(CONV_SIZE**-0.5), CONV_SIZE**-0.5)

    def flops(self, context: int) -> float:
        """Count 2 for each weight; see `titans.layers.mixer.Mixer.flops`."""
        return 2 * self.weight.numel()

    def initial_conv_state(self) -> Tensor:
        """Return the inputs before the first token, `[1, 3, C]`."""
        return no_inputs(self.weight)

    def forward(self, x: Tensor, conv_state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve the next tokens of a stream.

        Args:
            x: `[B, T, C]`.
            conv_state: the inputs before x, `[B, 3, C]`.
            lengths: tokens that count in each row `[B]`; None for all.

        Returns:
            The outputs `[B, T, C]`, and the inputs to carry.
        """
        x = torch.cat([conv_state.to(x.dtype), x], 1)
        y = short_convolution(x, self.weight.to(x.dtype))
        return y if self.bias is None else y + self.bias, last(x, lengths, conv_state.shape[1]).to(conv_state.dtype)

"""Linear projection to heads with a causal short convolution: how queries, keys and values are made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from titans.layers.mixer import last
from titans.ops.short_conv import short_conv_qkv
from titans.ops.tracing import is_dynamic

CONV_SIZE = 4  # inputs that the convolution sees, the present one included


def no_inputs(conv_weight: Tensor) -> Tensor:
    """Return what a convolution with `conv_weight` `[K, C]` saw before the first token: zeros `[1, K - 1, C]`."""
    return torch.zeros(
        1, len(conv_weight) - 1, conv_weight.shape[1], dtype=conv_weight.dtype, device=conv_weight.device
    )


class ConvolvedProjection(nn.Module):
    """`SiLU(conv(x W))`, depthwise-separable (docs/semantics.md, section 4).

    Args:
        hidden_size: width D of the input and of each part.
        num_heads: heads H of each part.
        norms: of the parts, such as queries, keys and values: "none", "l2norm" or "clip_rms" (`titans.ops.short_conv`).
        use_short_conv: off: `SiLU(x W)`.
    """

    def __init__(self, hidden_size: int, num_heads: int, norms: Sequence[str], use_short_conv: bool) -> None:
        super().__init__()
        self.num_heads, self.norms, parts = num_heads, norms, len(norms)
        self.linear = nn.Linear(hidden_size, parts * hidden_size, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(CONV_SIZE, parts * hidden_size)) if use_short_conv else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the convolution as `torch.nn.Conv1d` does."""
        if self.conv_weight is not None:
            nn.init.uniform_(self.conv_weight, -(CONV_SIZE**-0.5), CONV_SIZE**-0.5)

    def flops(self, context: int) -> float:
        """Count 2 for each weight of the convolution; see `titans.layers.mixer.Mixer.flops`."""
        return 0 if self.conv_weight is None else 2 * self.conv_weight.numel()

    def initial_conv_state(self) -> Tensor | None:
        """Return the convolution's inputs before the first token, `[1, 3, parts D]`; None without convolution."""
        return None if self.conv_weight is None else no_inputs(self.conv_weight)

    def forward(
        self, x: Tensor, conv_state: Tensor | None, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Project the next tokens of a stream.

        Args:
            x: `[B, T, D]`, bounded.
            conv_state: the convolution's inputs before x, `[B, 3, parts D]`; None without convolution.
            lengths: tokens that count in each row `[B]`; None for all.

        Returns:
            The parts, `[B, T, H, D / H]` each, and the convolution's inputs to carry.
        """
        y = self.linear(x)
        parts = short_conv_qkv(y, self.conv_weight, conv_state, self.num_heads, self.norms)
        if conv_state is not None:
            short = lengths is None and not is_dynamic(y.shape[1])
            recent = y[:, -conv_state.shape[1] :] if short else y
            conv_state = last(torch.cat([conv_state.to(y.dtype), recent], 1), lengths, conv_state.shape[1]).to(
                conv_state.dtype
            )
        return parts, conv_state

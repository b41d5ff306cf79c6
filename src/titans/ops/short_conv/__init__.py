"""From a linear projection to heads: short convolution, SiLU and norm, with no pass over memory for each of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from titans.ops.short_conv import native
from titans.ops.short_conv.naive import NORMS, clip_rms, naive_short_conv_qkv, short_convolution

__all__ = ["NORMS", "clip_rms", "short_conv_qkv", "short_convolution"]


def short_conv_qkv(
    x: Tensor, conv_weight: Tensor | None, conv_state: Tensor | None, num_heads: int, norms: Sequence[str]
) -> tuple[Tensor, ...]:
    """Make queries, keys and values of what a linear layer projected: `norm(SiLU(conv(x)))`, per head.

    Differentiable, any number of times, in x, conv_weight and conv_state. In compiled code on the CPU where the native
    kernel is at hand (docs/lab-notes/native.md), otherwise in PyTorch.

    Args:
        x: the next inputs `[B, T, P H D]`, the P parts side by side.
        conv_weight: `[K, P H D]`, of each channel; the last weighs the present input. None: no convolution.
        conv_state: the inputs before x, `[B, K - 1, P H D]`; zeros at the start of a stream. None without convolution.
        num_heads: heads H of each part.
        norms: of each part: "none", "l2norm" (unit length per head) or "clip_rms" (root mean square per head at most
            `MAX_VALUE_RMS`).

    Returns:
        The parts, `[B, T, H, D]` each.
    """
    if conv_weight is None or conv_state is None or not native.available(x, conv_weight):
        return naive_short_conv_qkv(x, conv_weight, conv_state, num_heads, norms)
    return native.native_short_conv_qkv(x, conv_weight, conv_state.to(x.dtype), num_heads, norms)

"""From a linear projection to heads: short convolution, SiLU and length, with no pass over memory for each of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from titans.ops.heads import native
from titans.ops.heads.reference import FORMS, clip_rms, reference

__all__ = ["FORMS", "clip_rms", "heads"]


def heads(x: Tensor, taps: Tensor | None, tail: Tensor | None, count: int, forms: Sequence[str]) -> tuple[Tensor, ...]:
    """Make queries, keys and values of what a linear layer projected: `SiLU(conv(x))`, per head.

    Differentiable, any number of times, in x, taps and tail. In compiled code on the CPU where the native kernel is
    at hand (docs/native.md), otherwise in PyTorch.

    Args:
        x: the next inputs `[B, N, P H d]`, the P parts side by side.
        taps: `[K, P H d]`, of each channel; the last weighs the present input. None: no convolution.
        tail: the inputs before x, `[B, K - 1, P H d]`; zeros at the start of a stream. None without convolution.
        count: heads H of each part.
        forms: of each part: "plain", "unit" (unit length per head) or "clipped" (root mean square per head at most
            `MAX_VALUE_RMS`).

    Returns:
        The parts, `[B, H, N, d]` each.
    """
    if taps is None or tail is None or not native.available(x, taps):
        return reference(x, taps, tail, count, forms)
    return native.heads(x, taps, tail.to(x.dtype), count, forms)

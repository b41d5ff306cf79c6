"""Heads by PyTorch operations: what the native form must equal, and what runs wherever that one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_VALUE_RMS = 10.0  # bounds the errors of any input, and with them the state
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "unit": lambda x: F.normalize(x, dim=-1),
    "clipped": lambda x: clip_rms(x, MAX_VALUE_RMS),
}


def reference(
    x: Tensor, taps: Tensor | None, tail: Tensor | None, count: int, forms: Sequence[str]
) -> tuple[Tensor, ...]:
    """Make heads; arguments and results as `titans.ops.heads`."""
    if taps is not None:
        assert tail is not None  # checked with the state
        x = ShortConvolution.apply(torch.cat([tail.to(x.dtype), x], 1), taps)  # type: ignore[no-untyped-call]
    parts = F.silu(x).unflatten(-1, (len(forms), count, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return tuple(FORMS[form](part) for form, part in zip(forms, parts, strict=True))


def clip_rms(x: Tensor, limit: float) -> Tensor:
    """Shorten rows `[..., d]` whose root mean square is above the limit."""
    power = x.to(torch.promote_types(x.dtype, torch.float32)).square().mean(-1, keepdim=True)
    power = power.clamp(min=limit**2)  # before the root: x may be 0
    return x * (limit * power.rsqrt()).to(x.dtype)


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

"""Heads by PyTorch operations: what the native form must equal, and what runs wherever that one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.ops.autograd import by_hand
from titans.ops.calls import forward_mode, transformed

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
        x = short_convolution(torch.cat([tail.to(x.dtype), x], 1), taps)
    parts = F.silu(x).unflatten(-1, (len(forms), count, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return tuple(FORMS[form](part) for form, part in zip(forms, parts, strict=True))


def clip_rms(x: Tensor, limit: float) -> Tensor:
    """Shorten rows `[..., d]` whose root mean square is above the limit."""
    power = x.to(torch.promote_types(x.dtype, torch.float32)).square().mean(-1, keepdim=True)
    power = power.clamp(min=limit**2)  # before the root: x may be 0
    return x * (limit * power.rsqrt()).to(x.dtype)


def short_convolution(x: Tensor, taps: Tensor) -> Tensor:
    """Convolve `x` `[B, N + K - 1, C]` with `taps` `[K, C]`, each channel by itself: `[B, N, C]`."""
    if forward_mode():
        return ShortConvolution.forward(x, taps)
    y: Tensor = ShortConvolution.apply(x, taps)  # type: ignore[no-untyped-call]
    return y


class ShortConvolution(torch.autograd.Function):
    """`y_t = sum_i taps[i] x[t + i]`, summed in place: autograd would keep and fill a tensor for every tap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, taps: Tensor) -> Tensor:
        """Convolve; arguments and result as of `short_convolution`."""
        tokens = x.shape[1] - len(taps) + 1
        if transformed():  # batches of tensors cannot be changed in place
            return torch.stack([x[:, i : i + tokens] * tap for i, tap in enumerate(taps)]).sum(0)
        y = x[:, :tokens] * taps[0]
        for i, tap in enumerate(taps[1:], start=1):
            y.addcmul_(x[:, i : i + tokens], tap)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of `x` and `taps`."""
        x, taps = ctx.saved_tensors
        tokens, last = grad.shape[1], len(taps) - 1
        if by_hand(grad):
            by_x = torch.zeros_like(x)
            for i, tap in enumerate(taps):
                by_x[:, i : i + tokens].addcmul_(grad, tap)
        else:
            by_x = torch.stack([F.pad(grad * tap, (0, 0, i, last - i)) for i, tap in enumerate(taps)]).sum(0)
        return by_x, torch.stack([(grad * x[:, i : i + tokens]).sum((0, 1)) for i in range(len(taps))])

"""The operation in PyTorch: what the native form must equal, and what runs wherever that one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.ops.autograd import manual_backward_applies
from titans.ops.tracing import in_forward_ad, in_transform

MAX_VALUE_RMS = 10.0  # bounds the errors of any input, and with them the state
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "l2norm": lambda x: F.normalize(x, dim=-1),
    "clip_rms": lambda x: clip_rms(x, MAX_VALUE_RMS),
}


def naive_short_conv_qkv(
    x: Tensor, conv_weight: Tensor | None, conv_state: Tensor | None, num_heads: int, norms: Sequence[str]
) -> tuple[Tensor, ...]:
    """Make heads; arguments and results as `short_conv_qkv`."""
    if conv_weight is not None:
        assert conv_state is not None  # checked with the state
        x = short_convolution(torch.cat([conv_state.to(x.dtype), x], 1), conv_weight)
    parts = F.silu(x).unflatten(-1, (len(norms), num_heads, -1)).unbind(2)
    return tuple(NORMS[norm](part) for norm, part in zip(norms, parts, strict=True))


def clip_rms(x: Tensor, limit: float) -> Tensor:
    """Shorten rows `[..., d]` whose root mean square is above the limit."""
    power = x.to(torch.promote_types(x.dtype, torch.float32)).square().mean(-1, keepdim=True)
    power = power.clamp(min=limit**2)  # before the root: x may be 0
    return x * (limit * power.rsqrt()).to(x.dtype)


def short_convolution(x: Tensor, conv_weight: Tensor) -> Tensor:
    """Convolve `x` `[B, T + K - 1, C]` with `conv_weight` `[K, C]`, each channel by itself: `[B, T, C]`."""
    if in_forward_ad():
        return ShortConvolution.forward(x, conv_weight)
    y: Tensor = ShortConvolution.apply(x, conv_weight)  # type: ignore[no-untyped-call]
    return y


class ShortConvolution(torch.autograd.Function):
    """`y_t = sum_i conv_weight[i] x[t + i]`, summed in place: autograd would fill a tensor for every weight."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, conv_weight: Tensor) -> Tensor:
        """Convolve; arguments and result as of `short_convolution`."""
        tokens = x.shape[1] - len(conv_weight) + 1
        if in_transform():  # batches of tensors cannot be changed in place
            return torch.stack([x[:, i : i + tokens] * w for i, w in enumerate(conv_weight)]).sum(0)
        y = x[:, :tokens] * conv_weight[0]
        for i, w in enumerate(conv_weight[1:], start=1):
            y.addcmul_(x[:, i : i + tokens], w)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of `x` and `conv_weight`."""
        x, conv_weight = ctx.saved_tensors
        tokens, last = grad.shape[1], len(conv_weight) - 1
        if manual_backward_applies(grad):
            by_x = torch.zeros_like(x)
            for i, w in enumerate(conv_weight):
                by_x[:, i : i + tokens].addcmul_(grad, w)
        else:
            by_x = torch.stack([F.pad(grad * w, (0, 0, i, last - i)) for i, w in enumerate(conv_weight)]).sum(0)
        return by_x, torch.stack([(grad * x[:, i : i + tokens]).sum((0, 1)) for i in range(len(conv_weight))])

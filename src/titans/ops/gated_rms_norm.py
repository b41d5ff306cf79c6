"""RMS norm per head and SiLU gate of what a memory answers."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.ops import native
from titans.ops.autograd import autograd_backward, manual_backward_applies
from titans.ops.tracing import disable_autocast


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute `RMSNorm(x) * SiLU(gate)` for each head.

    Differentiable, any number of times, in x, gate and weight. In compiled code on the CPU where the native kernel is
    at hand (docs/lab-notes/native.md), otherwise in PyTorch.

    Args:
        x: what was read, `[B, T, H, D]`.
        gate: `[B, T, H, D]`, before its SiLU.
        weight: scale of the norm, `[D]`.
        eps: added to the mean square.

    Returns:
        `[B, T, H, D]`.
    """
    alike = x.dtype == gate.dtype == weight.dtype and x.numel() > 0
    if not alike or not (native.available(x) and native.available(gate)):
        return naive_gated_rms_norm(x, gate, weight, eps)
    found: Tensor = NativeGatedRmsNorm.apply(x, gate, weight, eps)  # type: ignore[no-untyped-call]
    return found


def naive_gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute it by PyTorch operations; arguments and results as of `gated_rms_norm`."""
    return F.rms_norm(x, weight.shape, weight, eps) * F.silu(gate)


class Problem(ctypes.Structure):
    """What the library is told: as in native/gated_rms_norm.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "tokens", "heads", "width", "threads")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "gate", "output")),
        *((name, ctypes.c_void_p) for name in ("grad", "x_grad", "gate_grad", "weight_grad")),
    )


class NativeGatedRmsNorm(torch.autograd.Function):
    """The operation as one call of compiled code, forward and backward; keeps nothing but the inputs.

    The library takes x as the memory's kernel writes it, `[B, H, T, D]`, and everything else as `[B, T, H, D]`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Compute it; arguments and results as of `gated_rms_norm`."""
        ctx.save_for_backward(x, gate, weight)
        ctx.eps = eps
        output = torch.empty_like(gate, memory_format=torch.contiguous_format)
        _call("gated_rms_norm_forward", x, gate, weight, eps, output=output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Carry the gradient back; by autograd where the result is differentiated again, or batched."""
        x, gate, weight = ctx.saved_tensors
        if not manual_backward_applies(grad):
            with disable_autocast(grad.device):
                generic = lambda x, gate, weight: [naive_gated_rms_norm(x, gate, weight, ctx.eps)]  # noqa: E731
                return *autograd_backward(generic, (x, gate, weight), [grad]), None
        x_grad = torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format)
        gate_grad = torch.empty_like(gate, memory_format=torch.contiguous_format)
        sums = native.block_sums(gate, len(weight))
        grads = {"grad": grad, "x_grad": x_grad, "gate_grad": gate_grad, "weight_grad": sums}
        _call("gated_rms_norm_backward", x, gate, weight, ctx.eps, **grads)
        return x_grad.transpose(1, 2), gate_grad, sums.sum(0), None


def _call(name: str, x: Tensor, gate: Tensor, weight: Tensor, eps: float, **rest: Tensor) -> None:
    batch, tokens, heads, width = x.shape
    tensors = {"x": x.transpose(1, 2), "gate": gate, "weight": weight, **rest}
    tensors = {key: y.contiguous() for key, y in tensors.items()}  # held until the call is over
    sizes = {"batch": batch, "tokens": tokens, "heads": heads, "width": width, "threads": native.threads(x)}
    native.call(name, x, Problem(eps=eps, **sizes, **{key: y.data_ptr() for key, y in tensors.items()}))

"""RMS norm per head and SiLU gate of what a memory answers."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.ops import native
from titans.ops.autograd import autograd_backward, manual_backward_applies
from titans.ops.native import block_sums, call, threads
from titans.ops.tracing import disable_autocast


def gated_rms_norm(y: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """Compute `norm(y) * SiLU(gate)`, heads side by side.

    Differentiable, any number of times, in y, weight and gate. In compiled code on the CPU where the native kernel is
    at hand (docs/lab-notes/native.md), otherwise in PyTorch.

    Args:
        y: what was read, `[B, H, N, d]`.
        weight: scale of the RMS norm, `[d]`.
        gate: `[B, N, H d]`.
        eps: added to the mean square.

    Returns:
        `[B, N, H d]`.
    """
    alike = y.dtype == weight.dtype == gate.dtype and y.numel() > 0
    if not alike or not (native.available(y) and native.available(gate)):
        return naive_gated_rms_norm(y, weight, gate, eps)
    found: Tensor = NativeGatedRmsNorm.apply(y, weight, gate, eps)  # type: ignore[no-untyped-call]
    return found


def naive_gated_rms_norm(y: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """Compute it by PyTorch operations; arguments and results as `gated_rms_norm`."""
    return F.rms_norm(y, weight.shape, weight, eps).transpose(1, 2).flatten(2) * F.silu(gate)


class Problem(ctypes.Structure):
    """What the library is told: as in native/gated_rms_norm.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "tokens", "heads", "width", "threads")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("y", "weight", "gate", "output")),
        *((name, ctypes.c_void_p) for name in ("grad", "y_grad", "gate_grad", "weight_grad")),
    )


class NativeGatedRmsNorm(torch.autograd.Function):
    """The operation as one call of compiled code, forward and backward; keeps nothing but the inputs."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
        """Compute it; arguments and results as `gated_rms_norm`."""
        ctx.save_for_backward(y, weight, gate)
        ctx.eps = eps
        output = torch.empty_like(gate, memory_format=torch.contiguous_format)
        _call("gated_rms_norm_forward", (y, weight, gate), eps, output=output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Carry the gradient back; by autograd where the result is differentiated again, or batched."""
        inputs = ctx.saved_tensors
        if not manual_backward_applies(grad):
            with disable_autocast(grad.device):
                return *autograd_backward(partial(_again, ctx.eps), inputs, [grad]), None
        y, weight, gate = inputs
        by_y, by_gate = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (y, gate))
        by_weight = block_sums(gate, len(weight))
        _call(
            "gated_rms_norm_backward", inputs, ctx.eps, grad=grad, y_grad=by_y, gate_grad=by_gate, weight_grad=by_weight
        )
        return by_y, by_weight.sum(0), by_gate, None


def _again(eps: float, *inputs: Tensor) -> list[Tensor]:
    y, weight, gate = inputs
    return [naive_gated_rms_norm(y, weight, gate, eps)]


def _call(name: str, inputs: tuple[Tensor, ...], eps: float, **rest: Tensor) -> None:
    tensors = {key: x.contiguous() for key, x in (*zip(("y", "weight", "gate"), inputs, strict=True), *rest.items())}
    batch, heads, tokens, width = inputs[0].shape
    pointers = {key: x.data_ptr() for key, x in tensors.items()}
    problem = Problem(
        batch=batch, tokens=tokens, heads=heads, width=width, threads=threads(inputs[0]), eps=eps, **pointers
    )
    call(name, inputs[0], problem)

"""Short convolution, SiLU and norm as one call of compiled code, forward and backward: `native/short_conv.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from titans.ops import native
from titans.ops.autograd import autograd_backward, manual_backward_applies
from titans.ops.native import block_sums, call, threads
from titans.ops.short_conv.naive import MAX_VALUE_RMS, NORMS, naive_short_conv_qkv
from titans.ops.tracing import disable_autocast

KERNEL_SIZE = 4  # as in short_conv.h


class Problem(ctypes.Structure):
    """What the library is told: as in short_conv.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "tokens", "parts", "heads", "width", "threads")),
        ("norms", ctypes.POINTER(ctypes.c_int64)),
        ("limit", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("x", "conv_weight", "conv_state")),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("grads", ctypes.POINTER(native.Stream)),
        *((name, ctypes.c_void_p) for name in ("x_grad", "conv_state_grad", "conv_weight_grad")),
    )


def available(x: Tensor, conv_weight: Tensor) -> bool:
    """Tell whether compiled code serves these inputs and weights here and now."""
    return x.dtype == conv_weight.dtype and len(conv_weight) == KERNEL_SIZE and x.numel() > 0 and native.available(x)


def native_short_conv_qkv(
    x: Tensor, conv_weight: Tensor, conv_state: Tensor, num_heads: int, norms: Sequence[str]
) -> tuple[Tensor, ...]:
    """Make heads; arguments and results as `short_conv_qkv`."""
    found: tuple[Tensor, ...] = NativeShortConv.apply(x, conv_weight, conv_state, num_heads, norms)  # type: ignore[no-untyped-call]
    return tuple(y.transpose(1, 2) for y in found)


class NativeShortConv(torch.autograd.Function):
    """Projections to heads `[B, H, T, D]`, as the memory's kernel reads them best.

    The backward pass keeps nothing but the inputs and makes the rest anew.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, conv_weight: Tensor, conv_state: Tensor, num_heads: int, norms: Sequence[str]
    ) -> tuple[Tensor, ...]:
        """Make heads; arguments as of `short_conv_qkv`."""
        ctx.save_for_backward(x, conv_weight, conv_state)
        ctx.num_heads, ctx.norms = num_heads, norms
        x, conv_weight, conv_state = (y.contiguous() for y in (x, conv_weight, conv_state))
        width = x.shape[2] // (len(norms) * num_heads)
        outputs = [x.new_empty(len(x), num_heads, x.shape[1], width) for _ in norms]
        _call("short_conv_forward", x, conv_weight, conv_state, num_heads, norms, outputs=_pointers(outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Carry gradients back; by autograd where the result is differentiated again, or batched."""
        x, conv_weight, conv_state = ctx.saved_tensors
        if not manual_backward_applies(*grads):
            with disable_autocast(x.device):
                again = partial(_heads_first, num_heads=ctx.num_heads, norms=ctx.norms)
                return *autograd_backward(again, (x, conv_weight, conv_state), grads), None, None
        x, conv_weight, conv_state = (y.contiguous() for y in (x, conv_weight, conv_state))
        by_x, by_state = torch.empty_like(x), torch.empty_like(conv_state)
        by_weight = block_sums(x, *conv_weight.shape)
        grads = tuple(y if y.stride(3) == 1 else y.contiguous() for y in grads)
        streams = (native.Stream(y.data_ptr(), y.stride()[:3]) for y in grads)
        _call(
            "short_conv_backward", x, conv_weight, conv_state, ctx.num_heads, ctx.norms,
            grads=(native.Stream * len(grads))(*streams), x_grad=by_x.data_ptr(), conv_state_grad=by_state.data_ptr(),
            conv_weight_grad=by_weight.data_ptr(),
        )  # fmt: skip
        return by_x, by_weight.sum(0), by_state, None, None


def _heads_first(*args: Any, **kwargs: Any) -> list[Tensor]:
    return [y.transpose(1, 2) for y in naive_short_conv_qkv(*args, **kwargs)]


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))


def _call(
    name: str, x: Tensor, conv_weight: Tensor, conv_state: Tensor, num_heads: int, norms: Sequence[str], **rest: Any
) -> None:
    """Call the library; whoever calls holds all tensors that `rest` points to."""
    kinds, width = list(NORMS), x.shape[2] // (len(norms) * num_heads)
    problem = Problem(
        batch=len(x), tokens=x.shape[1], parts=len(norms), heads=num_heads, width=width, threads=threads(x),
        norms=(ctypes.c_int64 * len(norms))(*(kinds.index(norm) for norm in norms)), limit=MAX_VALUE_RMS,
        x=x.data_ptr(), conv_weight=conv_weight.data_ptr(), conv_state=conv_state.data_ptr(), **rest,
    )  # fmt: skip
    call(name, x, problem)

"""Heads as one call of compiled code, forward and backward: `heads.h` in the folder of the memory's kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from titans.ops.associative_memory import native
from titans.ops.autograd import by_autograd, by_hand
from titans.ops.calls import without_autocast
from titans.ops.heads.reference import FORMS, MAX_VALUE_RMS, reference
from titans.ops.native_blocks import block_sums, call, threads

TAPS = 4  # as in heads.h


class Projection(ctypes.Structure):
    """What the library is told: as in heads.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "tokens", "parts", "heads", "width", "threads")),
        ("forms", ctypes.POINTER(ctypes.c_int64)),
        ("limit", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("x", "taps", "tail")),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("grads", ctypes.POINTER(native.Stream)),
        *((name, ctypes.c_void_p) for name in ("x_grad", "tail_grad", "taps_grad")),
    )


def available(x: Tensor, taps: Tensor) -> bool:
    """Tell whether compiled code serves these inputs and taps here and now."""
    return x.dtype == taps.dtype and len(taps) == TAPS and x.numel() > 0 and native.available(x)


def heads(x: Tensor, taps: Tensor, tail: Tensor, count: int, forms: Sequence[str]) -> tuple[Tensor, ...]:
    """Make heads; arguments and results as `titans.ops.heads`."""
    found: tuple[Tensor, ...] = Heads.apply(x, taps, tail, count, forms)  # type: ignore[no-untyped-call]
    return found


class Heads(torch.autograd.Function):
    """Projections to heads; the backward pass keeps nothing but the inputs and makes the rest anew."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, taps: Tensor, tail: Tensor, count: int, forms: Sequence[str]
    ) -> tuple[Tensor, ...]:
        """Make heads; arguments and results as `titans.ops.heads`."""
        ctx.save_for_backward(x, taps, tail)
        ctx.count, ctx.forms = count, forms
        x, taps, tail = (y.contiguous() for y in (x, taps, tail))
        width = x.shape[2] // (len(forms) * count)
        outputs = [x.new_empty(len(x), count, x.shape[1], width) for _ in forms]
        _call("heads_forward", x, taps, tail, count, forms, outputs=_pointers(outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Carry gradients back; by autograd where the result is differentiated again, or batched."""
        x, taps, tail = ctx.saved_tensors
        if not by_hand(*grads):
            with without_autocast(x.device):
                again = partial(reference, count=ctx.count, forms=ctx.forms)
                return *by_autograd(again, (x, taps, tail), grads), None, None
        x, taps, tail = (y.contiguous() for y in (x, taps, tail))
        by_x, by_tail = torch.empty_like(x), torch.empty_like(tail)
        by_taps = block_sums(x, *taps.shape)
        grads = tuple(y if y.stride(3) == 1 else y.contiguous() for y in grads)
        streams = (native.Stream(y.data_ptr(), y.stride()[:3]) for y in grads)
        _call(
            "heads_backward", x, taps, tail, ctx.count, ctx.forms, grads=(native.Stream * len(grads))(*streams),
            x_grad=by_x.data_ptr(), tail_grad=by_tail.data_ptr(), taps_grad=by_taps.data_ptr(),
        )  # fmt: skip
        return by_x, by_taps.sum(0), by_tail, None, None


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))


def _call(name: str, x: Tensor, taps: Tensor, tail: Tensor, count: int, forms: Sequence[str], **rest: Any) -> None:
    """Call the library; whoever calls holds all tensors that `rest` points to."""
    kinds = list(FORMS)
    problem = Projection(
        batch=len(x), tokens=x.shape[1], parts=len(forms), heads=count, width=x.shape[2] // (len(forms) * count),
        threads=threads(x),
        forms=(ctypes.c_int64 * len(forms))(*(kinds.index(form) for form in forms)), limit=MAX_VALUE_RMS,
        x=x.data_ptr(), taps=taps.data_ptr(), tail=tail.data_ptr(), **rest,
    )  # fmt: skip
    call(name, x, problem)

"""Compiled code for the CPU: where it serves, and how it is called. `kernel.cpp` is the place to start reading."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from titans.ops.native.build import load_kernel
from titans.ops.tracing import is_eager

REALS = {torch.float32: "float", torch.float64: "double"}
BLOCK = 32  # tokens that a thread takes at once, as in blocks.h
THREAD_NUMBERS = 100_000  # for each thread: fewer take less time than to start one


class Stream(ctypes.Structure):
    """Tokens `[B, H, T, D]` of any strides but the last: as in problem.h."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3))


def available(x: Tensor) -> bool:
    """Tell whether compiled code serves tensors like `x` here and now; compiles it if it was never asked before."""
    if not is_eager() or type(x) is not Tensor or x.device.type != "cpu" or x.dtype not in REALS:
        return False
    # A mode, such as fake tensors or a counter of operations, must see each of them.
    return _get_current_dispatch_mode() is None and load_kernel(REALS[x.dtype]) is not None


def library(x: Tensor) -> ctypes.CDLL:
    """Return the library for numbers of the type of `x`, for which `available` holds."""
    loaded = load_kernel(REALS[x.dtype])
    assert loaded is not None
    return loaded


def call(name: str, x: Tensor, problem: ctypes.Structure) -> None:
    """Call the library for numbers of the type of `x`; other Python threads go on meanwhile.

    Whoever calls holds all tensors that the problem points to.
    """
    run = library(x)[name]
    run.restype = None
    run(ctypes.byref(problem))


def block_sums(x: Tensor, *shape: int) -> Tensor:
    """Return room for what is summed over the tokens of each block of `x` `[B, T, ...]`, `[blocks, *shape]`."""
    return x.new_empty(len(x) * -(-x.shape[1] // BLOCK), *shape)


def threads(x: Tensor) -> int:
    """Choose how many threads work on the numbers of `x`."""
    return min(torch.get_num_threads(), 1 + x.numel() // THREAD_NUMBERS)

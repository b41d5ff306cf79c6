"""What operations in compiled code on blocks of tokens share: `blocks.h` in the folder of the memory's kernel."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from titans.ops.associative_memory.native import REALS
from titans.ops.associative_memory.native.build import load_kernel

BLOCK = 32  # tokens of a block, as in blocks.h
THREAD_NUMBERS = 100_000  # for each thread: fewer take less time than to start one


def block_sums(x: Tensor, *shape: int) -> Tensor:
    """Return room for what is summed over the tokens of each block of `x` `[B, N, ...]`, `[blocks, *shape]`."""
    return x.new_empty(len(x) * -(-x.shape[1] // BLOCK), *shape)


def threads(x: Tensor) -> int:
    """Choose how many threads work on the numbers of `x`."""
    return min(torch.get_num_threads(), 1 + x.numel() // THREAD_NUMBERS)


def call(name: str, x: Tensor, problem: ctypes.Structure) -> None:
    """Call the library for numbers of the type of `x`, for which `native.available` holds.

    Other Python threads go on meanwhile. Whoever calls holds all tensors that the problem points to.
    """
    loaded = load_kernel(REALS[x.dtype])
    assert loaded is not None
    run = loaded[name]
    run.restype = None
    run(ctypes.byref(problem))

"""The kernels of flash-linear-attention, where that package is installed and tensors in half precision are on a GPU."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from titans.ops.tracing import in_transform

LEAST_LOG_DECAY = -60.0  # the kernels take differences of sums of logarithms, and -inf - -inf is no number

KERNELS = {  # by whether there is a decay, whether one a channel, and whether the delta rule
    (False, False, False): "simple_gla",
    (True, False, False): "simple_gla",
    (True, True, False): "gla",
    (False, False, True): "delta_rule",
    (True, False, True): "gated_delta_rule",
}


def applies(q: Tensor, log_decay: Tensor | None, beta: Tensor | None) -> bool:
    """Say whether there is a kernel for a call: none for float32, nor for the delta rule with a decay a channel."""
    channelwise = log_decay is not None and log_decay.dim() == 4
    return on_gpu(q) and q.dtype in (torch.bfloat16, torch.float16) and not (channelwise and beta is not None)


def on_gpu(q: Tensor) -> bool:
    """Say whether the package can be used on a tensor, whose derivatives it knows backward only."""
    return q.is_cuda and _installed() and not in_transform()


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("fla") is not None and importlib.util.find_spec("triton") is not None


def fla_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, matrix: Tensor
) -> tuple[Tensor, Tensor]:
    """Read and write with the kernel that the recurrence has there.

    Args:
        q: queries `[B, T, H, d_k]`, in half precision.
        k: keys `[B, T, H, d_k]`; 0 at padding.
        v: values `[B, T, H, d_v]`.
        log_decay: `[B, T, H]` or `[B, T, H, d_k]`, or None.
        beta: `[B, T, H]`, or None for no delta rule.
        matrix: the memory before the first token `[B, H, d_k, d_v]`, float32.

    Returns:
        The reads `[B, T, H, d_v]` and the memory after the last token.
    """
    gates: dict[str, Tensor] = {}
    if log_decay is not None:
        gates["g"] = log_decay.float().clamp(min=LEAST_LOG_DECAY)
    if beta is not None:
        gates["beta"] = beta.to(q.dtype)
    folder = KERNELS[log_decay is not None, log_decay is not None and log_decay.dim() == 4, beta is not None]
    kernel: Any = getattr(importlib.import_module(f"fla.ops.{folder}"), f"chunk_{folder}")
    inputs = (q, k.to(q.dtype), v.to(q.dtype))
    y, end = kernel(*inputs, **gates, scale=1.0, initial_state=matrix.contiguous(), output_final_state=True)
    return y, end

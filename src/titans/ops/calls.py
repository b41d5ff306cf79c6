"""What kind of call this is: traced, transformed, or an ordinary one with values that may be looked at."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def forward_mode() -> bool:
    """Tell whether PyTorch differentiates forward, which needs a rule of every operation."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def transformed() -> bool:
    """Tell whether a transform of `torch.func`, batched gradients or forward differentiation are at work.

    They follow PyTorch's operations alone: neither compiled code nor saved tensors' hooks.
    """
    return not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active() or forward_mode())


def ordinary() -> bool:
    """Tell whether other means than PyTorch's operations may be used: no graph is traced, and nothing transforms."""
    tracing = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not (tracing or transformed())


def readable(x: Tensor) -> bool:
    """Tell whether Python may look at the values of `x`.

    Not while a graph is traced, which would have to wait for them or take them for constants; nor under a transform,
    where there may be many at once; nor where there are none, as on the device "meta".
    """
    return ordinary() and type(x) in (Tensor, nn.Parameter) and not x.is_meta

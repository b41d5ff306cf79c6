"""What kind of call this is: traced, transformed, or an ordinary one with values that may be looked at."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def in_forward_ad() -> bool:
    """Tell whether PyTorch differentiates forward, which needs a rule of every operation."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def in_transform() -> bool:
    """Tell whether a transform of `torch.func`, batched gradients or forward differentiation are at work.

    They follow PyTorch's operations alone: neither compiled code nor saved tensors' hooks.
    """
    return not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active() or in_forward_ad())


def is_eager() -> bool:
    """Tell whether other means than PyTorch's operations may be used: no graph is traced, and nothing transforms."""
    tracing = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not (tracing or in_transform())


def is_dynamic(*sizes: int) -> bool:
    """Tell whether a program is exported that leaves one of these numbers open, so that no loop may run that often.

    `torch.compile` may take them for constants instead: its default backend cannot differentiate loops of open length.
    """
    if not (torch.compiler.is_compiling() and torch.compiler.is_exporting()):
        return False
    from torch.fx.experimental.symbolic_shapes import (
        has_static_value,  # no part of the public interface: if needed only
    )

    return not all(has_static_value(size) for size in sizes)


def require_static_length(tokens: object) -> None:
    """Refuse a number of tokens that an exported program leaves open, where Python's loops depend on it.

    Raises:
        ValueError: it is left open.
    """
    if isinstance(tokens, torch.SymInt):
        raise ValueError(
            "the number of tokens cannot be left open in an exported program of this layer: export it for one number, "
            "with its state, and call it piece by piece"
        )


def is_concrete(x: Tensor) -> bool:
    """Tell whether Python may look at the values of `x`.

    Not while a graph is traced, which would have to wait for them or take them for constants; nor under a transform,
    where there may be many at once; nor where there are none, as on the device "meta".
    """
    return is_eager() and type(x) in (Tensor, nn.Parameter) and not x.is_meta


def disable_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Keep the precision of what is computed within; no context, which a graph would have to hold, where it is kept."""
    on = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()

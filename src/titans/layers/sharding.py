"""Parameters that are spread over processes (FSDP2, `torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from torch import nn

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


def gathers(method: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], T]:
    """Have a module's parameters gathered for a method that reads them outside `forward`, and their gradients reduced.

    FSDP does so for `forward` alone, and for methods that are registered with it. Within `forward` the method must not
    be called, since FSDP would take the parameters away at its end.

    Args:
        method: of a module; what it returns is a pytree.

    Returns:
        The method, which registers itself at the first call on a sharded module.
    """
    name = method.__name__

    @functools.wraps(method)
    def run(self: M, *args: P.args, **kwargs: P.kwargs) -> T:
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not imported: nothing is sharded
        if fsdp is not None and name not in vars(self) and isinstance(self, fsdp.FSDPModule):
            fsdp.register_fsdp_forward_method(self, name)
            found: T = getattr(self, name)(*args, **kwargs)
            return found
        return method(self, *args, **kwargs)

    return cast(Callable[Concatenate[M, P], T], run)

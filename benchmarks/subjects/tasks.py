"""What every worker runs, whatever it is made of. Imports nothing but torch: peers have a Python of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Built = tuple[Callable[[], Any], dict[str, float]]  # what to run, and facts about it


def passes(forward: Callable[[], torch.Tensor], backward: bool) -> Callable[[], Any]:
    """Run forward only, or forward and backward."""

    def both() -> None:
        forward().sum().backward()

    return both if backward else torch.no_grad()(forward)


def step(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Built:
    """One step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return run, {"parameters": parameters(model)}


def parameters(model: nn.Module) -> int:
    """Count parameters."""
    return sum(p.numel() for p in model.parameters())

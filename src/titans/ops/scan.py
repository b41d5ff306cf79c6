"""A sequential scan whose backward keeps only what passes between groups of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from titans.ops.calls import transformed

Carry = TypeVar("Carry")
Group = TypeVar("Group")
Output = TypeVar("Output")

MIN_GROUP = 8  # steps; shorter scans are not worth recomputing


def group_size(steps: int, least: int = MIN_GROUP) -> int:
    """Return how many steps to recompute together: the square root keeps states and recomputed steps in balance.

    Args:
        steps: of the whole scan.
        least: the smallest group, and so the longest scan that is not recomputed.
    """
    return max(least, math.isqrt(max(steps - 1, 0)) + 1)


def scan(
    run: Callable[[Carry, Group], tuple[Carry, Output]],
    carry: Carry,
    groups: Iterable[Group],
    recompute: bool,
) -> tuple[Carry, list[Output]]:
    """Run groups of steps one after the other.

    Args:
        run: maps the carry and one group's inputs to the next carry and the group's output.
        carry: what the first group starts from; any tree of tensors.
        groups: the inputs of each group.
        recompute: store only the carries for backward and run each group again there; not under `torch.func`.

    Returns:
        The last carry and the outputs of the groups.
    """
    outputs = []
    for group in groups:
        if recompute and torch.is_grad_enabled() and not transformed():
            carry, output = checkpoint(run, carry, group, use_reentrant=False, preserve_rng_state=False)
        else:
            carry, output = run(carry, group)
        outputs.append(output)
    return carry, outputs

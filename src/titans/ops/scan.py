"""A sequential scan whose backward keeps only what passes between groups of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from titans.ops.tracing import in_transform

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
        if recompute and torch.is_grad_enabled() and not in_transform():
            carry, output = checkpoint(run, carry, group, use_reentrant=False, preserve_rng_state=False)
        else:
            carry, output = run(carry, group)
        outputs.append(output)
    return carry, outputs


def scan_blocks(
    step: Callable[[Carry, list[Tensor]], tuple[Carry, list[Tensor]]], carry: Carry, blocks: list[Tensor]
) -> tuple[Carry, list[Tensor]]:
    """Run `step` over blocks one after the other, as a loop in the graph: for numbers of blocks that it leaves open.

    Args:
        step: maps the carry and one block to the next carry and the block's outputs; shapes never change.
        carry: what the first block starts from; a tree of tensors.
        blocks: tensors with the blocks in dimension 0.

    Returns:
        The last carry, and the outputs stacked in dimension 0.
    """
    from torch._higher_order_ops.scan import scan as loop  # no part of the public interface: if needed only

    leaves, spec = pytree.tree_flatten(carry)

    def body(leaves: list[Tensor], block: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        carry, outputs = step(pytree.tree_unflatten(leaves, spec), block)
        return [_own(x) for x in pytree.tree_leaves(carry)], [_own(x) for x in outputs]

    last, outputs = loop(body, [_own(x) for x in leaves], blocks)
    return pytree.tree_unflatten(last, spec), outputs


def join_blocks(x: Tensor, dim: int) -> Tensor:
    """Make one dimension of blocks `dim` and their tokens `dim + 1`, whose numbers a graph leaves open."""
    here = torch.arange(x.shape[dim] * x.shape[dim + 1], device=x.device)  # flatten would ask what divides what
    places: tuple[Any, ...] = (slice(None),) * dim
    joined: Tensor = x[(*places, here // x.shape[dim + 1], here % x.shape[dim + 1])]
    return joined


def _own(x: Tensor) -> Tensor:
    """Copy, since a loop's tensors must not share memory."""
    return x.clone(memory_format=torch.contiguous_format)

"""Derivatives by autograd, for operations whose own derivative is written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from titans.ops.tracing import in_transform


def manual_backward_applies(*grads: Tensor) -> bool:
    """Tell, in a backward pass given `grads`, whether they are plain tensors and nothing differentiates again."""
    if torch.compiler.is_compiling():
        return True
    batched = torch._C._functorch.is_legacy_batchedtensor  # what `is_grads_batched` makes
    return not (torch.is_grad_enabled() or in_transform() or any(batched(grad) for grad in grads))


def autograd_backward(
    generic: Callable[..., Any], inputs: Sequence[Any], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Differentiate by autograd, so that the gradients can be batched and, where asked for, differentiated again.

    Args:
        generic: computes the operation's outputs from its inputs in operations that autograd follows.
        inputs: of the operation, tensors and others.
        grads: of its outputs.

    Returns:
        The gradients of the inputs; None for those that need none.
    """
    wanted = [i for i, x in enumerate(inputs) if x is not None and x.requires_grad]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # As tensors of their own: one input may depend on another, or be it, and must not get its gradient as well.
        inputs = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
        outputs = generic(*inputs)
    pairs = [(y, g) for y, g in zip(outputs, grads, strict=False) if y.requires_grad]
    found = torch.autograd.grad(
        [y for y, _ in pairs], [inputs[i] for i in wanted], [g for _, g in pairs], create_graph=again, allow_unused=True
    )
    results: list[Tensor | None] = [None] * len(inputs)
    for i, grad in zip(wanted, found, strict=True):
        results[i] = grad
    return results

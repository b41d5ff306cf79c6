"""A run of chunks as one step of autograd, with one forget gate a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from titans.ops.associative_memory.network import Options
from titans.ops.autograd import autograd_backward, manual_backward_applies
from titans.ops.tracing import disable_autocast


class Backend(Protocol):
    """What computes a run and its derivative: the module `native` or `manual_backward`.

    Inputs are q, k, v `[B, H, C, b, d]`, theta, decay (one a head, `[B, H, C, 1, b]`) and eta; the norm's scale
    `[H, 1, d]` or None; the weights, surprises and anchors.
    """

    def forward(self, options: Options, inputs: Sequence[Any], keep: bool) -> tuple[list[Tensor], Any]:
        """Read and write chunks of equal size; the first may start, and the only one end, inside a chunk of the stream.

        Args:
            options: of the call.
            inputs: as of the class.
            keep: a backward pass may follow.

        Returns:
            The outputs, reads `[B, H, C, b, d]`, the final weights and surprises, and the gradient norms where asked
            for; and a tree of tensors, what the backward pass needs of them.
        """

    def backward(
        self, options: Options, inputs: Sequence[Any], kept: Any, grads: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Carry gradients back.

        Args:
            options: of the call.
            inputs: as of the class.
            kept: by `forward`.
            grads: of its outputs.

        Returns:
            The gradients of all inputs.
        """


class ChunkFunction(torch.autograd.Function):
    """Read and write whole chunks.

    Inputs: the backend; the options; the same by autograd, for derivatives of derivatives; and the backend's inputs.
    Outputs: as of the backend.
    """

    @staticmethod
    def forward(
        ctx: Any, backend: Backend, options: Options, generic: Callable[..., Any], *inputs: Any
    ) -> tuple[Tensor, ...]:
        """Run, keeping what the backward pass needs where a gradient may be asked for."""
        outputs, kept = backend.forward(options, inputs, any(ctx.needs_input_grad))
        leaves, ctx.structure = tree_flatten(kept)
        ctx.backend, ctx.options, ctx.generic = backend, options, generic
        ctx.save_for_backward(*inputs, *leaves)  # nowhere else: autograd frees these, and hooks see them
        if options.surprise:
            ctx.mark_non_differentiable(outputs[-1])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Carry gradients back; by autograd where the result is differentiated again, or batched."""
        saved, count = ctx.saved_tensors, len(ctx.needs_input_grad) - 3  # once: under a checkpoint they come only once
        inputs, leaves = saved[:count], saved[count:]
        with disable_autocast(grads[0].device):
            if not manual_backward_applies(*grads):
                return None, None, None, *autograd_backward(ctx.generic, inputs, grads)
            kept = tree_unflatten(leaves, ctx.structure)
            return None, None, None, *ctx.backend.backward(ctx.options, inputs, kept, grads)


def thirds(x: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Split the tensors of a memory into weights, surprises and anchors."""
    x = list(x)
    layers = len(x) // 3
    return x[:layers], x[layers : 2 * layers], x[2 * layers :]

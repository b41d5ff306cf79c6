"""A run of chunks as one call of compiled code, for one forget gate a head on the CPU.

The same mathematics as `manual_backward`, but one head at a time, so that its state stays in the processor's cache from
chunk to chunk, and with no call in between. Compiled on first use where a C++ compiler is installed
(`titans.ops.native`); everything works without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from titans.ops.associative_memory.network import Options
from titans.ops.native import Stream, available, call, library

__all__ = ["available", "backward", "forward"]

GROUP = 256  # tokens from one kept state to the next; the states between are made anew in the backward pass
ACTIVATIONS = ("gelu", "silu", "relu")  # by number


class Problem(ctypes.Structure):
    """What the kernel is told: as in native/problem.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "chunks", "tokens", "layers", "group")),
        *((name, ctypes.c_int64) for name in ("activation", "residual", "limited", "threads")),
        *((name, ctypes.c_int64) for name in ("online", "feature_norm")),
        ("hidden_lr", ctypes.c_double),
        ("widths", ctypes.POINTER(ctypes.c_int64)),
        *((name, Stream) for name in ("q", "k", "v", "y")),
        *((name, ctypes.c_void_p) for name in ("theta", "decay", "eta", "scale")),
        ("memory", ctypes.POINTER(ctypes.c_void_p)),
        ("norms", ctypes.c_void_p),
        ("results", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_void_p) for name in ("trace", "states", "scratch")),
        *((name, Stream) for name in ("y_grad", "q_grad", "k_grad", "v_grad")),
        ("result_grads", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_void_p) for name in ("theta_grad", "decay_grad", "eta_grad", "scale_grad")),
        ("memory_grads", ctypes.POINTER(ctypes.c_void_p)),
    )


def forward(options: Options, inputs: Sequence[Any], keep: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Read and write chunks; arguments and results as of `Backend.forward`."""
    run = _Run(options, inputs)
    q, v, memory = inputs[0], inputs[2], inputs[7:]
    y = torch.empty_like(v, memory_format=torch.contiguous_format)
    norms = y.new_empty(y.shape[:-1]) if options.surprise else None
    results = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in memory[: 2 * run.problem.layers]]
    kept = []
    if keep:
        chunks = q.shape[0] * q.shape[1] * q.shape[2]
        groups = q.shape[0] * q.shape[1] * -(-q.shape[2] // run.problem.group)
        kept = [y.new_empty(chunks, run.size("trace_size")), y.new_empty(groups, run.size("state_size"))]
    run.stream(y=y)
    run.tensors(norms=norms, results=results, **dict(zip(("trace", "states"), kept, strict=False)))
    run.call("forward")
    return [y, *results] if norms is None else [y, *results, norms], kept


def backward(
    options: Options, inputs: Sequence[Any], kept: list[Tensor], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Carry gradients back; arguments and results as of `Backend.backward`."""
    run = _Run(options, inputs)
    results = [None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
    scale = None if inputs[6] is None else inputs[6].new_empty(len(inputs[0]), *inputs[6].shape)
    run.stream(y_grad=grads[0], q_grad=results[0], k_grad=results[1], v_grad=results[2])
    run.tensors(
        trace=kept[0], states=kept[1], result_grads=list(grads[1 : 1 + 2 * run.problem.layers]), scale_grad=scale,
        theta_grad=results[3], decay_grad=results[4], eta_grad=results[5], memory_grads=results[7:],
    )  # fmt: skip
    run.call("backward")
    results[6] = None if scale is None else scale.sum(0)
    return results


class _Run:
    """A problem and the tensors it points to."""

    def __init__(self, options: Options, inputs: Sequence[Any]) -> None:
        q, k, v, theta, decay, eta, scale, *memory = inputs
        batch, heads, chunks, tokens, _ = q.shape
        self.like = q
        self.held: list[Tensor] = []  # alive as long as the call
        layers = len(memory) // 3
        widths = [memory[0].shape[2], *(x.shape[3] for x in memory[:layers])]
        self.problem = Problem(
            batch=batch, heads=heads, chunks=chunks, tokens=tokens, layers=layers, group=max(1, GROUP // tokens),
            activation=ACTIVATIONS.index(options.network.activation), residual=options.network.residual,
            limited=options.limit_steps, threads=min(torch.get_num_threads(), batch * heads),
            online=options.rule == "token", feature_norm=options.network.feature_norm, hidden_lr=options.hidden_lr,
            widths=(ctypes.c_int64 * len(widths))(*widths),
        )  # fmt: skip
        self.stream(q=q, k=k, v=v)
        self.tensors(theta=theta, decay=decay, eta=eta, scale=scale, memory=memory)

    def stream(self, **streams: Any) -> None:
        """Point to tokens `[B, H, C, b, d]`, in place where one stride leads through all chunks."""
        for name, x in streams.items():
            if x.stride(4) != 1 or (x.shape[2] > 1 and x.stride(2) != x.shape[3] * x.stride(3)):
                x = x.contiguous()
            self.held.append(x)
            setattr(self.problem, name, Stream(x.data_ptr(), (x.stride(0), x.stride(1), x.stride(3))))

    def tensors(self, **tensors: Any) -> None:
        """Point to tensors, or to lists of them."""
        for name, x in tensors.items():
            if isinstance(x, list):
                made = [y.contiguous() for y in x]
                self.held += made
                setattr(self.problem, name, (ctypes.c_void_p * len(made))(*(y.data_ptr() for y in made)))
            elif x is not None:
                self.held.append(x.contiguous())
                setattr(self.problem, name, self.held[-1].data_ptr())

    def size(self, name: str) -> int:
        """Ask the library for a size, in elements."""
        ask = library(self.like)[name]
        ask.restype = ctypes.c_int64
        return int(ask(ctypes.byref(self.problem)))

    def call(self, name: str) -> None:
        """Call the library, with scratch memory."""
        scratch = self.like.new_empty(self.problem.threads * self.size(f"{name}_scratch"))
        self.tensors(scratch=scratch)
        call(name, self.like, self.problem)

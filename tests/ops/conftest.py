"""Random inputs of the associative memory."""

import importlib
import itertools

import pytest
import torch

from titans.ops import AssociativeMemoryState

INPUTS = ("q", "k", "v", "theta", "alpha", "eta")


class Case:
    """Inputs, state and options of one call."""

    def __init__(
        self,
        *,
        batch=2,
        heads=2,
        tokens=13,
        width=4,
        depth=2,
        hidden=5,
        chunk_size=4,
        rule="chunk",
        offset=0,
        activation="gelu",
        residual=False,
        norm=None,
        channels=None,
        masked=False,
        limited=False,
        feature_norm=False,
        hidden_lr=1.0,
        step=0.25,
        seed=0,
        dtype=torch.float64,
        backend=None,
    ):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        def uniform(*shape):
            return torch.rand(shape, generator=generator, dtype=torch.float64)

        widths = [width, *[hidden] * (depth - 1), width]
        shapes = [(batch, heads, i, o) for i, o in itertools.pairwise(widths)]
        gates = (batch, heads, tokens)
        self.inputs = {
            "q": normal(*gates, width),
            "k": torch.nn.functional.normalize(normal(*gates, width), dim=-1),
            "v": normal(*gates, width) / 2,
            "theta": step * uniform(*gates),
            "alpha": uniform(*gates, *([] if channels is None else [channels])) / 2,
            "eta": uniform(*gates),
        }
        self.inputs = {name: x.transpose(1, 2).contiguous() for name, x in self.inputs.items()}
        # A state in mid-stream: weights, surprise and anchor all differ.
        weights = [normal(*s) * s[-2] ** -0.5 for s in shapes]
        surprise = [0.1 * normal(*s) for s in shapes]
        self.anchored = rule == "chunk" or depth > 1
        anchor = weights if not self.anchored else [w + 0.3 * normal(*s) for w, s in zip(weights, shapes, strict=True)]
        self.offset = offset
        self.norm_weight = None if norm is None else 1 + 0.3 * normal(*((heads, width) if norm == "head" else (width,)))
        self.state = AssociativeMemoryState(weights, surprise, anchor, offset)
        self.mask = uniform(batch, tokens) < 0.7 if masked else None
        self.options = {"chunk_size": chunk_size, "rule": rule, "activation": activation, "residual": residual,
                        "limit_steps": limited, "feature_norm": feature_norm, "hidden_lr": hidden_lr,
                        "backend": backend}  # fmt: skip
        self.to(dtype)

    def to(self, dtype):
        self.inputs = {name: x.to(dtype) for name, x in self.inputs.items()}
        self.state = self.state.to(dtype)
        self.norm_weight = None if self.norm_weight is None else self.norm_weight.to(dtype)
        return self

    def run(self, start=0, stop=None, state=None, rows=slice(None), **changes):
        """Call the op on a stretch of the tokens."""
        from titans.ops import associative_memory

        inputs = [changes.pop(name, self.inputs[name])[rows, start:stop] for name in INPUTS]
        mask = changes.pop("mask", self.mask)
        return associative_memory(
            *inputs,
            self.state if state is None else state,
            mask=None if mask is None else mask[rows, start:stop],
            norm_weight=self.norm_weight,
            **{**self.options, **changes},
        )

    def leaves(self):
        """Every tensor that the op is differentiable in, made a leaf that asks for a gradient."""
        self.inputs = {name: x.detach().requires_grad_() for name, x in self.inputs.items()}
        # Where no gradient is taken at the anchor it is the weights by definition, and no input of its own.
        weights, surprise, anchor = (
            [x.detach().requires_grad_() for x in part]
            for part in (self.state.weights, self.state.surprise, self.state.anchor)
        )
        if not self.anchored:
            anchor = weights
        self.state = AssociativeMemoryState(weights, surprise, anchor, self.state.offset)
        found = {**self.inputs, "weights": weights, "surprise": surprise}
        if self.anchored:
            found["anchor"] = anchor
        if self.norm_weight is not None:
            self.norm_weight = self.norm_weight.detach().requires_grad_()
            found["norm_weight"] = self.norm_weight
        return found

    def gradients(self, **changes):
        """Outputs, final state, and the gradients of a random function of both with respect to every leaf."""
        leaves = self.leaves()
        y, state = self.run(**changes)
        generator = torch.Generator().manual_seed(99)
        results = [
            y.transpose(1, 2),
            *state.weights,
            *state.surprise,
            *(state.anchor if self.anchored else ()),
        ]
        total = sum((x * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum() for x in results)
        flat, spec = torch.utils._pytree.tree_flatten(leaves)
        found = torch.autograd.grad(total, flat, allow_unused=True)
        found = [torch.zeros_like(x) if g is None else g for g, x in zip(found, flat, strict=True)]
        return y.detach(), state.detach(), torch.utils._pytree.tree_unflatten(found, spec)


@pytest.fixture(scope="session")
def make_case():
    """Make the inputs of one call: see `Case`."""
    return Case


@pytest.fixture(scope="module")
def kernel():
    """Skip where there is none."""
    load_kernel = importlib.import_module("titans.ops.native.build").load_kernel
    if load_kernel("double") is None or load_kernel("float") is None:
        pytest.skip("no C++ compiler that the native kernel could be made with")


@pytest.fixture(scope="module")
def poisoned():
    """Fill what is not initialised with NaN, so that reading it shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)

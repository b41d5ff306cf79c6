"""The memory network of one head, M(x) = [x +] [LN]([unit] sigma(... sigma(x W^1)) W^L), and its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_EPS = 1e-6


class Activation(NamedTuple):
    """A function between the layers.

    Args:
        call: the function.
        backward: carries a gradient back through it, `(grad, x) -> grad * sigma'(x)`.
        second: its second derivative.
    """

    call: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    second: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.call(x)


def _gelu_second(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) * (2 - x * x) * (1 / math.sqrt(2 * math.pi))


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return grad * (s * (1 + x * (1 - s)))


def _silu_second(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (2 + x * (1 - 2 * s))


def _relu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return grad * (x > 0)


ACTIVATIONS = {
    "gelu": Activation(F.gelu, torch.ops.aten.gelu_backward, _gelu_second),
    "silu": Activation(F.silu, _silu_backward, _silu_second),
    "relu": Activation(F.relu, _relu_backward, torch.zeros_like),
}


class Network(NamedTuple):
    """What stays fixed while the memory learns: everything about M but its weights.

    Args:
        activation: sigma between the layers, a key of `ACTIVATIONS`.
        residual: add the input to the output.
        norm_weight: scale of the layer norm on the output, broadcastable to `[B, H, 1, d]`; None for no norm.
        feature_norm: centre the inputs of all layers but the first and bring them to length 1, so that a step of the
            last layer is as long as in a matrix memory with a unit key, and different keys stay apart.
    """

    activation: str
    residual: bool
    norm_weight: Tensor | None
    feature_norm: bool = False

    @property
    def sigma(self) -> Activation:
        """The function between the layers."""
        return ACTIVATIONS[self.activation]

    def features(self, z: Tensor) -> Tensor:
        """Turn a layer's product `z` `[..., d]` into the input of the next."""
        a = self.sigma(z)
        return normalise(a)[0] * a.shape[-1] ** -0.5 if self.feature_norm else a

    def features_backward(self, z: Tensor, grad: Tensor) -> Tensor:
        """Carry `grad`, the gradient at the input of the next layer, back to `z`; both `[..., d]`."""
        if self.feature_norm:
            grad = _normalise_backward(*normalise(self.sigma(z)), grad) * z.shape[-1] ** -0.5
        return self.sigma.backward(grad, z)

    def head(self, x: Tensor, z: Tensor) -> Tensor:
        """Turn the last product `z` into the output: norm, then residual with the input `x`, both `[..., d]`."""
        if self.norm_weight is not None:
            z = normalise(z)[0] * self.norm_weight
        return x + z if self.residual else z

    def head_backward(self, z: Tensor, grad: Tensor) -> Tensor:
        """Carry `grad`, the gradient at the output, back to `z`, the last product; both `[..., d]`."""
        if self.norm_weight is None:
            return grad
        return _normalise_backward(*normalise(z), grad * self.norm_weight)

    def product(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """Carry tokens through the layers up to the last product, before norm and residual.

        Args:
            weights: L tensors `[B, H, d_in, d_out]`.
            x: `[B, H, T, d_in]`.

        Returns:
            `[B, H, T, d_out]`.
        """
        z = x @ weights[0]
        for w in weights[1:]:
            z = self.features(z) @ w
        return z

    def __call__(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """Read the memory: `M(x)`; arguments and result as of `product`."""
        return self.head(x, self.product(weights, x))

    def step_limit(self, z: Tensor, grad_z: Tensor, gradient: Tensor) -> Tensor:
        """Factor that makes a gradient step no longer than that of a matrix memory with a unit key.

        Along its error a token meets the curvature `c = ||dl/dW||^2 / ||dl/du||^2`, u the normalised product: a step
        corrects `2 theta c` of that error. For a matrix and a unit key c is 1; behind a norm it is the inverse
        square of what forgetting shrinks. The factor is `1 / max(1, c)` (docs/lab-notes/stability.md).

        Args:
            z: the last product `[..., d]`.
            grad_z: gradient of the loss at `z`, `[..., d]`.
            gradient: squared norm of the loss's gradient in all weights `[..., 1]`.

        Returns:
            The factor, `[..., 1]`, in (0, 1].
        """
        curvature = gradient / grad_z.square().sum(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
        if self.norm_weight is not None:
            slope = normalise(z)[1].square() * self.norm_weight.square().amax(-1, keepdim=True)
            curvature = curvature * slope
        return curvature.clamp(min=1).reciprocal()


class Options(NamedTuple):
    """How the memory learns: the choices of one call that are the same for every token.

    Args:
        network: the memory network.
        rule: "chunk" or "token".
        chunk_size: tokens per chunk.
        surprise: compute the gradient norms (they are not differentiable).
        limit_steps: shorten each gradient by `Network.step_limit`.
        hidden_lr: under rule "token" the step size of the layers below the last, in units of theta.
        anchored: some gradient is taken at the chunk's start, so that the place in a chunk is part of the state.
        backend: of `associative_memory`.
    """

    network: Network
    rule: str
    chunk_size: int
    surprise: bool
    limit_steps: bool
    hidden_lr: float
    anchored: bool
    backend: str | None


def normalise(z: Tensor) -> tuple[Tensor, Tensor]:
    """Layer-normalise without scale.

    Args:
        z: `[..., d]`.

    Returns:
        The normalised tensor `[..., d]` and the reciprocal standard deviation `[..., 1]`.
    """
    centred = z - z.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + NORM_EPS)
    return centred * scale, scale


def _normalise_backward(unit: Tensor, scale: Tensor, grad: Tensor) -> Tensor:
    """Carry `grad` back through `normalise`, which returned `unit` and `scale`."""
    return (grad - grad.mean(-1, keepdim=True) - unit * (grad * unit).mean(-1, keepdim=True)) * scale


def gradient_square(inputs: list[Tensor], deltas: list[Tensor]) -> Tensor:
    """Square the norm of each token's gradient: of an outer product, it is the product of the factors'.

    Args:
        inputs: of each layer, `[..., d_in]`.
        deltas: errors carried back to each layer's product, `[..., d_out]`.

    Returns:
        The squared norm over all layers, `[..., 1]`.
    """
    squares = [a.square().sum(-1, True) * d.square().sum(-1, True) for a, d in zip(inputs, deltas, strict=True)]
    return torch.stack(squares).sum(0)

"""The online rule, token by token, by autograd: every fast form must equal it (docs/semantics.md, section 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from titans.ops.associative_memory.arguments import Inputs
from titans.ops.associative_memory.network import Network, Options
from titans.ops.associative_memory.state import AssociativeMemoryState


def naive_associative_memory(
    options: Options, inputs: Inputs, mask: Tensor | None, state: AssociativeMemoryState
) -> tuple[Tensor, Tensor | None, AssociativeMemoryState]:
    """Read and write one token after the other; arguments and results as of `chunk_associative_memory`."""
    network, rule, chunk_size, return_surprise, limit_steps, hidden_lr, anchored, _ = options
    q, k, v, theta, alpha, eta = inputs
    weights, surprise, anchor = state.weights, state.surprise, state.anchor
    batch, _, tokens, _ = q.shape
    offset = torch.as_tensor(state.offset, device=q.device).expand(batch)
    outputs, norms = [], []
    for t in range(tokens):
        key, value, query = k[:, :, t : t + 1], v[:, :, t : t + 1], q[:, :, t : t + 1]  # [B, H, 1, d]

        gradient = (
            _token_gradient(network, weights, anchor, key, value)
            if rule == "token"
            else _gradient(network, anchor, key, value)
        )
        square = torch.stack([g.square().sum((-2, -1)) for g in gradient]).sum(0)  # [B, H]
        gradient = [*(hidden_lr * g for g in gradient[:-1]), gradient[-1]]
        step, momentum = (gate[:, :, t, None, None] for gate in (theta, eta))
        if limit_steps:
            step = step * _step_limit(network, anchor, key, value, square)
        write = torch.ones(batch, dtype=torch.bool, device=q.device) if mask is None else mask[:, t]
        rows = write[:, None, None, None]
        new_surprise = [momentum * s - step * g for s, g in zip(surprise, gradient, strict=True)]
        new_weights = [(1 - forget_gate(alpha[:, :, t], w)) * w + s for w, s in zip(weights, new_surprise, strict=True)]
        surprise = [torch.where(rows, new, old) for new, old in zip(new_surprise, surprise, strict=True)]
        weights = [torch.where(rows, new, old) for new, old in zip(new_weights, weights, strict=True)]

        outputs.append(torch.where(rows, network(weights, query), 0.0))
        norms.append(torch.where(write[:, None], square.detach().sqrt(), 0.0))
        if anchored:
            offset = (offset + write) % chunk_size
            start = (write & (offset == 0))[:, None, None, None]
            anchor = [torch.where(start, w, a) for w, a in zip(weights, anchor, strict=True)]
        else:
            anchor = weights
    if anchored and mask is None and isinstance(state.offset, int):
        final_offset: int | Tensor = (state.offset + tokens) % chunk_size
    else:
        final_offset = offset if anchored else state.offset
    final = AssociativeMemoryState(weights, surprise, anchor, final_offset)
    return torch.cat(outputs, 2), torch.stack(norms, 2) if return_surprise else None, final


def _gradient(network: Network, at: list[Tensor], key: Tensor, value: Tensor) -> list[Tensor]:
    def loss(w: list[Tensor]) -> Tensor:
        return (network(w, key) - value).square().sum()

    gradient: list[Tensor] = torch.func.grad(loss)(at)
    return gradient


def _token_gradient(
    network: Network, weights: list[Tensor], anchor: list[Tensor], key: Tensor, value: Tensor
) -> list[Tensor]:
    """The last layer's at its own weights; at the anchor, for the same error, those of the layers below."""
    online = [*anchor[:-1], weights[-1]]
    last = _gradient(network, online, key, value)[-1]
    target = value + network(anchor, key) - network(online, key)
    return [*_gradient(network, anchor, key, target)[:-1], last]


def _step_limit(network: Network, weights: list[Tensor], key: Tensor, value: Tensor, square: Tensor) -> Tensor:
    z = network.product(weights, key)
    grad_z = torch.func.grad(lambda z: (network.head(key, z) - value).square().sum())(z)
    return network.step_limit(z, grad_z, square[..., None, None])


def forget_gate(alpha: Tensor, weights: Tensor) -> Tensor:
    """Shape one token's gate, `[B, H]` or channel-wise `[B, H, c]`, to broadcast against `[B, H, d_in, d_out]`."""
    if alpha.dim() == 2:
        return alpha[:, :, None, None]
    return alpha.repeat_interleave(weights.shape[-1] // alpha.shape[-1], -1).unsqueeze(-2)

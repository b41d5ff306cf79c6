"""Multiplication tables of finite groups, and running products over them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def permutations(points: int, even: bool = False) -> Tensor:
    """List the permutations of some points, in lexicographic order, so that the first is the identity.

    Args:
        points: how many.
        even: only the even ones, the alternating group. Default: all, the symmetric group.

    Returns:
        `[n, points]`, int64: where each permutation sends each point.
    """
    listed = torch.tensor(list(itertools.permutations(range(points))))
    first, second = torch.triu_indices(points, points, 1)
    inversions = (listed[:, first] > listed[:, second]).sum(1)
    return listed[inversions % 2 == 0] if even else listed


def permutation_table(listed: Tensor) -> Tensor:
    """Compose every two permutations.

    Args:
        listed: a group of permutations `[n, points]`, in lexicographic order.

    Returns:
        `[n, n]`: at `[a, b]` the number of the permutation "first a, then b".
    """
    points = listed.shape[1]
    weights = points ** torch.arange(points - 1, -1, -1)
    composed = listed[:, listed].transpose(0, 1)  # [b, a, point] -> [a, b, point]
    return torch.searchsorted((listed * weights).sum(1), (composed * weights).sum(2))


def cyclic_table(modulus: int) -> Tensor:
    """Return the addition table of the numbers below `modulus`, `[m, m]`."""
    numbers = torch.arange(modulus)
    return (numbers[:, None] + numbers) % modulus


def running_products(elements: Tensor, table: Tensor) -> Tensor:
    """Multiply up along a sequence, in about log2 N steps, as the product is associative.

    Args:
        elements: `[B, N]`, int64.
        table: the group's table `[n, n]`.

    Returns:
        `[B, N]`: at t the product of the elements 0 … t, in this order.
    """
    products, shift = elements, 1
    while shift < elements.shape[1]:
        products = torch.cat([products[:, :shift], table[products[:, :-shift], products[:, shift:]]], 1)
        shift *= 2
    return products

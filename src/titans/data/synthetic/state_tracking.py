"""State tracking: word problems of groups, one token per element, the running product asked at every position.

The groups grow harder: parity and modular addition are abelian; A5 is the smallest group that is not solvable, and no
circuit of constant depth and threshold gates is known for its word problem (Barrington, 1989; Merrill et al., 2024).
Publications that train parity and modular addition ask at the last position only; here every position is asked, and
evaluations report the last one too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from titans.data.synthetic.task import Size, SyntheticTask
from titans.errors import TitansError

MODULUS = 5


@dataclasses.dataclass(frozen=True)
class StateTracking(SyntheticTask):
    """The word problem of one group.

    Args:
        task: "parity", "modular-addition", "a5", "s5" or "walk" (token 0 a step to the left, 1 to the right; the
            position on a ring of `modulus` places, from 0, after every step).
        modulus: m of modular addition and walk. Default 5.

    Raises:
        TitansError: the task is unknown, or the modulus does not work.
    """

    kind: ClassVar[str] = "state"

    task: str = "parity"
    modulus: int = MODULUS

    def __post_init__(self) -> None:
        if self.task not in STATE_TASKS:
            raise TitansError(f'the state task is "{self.task}", expected one of {", ".join(STATE_TASKS)}')
        if self.modulus < 2:
            raise TitansError(f"the modulus is {self.modulus}, expected at least 2")
        if self.task == "walk" and self.modulus % 2 == 0:
            raise TitansError(
                f"the modulus is {self.modulus}, expected an odd one: with an even one the number of steps already "
                "tells whether the position is even"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the task."""
        return self.task

    @property
    def definition(self) -> str:
        """What is asked, in words, for the line that says which protocol was followed."""
        return f"{self.task}, {len(self.table)} states, the running product asked at every position"

    @property
    def deviations(self) -> tuple[str, ...]:
        """In what a training and test on it deviate from what is published."""
        of_the_last = self.task in ("parity", "modular-addition")
        return ("every position is asked, where publications ask the last one",) if of_the_last else ()

    @property
    def table(self) -> Tensor:
        """The group's multiplication table `[n, n]`."""
        return STATE_TASKS[self.task](self.modulus)

    @property
    def inputs(self) -> Tensor:
        """The element that each token stands for `[tokens]`."""
        return torch.tensor([self.modulus - 1, 1]) if self.task == "walk" else torch.arange(len(self.table))

    @property
    def vocab_size(self) -> int:
        """Elements of the group, which are the answers; tokens are as many or fewer."""
        return len(self.table)

    @property
    def chance(self) -> float:
        """One over the number of elements."""
        return 1 / len(self.table)

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make sequences, see `SyntheticTask.batch`."""
        ids = torch.randint(len(self.inputs), (rows, size.length), generator=generator)
        return ids, running_products(self.inputs[ids], self.table)


def permutations(points: int, even: bool = False) -> Tensor:
    """List permutations `[n, points]`, all or the even ones, in lexicographic order: the identity is the first."""
    listed = torch.tensor(list(itertools.permutations(range(points))))
    first, second = torch.triu_indices(points, points, 1)
    inversions = (listed[:, first] > listed[:, second]).sum(1)
    return listed[inversions % 2 == 0] if even else listed


def permutation_table(listed: Tensor) -> Tensor:
    """Return at `[a, b]` the number of "first a, then b", for a group of permutations in lexicographic order."""
    points = listed.shape[1]
    weights = points ** torch.arange(points - 1, -1, -1)
    composed = listed[:, listed].transpose(0, 1)  # [b, a, point] -> [a, b, point]
    return torch.searchsorted((listed * weights).sum(1), (composed * weights).sum(2))


def cyclic_table(modulus: int) -> Tensor:
    """Return the addition table of the numbers below `modulus`, `[m, m]`."""
    numbers = torch.arange(modulus)
    return (numbers[:, None] + numbers) % modulus


def running_products(elements: Tensor, table: Tensor) -> Tensor:
    """Return the products of the elements 0 … t, `[B, T]`, in about log2 T steps, as the product is associative."""
    products, shift = elements, 1
    while shift < elements.shape[1]:
        products = torch.cat([products[:, :shift], table[products[:, :-shift], products[:, shift:]]], 1)
        shift *= 2
    return products


@functools.cache
def permutation_group(even: bool) -> Tensor:
    """Return the table of the permutations of five points, of all or of the even ones alone."""
    return permutation_table(permutations(5, even))


STATE_TASKS: dict[str, Callable[[int], Tensor]] = {  # each gives a table
    "parity": lambda modulus: cyclic_table(2),
    "modular-addition": cyclic_table,
    "a5": lambda modulus: permutation_group(even=True),
    "s5": lambda modulus: permutation_group(even=False),
    "walk": cyclic_table,
}

"""State tracking: word problems of groups, one token per element, the running product asked at every position.

The groups grow harder: parity and modular addition are abelian; A5 is the smallest group that is not solvable, and no
circuit of constant depth and threshold gates is known for its word problem (Barrington, 1989; Merrill et al., 2024).
Publications that train parity and modular addition ask at the last position only; here every position is asked, and
evaluations report the last one too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from titans.data.synthetic.groups import cyclic_table, permutation_table, permutations, running_products
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


@functools.cache
def _alternating() -> Tensor:
    return permutation_table(permutations(5, even=True))


@functools.cache
def _symmetric() -> Tensor:
    return permutation_table(permutations(5))


STATE_TASKS: dict[str, Callable[[int], Tensor]] = {  # each gives a table
    "parity": lambda modulus: cyclic_table(2),
    "modular-addition": cyclic_table,
    "a5": lambda modulus: _alternating(),
    "s5": lambda modulus: _symmetric(),
    "walk": cyclic_table,
}

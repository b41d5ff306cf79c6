"""The training section of a recipe: transformers' arguments and those of the objective."""

from __future__ import annotations

import dataclasses

from transformers import TrainingArguments

from titans.training.objective import Objective


@dataclasses.dataclass
class StreamTrainingArguments(TrainingArguments):
    """What `StreamTrainer` is trained with: all that `transformers.TrainingArguments` takes, and more.

    Args:
        write_cost: see `Objective`.
        piece_length: see `Objective`; a shorter one than the data's `sequence_length` saves memory.
    """

    write_cost: float = 0.0
    piece_length: int | None = None

    @property
    def objective(self) -> Objective:
        """What training makes small.

        Raises:
            TitansError: one of its fields is out of range.
        """
        return Objective(self.write_cost, self.piece_length, self.label_smoothing_factor)

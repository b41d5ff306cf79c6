"""Recall at a distance: how often a model answers a question about a fact that lies far back."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from titans.evaluation.intervals import wilson


@dataclasses.dataclass(frozen=True)
class RecallResult:
    """Answers to questions at one distance.

    Args:
        distance: bytes between the facts and the question.
        asked: questions.
        correct: right answers.
        low: lower end of the 95 % Wilson interval of the accuracy.
        high: its upper end.
    """

    distance: int
    asked: int
    correct: int
    low: float
    high: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.asked


def recall(model: Any, prompts: Tensor, answers: Tensor, distance: int, piece_length: int = 1024) -> RecallResult:
    """Ask a model for one byte after each prompt, reading the prompts in pieces with carried state.

    Args:
        model: a causal language model over bytes.
        prompts: `[B, M]`.
        answers: the right next bytes `[B]`.
        distance: what to call the distance in the result.
        piece_length: tokens per forward pass; does not change the result. Default 1024.

    Returns:
        How many of the most likely next bytes were right.
    """
    was_training, state = model.training, None
    model.eval()
    with torch.inference_mode():
        for piece in prompts.to(model.device).split(piece_length, 1):
            output = model(piece, cache=state, use_cache=True, logits_to_keep=1)
            state = output.cache
    model.train(was_training)
    correct = int((output.logits[:, -1].argmax(-1).cpu() == answers).sum())
    return RecallResult(distance, len(answers), correct, *wilson(correct, len(answers)))

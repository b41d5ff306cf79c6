"""Recall at a distance: how often a model answers a question about a fact that lies far back."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor


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


def wilson(correct: float, asked: float, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a share (Wilson, 1927).

    Args:
        correct: successes.
        asked: trials, at least 1.
        z: standard deviations; 1.96 for 95 %.

    Returns:
        Its lower and upper end.
    """
    share = correct / asked
    centre = share + z * z / (2 * asked)
    spread = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    scale = 1 + z * z / asked
    # Rounding must not push an end to the other side of the share.
    return max(0.0, min(share, (centre - spread) / scale)), min(1.0, max(share, (centre + spread) / scale))

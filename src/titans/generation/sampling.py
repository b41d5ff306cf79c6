"""Choose the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from titans.errors import TitansError

if TYPE_CHECKING:
    from torch import Generator, Tensor


def check_finite(logits: Tensor) -> None:
    """Refuse logits of which no token can be chosen.

    Raises:
        TitansError: they hold NaN or infinity.
    """
    if not logits.isfinite().all():
        raise TitansError("the model predicts NaN or infinity: its weights are damaged, or its training diverged")


def sample(logits: Tensor, temperature: float, top_p: float, generator: Generator) -> int:
    """Choose one token as `model.generate` does, from a source of chance of its own.

    Args:
        logits: of the next token, `[vocab_size]`, on the CPU.
        temperature: of the softmax; 0 takes the likeliest token.
        top_p: choose among the likeliest tokens of this total probability.
        generator: where chance comes from.

    Returns:
        The token.

    Raises:
        TitansError: the logits hold NaN or infinity.
    """
    import torch
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    check_finite(logits)
    if temperature == 0:
        return int(logits.argmax())
    scores = (logits - logits.max()).double()[None]  # so that no temperature overflows
    for warper in (TemperatureLogitsWarper(float(temperature)), TopPLogitsWarper(float(top_p))):
        scores = warper(None, scores)
    return int(torch.multinomial(scores.softmax(-1)[0], 1, generator=generator))

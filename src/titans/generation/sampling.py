"""Choose the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from titans.errors import TitansError

if TYPE_CHECKING:
    from torch import Generator, Tensor


def seeded(seed: int | None) -> Generator:
    """Make a source of chance; without a seed, a new one every time."""
    import torch

    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def sample(logits: Tensor, temperature: float, top_p: float, generator: Generator) -> int:
    """Choose one token.

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

    if not logits.isfinite().all():
        raise TitansError("the model predicts NaN or infinity: its weights are damaged, or its training diverged")
    if temperature == 0:
        return int(logits.argmax())
    probabilities, tokens = ((logits - logits.max()).double() / temperature).softmax(-1).sort(descending=True)
    before = probabilities.cumsum(-1) - probabilities
    probabilities[(before >= top_p) & (before > 0)] = 0  # the likeliest token always stays
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])

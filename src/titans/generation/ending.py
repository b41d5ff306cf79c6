"""Which tokens end a text."""

from __future__ import annotations

from typing import Any


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens at which a generated text ends: those of `model.generate`, and the tokenizer's own.

    Args:
        model: a causal language model. Its generation settings name one token, several or none; where they name none,
            its configuration may.
        tokenizer: its tokenizer.

    Returns:
        The token ids, possibly none.
    """
    settings = getattr(model, "generation_config", None)
    named = getattr(settings, "eos_token_id", None)
    if named is None:
        named = getattr(model.config.get_text_config(), "eos_token_id", None)
    several = named if isinstance(named, list | tuple) else [named]
    return frozenset(token for token in (tokenizer.eos_token_id, *several) if token is not None)

"""Load a model and its tokenizer for a command."""

from __future__ import annotations

from typing import Any


def silence_loading() -> None:
    """Show no progress bar for reading and writing weights."""
    from transformers.utils import logging

    disable: Any = logging.disable_progress_bar  # untyped
    disable()


def load_for_inference(name: str) -> tuple[Any, Any]:
    """Load a model on the best device of this machine, and its tokenizer.

    Args:
        name: a model folder or a hub id.

    Returns:
        The model and the tokenizer.

    Raises:
        TitansError: one of them cannot be loaded, or they do not fit each other.
    """
    import torch

    from titans.data.tokenizers import check_vocabulary, load_tokenizer
    from titans.training.pretrained import load_model

    silence_loading()
    model: Any = load_model(name)
    tokenizer = load_tokenizer(name)
    check_vocabulary(tokenizer, model.config.vocab_size)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model.to(device or torch.device("cpu")), tokenizer

"""Models as evaluations use them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode, without gradients, and back into the mode that it was in."""
    was_training = model.training
    model.train(False)
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)

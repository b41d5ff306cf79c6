"""The next token."""

import pytest
import torch

from titans import TitansError
from titans.generation import sample


def test_top_p_keeps_the_likeliest():
    logits = torch.tensor([0.5, 0.2, 0.3]).log()
    generator = torch.Generator().manual_seed(0)
    drawn = {p: {sample(logits, 1.0, p, generator) for _ in range(200)} for p in (0.0, 0.5, 0.6, 0.81, 1.0)}
    assert drawn == {0.0: {0}, 0.5: {0}, 0.6: {0, 2}, 0.81: {0, 1, 2}, 1.0: {0, 1, 2}}
    assert sample(logits, 0.0, 1.0, generator) == 0


def test_a_damaged_model_is_refused():
    with pytest.raises(TitansError, match="weights are damaged"):
        sample(torch.tensor([0.0, float("nan")]), 1.0, 1.0, torch.Generator())

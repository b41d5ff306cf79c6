"""A small untrained model."""

import pytest
import torch

from titans import TitansConfig, TitansForCausalLM


@pytest.fixture
def make_model(byte_sizes):
    """Make a byte-level model of a variant."""

    def make(variant="mac", **fields):
        torch.manual_seed(0)
        options = {**byte_sizes, "initializer_range": 0.5}
        return TitansForCausalLM(TitansConfig(variant=variant, **options | fields))

    return make

"""A small untrained model."""

import pytest
import torch

from titans import TitansConfig, TitansForCausalLM


@pytest.fixture
def make_model():
    """Make a byte-level model of a variant."""

    def make(variant="mac", **fields):
        torch.manual_seed(0)
        options = {
            "vocab_size": 259,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "segment_length": 8,
            "sliding_window": 8,
            "memory_chunk_size": 4,
            "num_persistent_tokens": 2,
            "initializer_range": 0.5,
        }
        return TitansForCausalLM(TitansConfig(variant=variant, **options | fields))

    return make

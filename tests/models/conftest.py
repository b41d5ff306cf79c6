"""Tiny models of every variant, with random parameters under which their memories matter."""

import pytest
import torch

from titans import TitansConfig, TitansForCausalLM

SIZES = {
    "vocab_size": 23,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "sliding_window": 5,
    "segment_length": 4,
    "num_persistent_tokens": 2,
    "memory_expansion": 2,
    "memory_chunk_size": 3,
}
VARIANTS = ("lmm", "mac", "mag", "mal", "swa")
TOKEN = {"memory_rule": "token", "memory_depth": 1}
BARE = {"num_persistent_tokens": 0, "memory_convolution": False, "memory_momentum": False, "memory_forgetting": False}
MODELS = {  # layers alone are tested with every switch; here, with each variant, those that change its state
    **{variant: {"variant": variant} for variant in VARIANTS},
    "lmm-token": {"variant": "lmm", **TOKEN},
    "mac-retrieved": {"variant": "mac", "num_retrieved_tokens": 3},
    "mac-chunk-gates": {"variant": "mac", "memory_gates": "chunk"},
    "mag-channelwise": {"variant": "mag", "memory_channelwise_forgetting": True, "memory_depth": 1, "memory_heads": 1},
    "mal-bare": {"variant": "mal", **BARE, "tie_word_embeddings": False},
}


@pytest.fixture(scope="session")
def make_model(scrambled):
    """Make a model: `make_model(variant, dtype=torch.float64, fresh=False, **fields)`; fresh: as initialised."""

    def make_model(variant, dtype=torch.float64, fresh=False, **fields):
        torch.manual_seed(0)
        model = TitansForCausalLM(TitansConfig(variant=variant, **{**SIZES, **fields}))
        if fresh:
            return model.to(dtype).eval()
        model = scrambled(model, dtype=dtype)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.5)  # clear preferences, so that a greedy choice is never a tie
        return model

    return make_model


@pytest.fixture(scope="session", params=MODELS)
def model(request, make_model):
    """Every variant, and every switch at least once."""
    return make_model(**MODELS[request.param])


@pytest.fixture(scope="session", params=VARIANTS)
def variant(request):
    return request.param

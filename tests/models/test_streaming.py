"""Streams without limit: what a model holds does not grow with what it has read."""

import resource

import pytest
import torch


def read(model, tokens, piece, seed=0):
    """Read so many random tokens in pieces; returns the state."""
    generator, state = torch.Generator().manual_seed(seed), None
    with torch.no_grad():
        for _ in range(tokens // piece):
            ids = torch.randint(model.config.vocab_size, (1, piece), generator=generator)
            out = model(ids, cache=state, logits_to_keep=1)
            assert out.logits.isfinite().all()
            state = out.cache
    return state


@pytest.fixture
def small(make_model, variant):
    if variant == "transformer":
        pytest.skip("its state grows")
    return make_model(variant, torch.float32, fresh=True, hidden_size=16, num_hidden_layers=1,
                      sliding_window=128, segment_length=128, memory={"chunk_size": 64})  # fmt: skip


def test_state_size_is_the_same_after_1_000_and_20_000_tokens(small):
    short, long = read(small, 1_024, 512), read(small, 20_480, 2_048)  # segments are over, where there are segments
    assert (short.tokens, long.tokens) == (1_024, 20_480)
    assert short.nbytes == long.nbytes == small.initial_state(1).nbytes
    assert short.nbytes < 200_000


@pytest.mark.slow
def test_state_size_is_the_same_after_1_000_and_100_000_tokens(small):
    short, long = read(small, 1_024, 512), read(small, 102_400, 4_096)
    assert short.nbytes == long.nbytes
    assert all(x.isfinite().all() for x in long.tensors())


def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
def test_a_million_tokens_stream_through_a_small_mac_in_constant_memory(make_model):
    model = make_model("mac", torch.float32, fresh=True, hidden_size=32, segment_length=128, memory={"chunk_size": 64})
    state = read(model, 40_000, 8_000)
    size, before = state.nbytes, peak_bytes()
    state = read(model, 1_000_000, 8_000)
    assert state.tokens == 1_000_000
    assert state.nbytes == size
    assert all(x.isfinite().all() for x in state.tensors())
    assert peak_bytes() - before < 32 * 2**20

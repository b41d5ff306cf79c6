"""Every mixer of the registry, as a model has it, and the layers' other switches: `tests/invariants.py`."""

import pytest

from tests.invariants import PROPERTIES, WIDTH, of_mixer
from titans import TitansConfig
from titans.layers.registry import MIXERS


@pytest.fixture(scope="module", params=MIXERS)
def registered(request, scrambled):
    """A small layer of each name."""
    config = TitansConfig(
        layers=[request.param],
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        sliding_window=4,
        segment_length=5,
        num_persistent_tokens=2,
        memory={"chunk_size": 3, "expansion": 1},
    )
    return scrambled(MIXERS[request.param](config))


@pytest.mark.parametrize("check", PROPERTIES.values(), ids=PROPERTIES)
def test_registered_mixers(registered, check):
    check(of_mixer(registered))


@pytest.mark.parametrize("check", PROPERTIES.values(), ids=PROPERTIES)
def test_switches(mixer, check):
    check(of_mixer(mixer))

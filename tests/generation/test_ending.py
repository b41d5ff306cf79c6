"""A text ends at any of the tokens that a model's settings name, wherever text is generated."""

import pytest
import torch

from tests.serving.conftest import make_model
from tests.serving.test_engine import Asked
from titans import TitansForCausalLM
from titans.data import byte_tokenizer
from titans.evaluation.streaming_lm import StreamingLM
from titans.generation.ending import end_tokens
from titans.generation.stream import generate_text
from titans.serving.engine import Engine

BYTES = byte_tokenizer()


@pytest.fixture(scope="module")
def model(scrambled, byte_sizes):
    return make_model("lmm", scrambled, byte_sizes)


def generated(model, **options):
    """The new tokens of `model.generate`."""
    ids = torch.tensor([[256, *b"hello"]])
    return model.generate(ids, do_sample=False, max_new_tokens=12, **options)[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_ends_at_any_of_several_tokens(model, place, tmp_path):
    """The second of two end tokens is one that the model says in the middle of its text."""
    said = generated(model)
    last = next(token for i, token in enumerate(said) if i > 2 and token not in said[:i])
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    loaded = TitansForCausalLM.from_pretrained(tmp_path)
    named = loaded.generation_config if place == "generation_config.json" else loaded.config
    named.eos_token_id = [257, last]
    loaded.save_pretrained(tmp_path)
    if place == "config.json":
        (tmp_path / "generation_config.json").unlink()
    loaded = TitansForCausalLM.from_pretrained(tmp_path)
    expected = generated(loaded)
    assert expected == said[: said.index(last) + 1]
    text = BYTES.decode(expected[:-1])

    parts = []
    generate_text(loaded, BYTES, ["hello"], parts.append, max_new_tokens=12, temperature=0)
    assert "".join(parts) == text
    assert StreamingLM(loaded, BYTES).answer("hello", 12) == text
    engine = Engine(loaded, BYTES)
    asked = Asked(loaded, [256, *b"hello"], max_new_tokens=12)
    engine.submit(asked.request)
    engine.start()
    served, _, done = asked.result()
    engine.close()
    assert (served, done.reason, done.said) == (text, "stop", len(expected))


def test_what_ends_a_text(model):
    assert end_tokens(model, BYTES) == {257}
    model.generation_config.eos_token_id = None
    assert end_tokens(model, BYTES) == {257}
    model.generation_config.eos_token_id = 61
    assert end_tokens(model, BYTES) == {257, 61}
    model.generation_config.eos_token_id = 257

"""Generation streams the prompt and prints whole characters."""

import pytest
import torch

from titans.data import byte_tokenizer
from titans.generation.continuation import continue_text
from titans.training.pretrained import load_model

BYTES = byte_tokenizer()


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(str(model_folder))


def test_greedy_text_is_that_of_full_forward_passes(model):
    text = "a prompt longer than segment and chunk"
    ids = [256, *text.encode()]
    generated = []
    with torch.no_grad():
        for _ in range(12):
            generated.append(int(model(torch.tensor([ids + generated])).logits[0, -1].argmax()))
    assert 257 not in generated
    streamed = "".join(continue_text(model, BYTES, [text], max_new_tokens=12, temperature=0))
    assert streamed == BYTES.decode(generated)


def test_long_prompts_go_through_in_pieces(model, monkeypatch):
    lengths = []
    forward = type(model).forward

    def spy(self, input_ids, **options):
        lengths.append(input_ids.shape[1])
        return forward(self, input_ids, **options)

    monkeypatch.setattr(type(model), "forward", spy)
    monkeypatch.setattr("titans.generation.continuation.PIECE_LENGTH", 20)
    list(continue_text(model, BYTES, ["x" * 25, "y" * 26], max_new_tokens=2, temperature=0))
    assert lengths == [20, 20, 12, 1]  # nothing is read after the last token


def test_seed_repeats_sampling(model):
    def text(seed):
        return "".join(continue_text(model, BYTES, ["x"], max_new_tokens=30, seed=seed))

    assert text(1) == text(1) != text(2)


def test_ends_at_eos(model, monkeypatch):
    monkeypatch.setattr("titans.generation.continuation.sample", lambda *arguments: 257)
    assert list(continue_text(model, BYTES, ["x"], max_new_tokens=5)) == []


def test_command_line(titans, model_folder, tmp_path):
    greedy = ("--temperature", 0, "--max-new-tokens", 10)
    from_prompt = titans("generate", model_folder, "--prompt", "hello", *greedy).stdout
    (tmp_path / "prompt.txt").write_text("hello")
    assert titans("generate", model_folder, "--file", tmp_path / "prompt.txt", *greedy).stdout == from_prompt
    assert len(from_prompt.strip("\n")) > 0


def test_bad_prompts(titans, model_folder, tmp_path):
    assert "either as --prompt or as --file" in titans("generate", model_folder, status=2).stderr
    both = ("--prompt", "x", "--file", tmp_path / "x")
    assert "either as --prompt or as --file" in titans("generate", model_folder, *both, status=2).stderr
    missing = titans("generate", model_folder, "--file", tmp_path / "x", status=2)
    assert f"cannot read {tmp_path / 'x'}: No such file" in missing.stderr
    (tmp_path / "bad").write_bytes(b"ab\xff")
    assert "is not UTF-8 text (byte 2)" in titans("generate", model_folder, "--file", tmp_path / "bad", status=2).stderr
    assert "the text is not UTF-8" in titans("generate", model_folder, "--prompt", "a\udcff", status=2).stderr

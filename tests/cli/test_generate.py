"""Generation streams the prompt and prints whole characters."""

import copy

import pytest
import torch

from titans import TitansError
from titans.data import byte_tokenizer
from titans.generation.stream import generate_text
from titans.training.pretrained import load_model

BYTES = byte_tokenizer()


def generated(model, *prompt, temperature=1.0, **options):
    parts = []
    generate_text(model, BYTES, prompt, parts.append, temperature=temperature, **options)
    return "".join(parts)


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(str(model_folder))


def test_greedy_text_is_that_of_full_forward_passes(model):
    text = "a prompt longer than segment and chunk"
    ids = [256, *text.encode()]
    said = []
    with torch.no_grad():
        for _ in range(12):
            said.append(int(model(torch.tensor([ids + said])).logits[0, -1].argmax()))
    assert 257 not in said
    streamed = generated(model, text, max_new_tokens=12, temperature=0)
    assert streamed == BYTES.decode(said, skip_special_tokens=True)


def test_long_prompts_go_through_in_pieces(model, monkeypatch):
    lengths = []
    forward = type(model).forward

    def spy(self, input_ids, **options):
        lengths.append(input_ids.shape[1])
        return forward(self, input_ids, **options)

    monkeypatch.setattr(type(model), "forward", spy)
    monkeypatch.setattr("titans.generation.stream.PIECE_LENGTH", 20)
    generated(model, "x" * 25, "y" * 26, max_new_tokens=2, temperature=0)
    assert lengths == [19, 20, 12, 1, 1]  # nothing is read after the last token


def test_seed_repeats_sampling(model):
    def text(seed):
        return generated(model, "x", max_new_tokens=30, seed=seed)

    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    assert text(1) == text(1) != text(2)
    assert text(None) != text(None)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_special_tokens_end_a_text_or_are_left_out(model, monkeypatch):
    said = iter([256, 258, ord("a"), 258, ord("b"), 257, ord("c")])
    monkeypatch.setattr(
        "titans.generation.stream.check_finite", lambda scores: scores.fill_(-9).__setitem__((0, next(said)), 9)
    )
    assert generated(model, "x", max_new_tokens=9, temperature=0) == "ab"


def test_a_damaged_model_is_refused(model):
    damaged = copy.deepcopy(model)
    damaged.lm_head.register_forward_hook(lambda module, inputs, output: output * torch.nan)
    with pytest.raises(TitansError, match="predicts NaN or infinity: its weights are damaged"):
        generated(damaged, "x", max_new_tokens=3)


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

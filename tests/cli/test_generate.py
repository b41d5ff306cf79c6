"""Generation streams the prompt and prints whole characters."""

import pytest
import torch

from titans.cli.generate import _sample, _Writer, continue_text
from titans.data import byte_tokenizer
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
    monkeypatch.setattr("titans.cli.generate._PIECE_LENGTH", 20)
    list(continue_text(model, BYTES, ["x" * 25, "y" * 26], max_new_tokens=2, temperature=0))
    assert lengths == [20, 20, 12, 1, 1]


def test_seed_repeats_sampling(model):
    def text(seed):
        return "".join(continue_text(model, BYTES, ["x"], max_new_tokens=30, seed=seed))

    assert text(1) == text(1) != text(2)


def test_ends_at_eos(model, monkeypatch):
    monkeypatch.setattr("titans.cli.generate._sample", lambda *arguments: 257)
    assert list(continue_text(model, BYTES, ["x"], max_new_tokens=5)) == []


def test_top_p_keeps_the_likeliest():
    logits = torch.tensor([0.5, 0.2, 0.3]).log()
    generator = torch.Generator().manual_seed(0)
    drawn = {p: {_sample(logits, 1.0, p, generator) for _ in range(200)} for p in (0.0, 0.5, 0.6, 0.81, 1.0)}
    assert drawn == {0.0: {0}, 0.5: {0}, 0.6: {0, 2}, 0.81: {0, 1, 2}, 1.0: {0, 1, 2}}
    assert _sample(logits, 0.0, 1.0, generator) == 0


def test_characters_are_printed_whole():
    text = "aé世\U0001f600b"
    writer = _Writer(BYTES, list(b"before"))
    parts = [part for byte in text.encode() for part in writer.add(byte)] + list(writer.flush())
    assert parts == list(text)


def test_broken_bytes_do_not_hold_text_back():
    writer = _Writer(BYTES, [])
    parts = [part for byte in b"\xff" * 9 + b"ok" for part in writer.add(byte)]
    assert "".join(parts) + "".join(writer.flush()) == "\ufffd" * 9 + "ok"


def test_tokens_with_leading_spaces_keep_them():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "s": 2}, unk_token="s"))
    core.decoder = decoders.Metaspace()  # drops the space of the first token, as Llama's does
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    writer = _Writer(tokenizer, [0])
    assert [part for token in (1, 2, 0) for part in writer.add(token)] == [" two", "s", " one"]


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
    assert "the prompt is not UTF-8 text" in titans("generate", model_folder, "--prompt", "a\udcff", status=2).stderr

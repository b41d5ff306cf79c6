"""Tokens become text as they come; stop strings end it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titans.data import byte_tokenizer
from titans.generation import StopFilter, TextWriter

BYTES = byte_tokenizer()


def test_characters_are_printed_whole():
    text = "aé世\U0001f600b"
    writer = TextWriter(BYTES, list(b"before"))
    parts = [writer.add(byte) for byte in text.encode()]
    assert [part for part in parts if part] == list(text)
    assert writer.flush() == ""


def test_broken_bytes_do_not_hold_text_back():
    writer = TextWriter(BYTES, [])
    parts = [writer.add(byte) for byte in b"\xff" * 9 + b"ok"]
    assert "".join(parts) + writer.flush() == "\ufffd" * 9 + "ok"


def test_tokens_with_leading_spaces_keep_them():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "s": 2}, unk_token="s"))
    core.decoder = decoders.Metaspace()  # drops the space of the first token, as Llama's does
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    writer = TextWriter(tokenizer, [0])
    assert [writer.add(token) for token in (1, 2, 0)] == [" two", "s", " one"]


@pytest.mark.parametrize(
    ("text", "stops", "passed"),
    [
        ("say stop now", ["stop"], "say "),
        ("a\n\nb", ["\n\n", "b"], "a"),
        ("st sto", ["stop"], "st sto"),
        ("x", [], "x"),
    ],
)
def test_text_ends_before_the_first_stop_string(text, stops, passed):
    stop = StopFilter(stops)
    assert "".join(stop.add(character) for character in text) + stop.flush() == passed


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_stop_strings_do_not_depend_on_how_the_text_comes(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    stop, passed = StopFilter(stops), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        passed += stop.add(text[start:end])
        if stop.stopped:
            break
    if not any(s in text for s in stops):
        assert not stop.stopped
        assert passed + stop.flush() == text
    else:
        assert stop.stopped
        assert passed in {text[: text.find(s)] for s in stops if s in text}

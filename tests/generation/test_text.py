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


class Grouped:
    """A tokenizer whose tokens are the given bytes, decoded together."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def decode(self, ids, skip_special_tokens=False):
        return b"".join(self.tokens[i] for i in ids).decode(errors="replace")

    def convert_ids_to_tokens(self, ids):
        return [self.tokens[i].decode("latin-1") for i in ids]


def by_bytes():
    """A tokenizer with a token for each byte, which shows all bytes in a row as broken where one of them is."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(vocab={f"<0x{i:02X}>": i for i in range(256)}, merges=[], byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # as Llama 2's
    return PreTrainedTokenizerFast(tokenizer_object=core)


def test_an_id_that_the_tokenizer_lacks_is_no_text():
    writer = TextWriter(BYTES, [*b"a", 100_000])
    assert "".join(map(writer.add, [100_000, *"é".encode()])) + writer.flush() == "é"


def test_only_what_belongs_to_the_unfinished_character_waits():
    writer = TextWriter(Grouped(b"\xc3", b"\xa9\xf0", b"\x9f", b"\x98", b"\x80"), [])
    assert [writer.add(token) for token in range(5)] == ["", "é", "", "", "\U0001f600"]
    assert writer.flush() == ""


def test_a_broken_byte_costs_no_other_character():
    writer = TextWriter(BYTES, [])
    assert "".join(map(writer.add, b"\xff\xff\xff\xe4\xb8\x96")) == "\ufffd\ufffd\ufffd世"


@given(st.text("aé世\ufffd\U0001f600 ", max_size=9), st.integers(0, 9))
@pytest.mark.parametrize("tokenizer", [BYTES, by_bytes()], ids=["byte level", "byte fallback"])
def test_a_replacement_character_in_the_text_is_a_character(tokenizer, text, cut):
    writer = TextWriter(tokenizer, list(text[:cut].encode()))
    assert "".join(map(writer.add, text[cut:].encode())) + writer.flush() == text[cut:]


@given(st.text("aé世\U0001f600 ", max_size=9), st.lists(st.integers(1, 3), min_size=40), st.integers(0, 40))
def test_any_tokens_become_the_text_at_once(text, lengths, before):
    bytes_left, tokens = text.encode(), []
    for length in lengths:
        tokens.append(bytes_left[:length])
        bytes_left = bytes_left[length:]
    tokenizer, before = Grouped(*tokens), min(before, len(tokens))
    writer, read = TextWriter(tokenizer, range(before)), b"".join(tokens[:before])
    known = len(read.decode(errors="ignore"))  # whole characters of the prompt
    for token in range(before, len(tokens)):
        read += tokens[token]
        known += len(new := writer.add(token))
        assert read.decode(errors="ignore")[:known].endswith(new)
        assert known == len(read.decode(errors="ignore"))
    assert writer.flush() == ""


@pytest.mark.parametrize("tokenizer", [BYTES, by_bytes()], ids=["byte level", "byte fallback"])
@pytest.mark.parametrize("cut", range(13))
def test_a_character_that_the_prompt_begins_is_kept(tokenizer, cut):
    text = "é世\U0001f600é!".encode()
    writer = TextWriter(tokenizer, list(text[:cut]))
    whole = len(text[:cut].decode(errors="ignore"))
    assert "".join(map(writer.add, text[cut:])) + writer.flush() == text.decode()[whole:]


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

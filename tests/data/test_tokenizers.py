"""The byte tokenizer keeps every text; encoding does not depend on how the text was read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from titans.data import byte_tokenizer, check_vocabulary, encode, load_tokenizer
from titans.data.tokenizers import largest_id
from titans.errors import TitansError

BYTES = byte_tokenizer()


@pytest.fixture(scope="module")
def subwords():
    """A small word-piece tokenizer without bos, as a stand-in for any other."""
    core = Tokenizer(models.BPE(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.train_from_iterator(["the cat sat on the mat"] * 9, trainers.BpeTrainer(special_tokens=["[UNK]", "[EOS]"]))
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", eos_token="[EOS]")


def ids_of(tokenizer, *blocks):
    return [i for ids in encode(tokenizer, blocks) for i in ids]


@given(st.text())
def test_bytes_round_trip(text):
    ids = ids_of(BYTES, text)
    assert bytes(ids).decode() == text
    assert BYTES.decode(ids) == text


@given(st.text())
def test_fast_path_is_the_tokenizer_itself(text):
    assert ids_of(BYTES, text) == BYTES(text, add_special_tokens=False)["input_ids"]


def test_text_that_spells_a_special_token_is_text():
    assert ids_of(BYTES, "<|eos|>") == list(b"<|eos|>")


def test_special_tokens_follow_the_bytes():
    assert (BYTES.bos_token_id, BYTES.eos_token_id, BYTES.pad_token_id, len(BYTES)) == (256, 257, 258, 259)


def test_save_and_load_without_remote_code(tmp_path):
    BYTES.save_pretrained(tmp_path)
    for loaded in (
        AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False),
        load_tokenizer(str(tmp_path)),
    ):
        text = "naïve\r\n\t世界 \U0001f600 <|bos|>"
        assert ids_of(loaded, text) == list(text.encode())
        assert loaded.decode(list(text.encode())) == text
        assert loaded.bos_token_id == 256


@pytest.mark.parametrize("newline", ["\n", ""])
def test_blocks_do_not_change_the_ids(newline, subwords):
    text = f"the cat sat on the mat {newline}" * 7000  # more than two blocks
    for tokenizer in (BYTES, subwords):
        whole = ids_of(tokenizer, text)
        assert ids_of(tokenizer, *(text[i : i + 997] for i in range(0, len(text), 997))) == whole
    assert bytes(ids_of(BYTES, text)).decode() == text


def test_blocks_end_at_a_line(subwords):
    text = "the cat sat on the mat\n" * 7000
    assert ids_of(subwords, text) == subwords(text, add_special_tokens=False)["input_ids"]
    assert len(list(encode(subwords, [text]))) > 2


def test_vocabulary_too_small_is_refused():
    check_vocabulary(BYTES, 259)
    with pytest.raises(
        TitansError,
        match=r"ids reach 258 but vocab_size is 258; .* model.vocab_size of at least 259",
    ):
        check_vocabulary(BYTES, 258)


def test_largest_id(subwords):
    assert largest_id(BYTES) == 258
    assert largest_id(subwords) == len(subwords) - 1


def test_unknown_tokenizer_is_one_sentence(tmp_path):
    with pytest.raises(TitansError, match="cannot load the tokenizer"):
        load_tokenizer(str(tmp_path / "missing"))
    with pytest.raises(TitansError, match="cannot load the tokenizer"):
        load_tokenizer(str(tmp_path))

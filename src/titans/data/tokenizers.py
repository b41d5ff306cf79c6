"""Tokenizers: bytes by default, any Hugging Face tokenizer by path or id; text to ids in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from titans.data.hub import local_or_hub
from titans.error_text import first_line
from titans.errors import TitansError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BYTES = "bytes"
"""The name of the built-in byte-level tokenizer."""

_BLOCK_CHARACTERS = 1 << 16


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """The byte-level tokenizer: token id = byte value, then bos 256, eos 257, pad 258.

    It is an ordinary Hugging Face tokenizer: `save_pretrained` and `AutoTokenizer.from_pretrained` work
    without remote code, and any UTF-8 text survives encoding and decoding, also text that spells a special
    token.

    Returns:
        A tokenizer of 259 tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(vocab=_byte_symbols(), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast  # untyped
    tokenizer: PreTrainedTokenizerBase = make(
        tokenizer_object=core,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )
    return tokenizer


def load_tokenizer(name: str = BYTES) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        name: "bytes" for the built-in byte-level tokenizer, a folder (a saved tokenizer or model), or a hub
            id.

    Returns:
        The tokenizer.

    Raises:
        TitansError: nothing that can be loaded goes by this name.
    """
    if name == BYTES:
        return byte_tokenizer()
    from transformers import AutoTokenizer

    try:
        with local_or_hub(name):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise TitansError(
            f'cannot load the tokenizer "{name}" ({first_line(error)}): expected "{BYTES}", a folder that holds a '
            "tokenizer, or the id of one on the Hugging Face hub"
        ) from error
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Refuse a tokenizer that can produce ids outside the model's vocabulary.

    Args:
        tokenizer: the tokenizer.
        vocab_size: rows of the model's embedding.

    Raises:
        TitansError: the tokenizer is larger than the vocabulary.
    """
    largest = largest_id(tokenizer)
    if largest >= vocab_size:
        raise TitansError(
            f"the tokenizer is larger than the model's vocabulary: its ids reach {largest} but vocab_size is "
            f"{vocab_size}; give the model its own tokenizer, or train a new one with model.vocab_size of at least "
            f"{largest + 1}"
        )


def largest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The largest token id that the tokenizer can produce."""
    return max(len(tokenizer) - 1, *tokenizer.get_vocab().values())


def encode(tokenizer: PreTrainedTokenizerBase, blocks: Iterable[str]) -> Iterator[list[int]]:
    """Turn text into token ids in constant memory, whatever the length of the text.

    Text is text: a special token that the text happens to spell is encoded as ordinary characters, and no bos
    or eos is added. Long text is encoded in blocks of about 65 thousand characters that end at a line's end
    where there is one; bytes give the same ids as one call, a subword tokenizer may differ at the joints of
    blocks.

    Args:
        tokenizer: the tokenizer.
        blocks: the text, in consecutive parts of any size.

    Yields:
        Consecutive lists of token ids, none empty.
    """
    for text in content_blocks(blocks):
        (ids,) = encode_batch(tokenizer, [text])
        if ids:
            yield ids


def encode_pieces(
    tokenizer: PreTrainedTokenizerBase, blocks: Iterable[str], length: int, overlap: int = 0
) -> Iterator[list[int]]:
    """Turn text into pieces of token ids of equal length, after the bos token where there is one.

    Args:
        tokenizer: the tokenizer.
        blocks: the text, in consecutive parts of any size.
        length: ids per piece; the last may be shorter.
        overlap: how many of its last ids the next piece starts with. Default 0.

    Yields:
        The pieces; none holds overlap alone, and where pieces overlap none is a single id.
    """
    pending = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    known = min(overlap, 1)  # what is left has nothing new to say
    for ids in encode(tokenizer, blocks):
        pending += ids
        start = 0
        while len(pending) - start >= length:
            yield pending[start : start + length]
            start += length - overlap
            known = overlap
        del pending[:start]
    if len(pending) > known:
        yield pending


def encode_batch(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Turn several texts into token ids, on all cores where the tokenizer can; see `encode`."""
    if _ids_are_bytes(tokenizer):  # a thousand times faster than the generic path, and the same ids
        return [list(text.encode()) for text in texts]
    ids: list[list[int]] = tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )["input_ids"]
    return ids


def content_blocks(parts: Iterable[str]) -> Iterator[str]:
    """Cut text into blocks of some 65 thousand characters, at lines' ends where there are some.

    Only the content decides where, so that the ids do not depend on the parts in which it was read.
    """
    rest = ""
    for part in parts:
        text, start = rest + part, 0
        while len(text) - start > _BLOCK_CHARACTERS:
            cut = text.rfind("\n", start, start + _BLOCK_CHARACTERS) + 1 or start + _BLOCK_CHARACTERS
            yield text[start:cut]
            start = cut
        rest = text[start:]
    if rest:
        yield rest


def _ids_are_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    if len(tokenizer) > 512:  # spares building a large vocabulary
        return False
    vocabulary, symbols = tokenizer.get_vocab(), _byte_symbols()
    ordinary = set(vocabulary.values()) - set(tokenizer.all_special_ids)
    return ordinary == set(range(256)) and symbols.items() <= vocabulary.items()


def _byte_symbols() -> dict[str, int]:
    """The printable character that `ByteLevel` writes for each byte, mapped to the byte's value."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    symbols: dict[str, int] = {}
    shifted = 256
    for byte in range(256):
        if byte in printable:
            symbols[chr(byte)] = byte
        else:
            symbols[chr(shifted)] = byte
            shifted += 1
    return symbols

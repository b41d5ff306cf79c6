"""Token ids on disk, memory-mapped: a corpus is tokenized once and then addressed anywhere at no cost."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from titans.data.corpora import Document, Source, documents, local_files
from titans.data.tokenizers import content_blocks, encode_batch, largest_id
from titans.errors import TitansError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_BATCH_CHARACTERS = 1 << 22


class IndexedDataset:
    """The token ids of a list of documents, one after the other.

    Args:
        tokens: all ids `[total]`, any unsigned integer type; may be a memory map.
        offsets: where each document starts and the last one ends `[D + 1]`, int64.
    """

    def __init__(self, tokens: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> None:
        self.tokens = tokens
        self.offsets = offsets

    @classmethod
    def from_lists(cls, token_ids: Sequence[Sequence[int]]) -> IndexedDataset:
        """Hold documents of token ids in memory."""
        offsets = np.cumsum([0, *map(len, token_ids)], dtype=np.int64)
        return cls(np.array([i for ids in token_ids for i in ids], dtype=np.uint32), offsets)

    @classmethod
    def open(cls, folder: Path) -> IndexedDataset:
        """Map what `build_indexed_dataset` wrote."""
        dtype = json.loads((folder / "meta.json").read_text())["dtype"]
        tokens = np.memmap(folder / "tokens.bin", dtype=dtype, mode="r")
        return cls(tokens, np.load(folder / "offsets.npy", allow_pickle=False))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document `[D]`."""
        return np.diff(self.offsets)

    def read(self, document: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Copy the ids `start` to `stop` (exclusive, cut at the document's end) of one document."""
        begin, end = self.offsets[document], self.offsets[document + 1]
        return np.asarray(self.tokens[begin + start : min(begin + stop, end)], dtype=np.int64)


def build_indexed_dataset(
    folder: Path,
    sources: Sequence[Source],
    tokenizer: PreTrainedTokenizerBase,
    *,
    text_field: str = "text",
    max_tokens: int | None = None,
    replace: bool = True,
) -> IndexedDataset:
    """Tokenize documents into a folder in constant memory, or reuse what an equal earlier call left.

    A document becomes its bos token, its text and its eos token, the first and the last where the tokenizer
    has them. The folder appears only when it is complete.

    Args:
        folder: where to keep the ids.
        sources: what `documents` reads.
        tokenizer: makes the ids.
        text_field: see `documents`.
        max_tokens: stop after the document that reaches this number of tokens. Default: read everything.
        replace: make them anew if the folder holds those of other data or another tokenizer; False
            refuses. Default true.

    Returns:
        The ids, memory-mapped.

    Raises:
        TitansError: the data is unreadable, not UTF-8, empty, or not what the folder was made from.
    """
    key, existing = _fingerprint(sources, tokenizer, text_field, max_tokens), _key_of(folder)
    if existing == key:
        return IndexedDataset.open(folder)
    if existing is not None and not replace:
        raise TitansError(
            f"the data or the tokenizer changed since {folder} was made, and training cannot go on with "
            "other data: restore the data, or choose another training.output_dir"
        )
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of an earlier call that was killed
    unfinished.mkdir(parents=True)
    try:
        read = documents(sources, text_field=text_field)
        dtype = _write_tokens(unfinished, read, tokenizer, max_tokens)
        (unfinished / "meta.json").write_text(json.dumps({"key": key, "dtype": dtype}))
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return IndexedDataset.open(folder)


def _write_tokens(
    folder: Path,
    read: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int | None,
) -> str:
    """Write tokens.bin and offsets.npy; returns the type of the tokens."""
    dtype = "uint16" if largest_id(tokenizer) < 1 << 16 else "uint32"
    offsets, total = [0], 0
    with (folder / "tokens.bin").open("wb") as file:
        for ids, last in _encoded(read, tokenizer):
            file.write(np.array(ids, dtype=dtype).tobytes())
            total += len(ids)
            if last:
                offsets.append(total)
                if max_tokens is not None and total >= max_tokens:
                    break
    np.save(folder / "offsets.npy", np.array(offsets, dtype=np.int64))
    return dtype


def _encoded(read: Iterable[Document], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[list[int], bool]]:
    """Yield consecutive token ids, and whether they end a document."""
    bos, eos = ([] if i is None else [i] for i in (tokenizer.bos_token_id, tokenizer.eos_token_id))
    for batch in _batches(read):
        encoded = encode_batch(tokenizer, [text for text, _, _ in batch])
        for ids, (_, first, last) in zip(encoded, batch, strict=True):
            yield [*(bos if first else []), *ids, *(eos if last else [])], last


def _batches(read: Iterable[Document]) -> Iterator[list[tuple[str, bool, bool]]]:
    """Gather blocks to be encoded together, each with whether it is the first and the last of its document."""
    batch, size = [], 0
    for document in read:
        for entry in _marked(content_blocks(document.blocks())):
            batch.append(entry)
            size += len(entry[0])
            if size > _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _marked(blocks: Iterable[str]) -> Iterator[tuple[str, bool, bool]]:
    first, held = True, None
    for block in blocks:
        if held is not None:
            yield held, first, False
            first = False
        held = block
    if held is not None:
        yield held, first, True


def _key_of(folder: Path) -> str | None:
    try:
        key: str = json.loads((folder / "meta.json").read_text())["key"]
    except (OSError, ValueError, KeyError):
        return None
    return key


def _fingerprint(
    sources: Sequence[Source], tokenizer: PreTrainedTokenizerBase, text_field: str, max_tokens: int | None
) -> str:
    """Hash what decides the ids: the sources, the state of every local file, and the tokenizer."""
    files: list[object] = []
    for source in sources:
        found = local_files(source)
        if found is None:
            files.append(repr(source))
            continue
        try:
            files += [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found]
        except OSError as error:
            raise TitansError(f"cannot read {error.filename}: {error.strerror}") from error
    vocabulary = sorted(tokenizer.get_vocab().items())
    special = [tokenizer.bos_token_id, tokenizer.eos_token_id]
    described = json.dumps([files, vocabulary, special, type(tokenizer).__name__, text_field, max_tokens])
    return hashlib.sha256(described.encode()).hexdigest()

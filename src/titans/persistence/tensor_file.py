"""Safetensors files that say what they hold, and in which version, and whose checksum covers all that is in them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from titans.persistence.errors import StateFileError
from titans.persistence.fingerprint import tensors_digest

REMEDY = "use a copy that is whole, or start anew"
_FIRST = 1 << 16  # bytes that hold the header of most files
_MAX_HEADER = 1 << 23  # bytes; a state of a thousand layers needs a fifth

Read = Callable[[int, int], bytes]


@dataclasses.dataclass(frozen=True)
class TensorFile:
    """A kind of file: tensors by name, and texts about them.

    Args:
        kind: what a file of this kind is called in messages.
        format: its mark in the file.
        version: of what is written into it; files of others are refused.
    """

    kind: str
    format: str
    version: str

    def dump(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
        """Return the content of a file; the tensors are contiguous, on the CPU, and share no memory."""
        texts = {"format": self.format, "version": self.version, **metadata}
        return safetensors.torch.save(dict(tensors), {**texts, "checksum": _checksum(tensors, texts)})

    def load(self, data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Read the content of a file, from anywhere: nothing in it is run or trusted.

        Args:
            data: the content.

        Returns:
            The tensors, and the texts about them.

        Raises:
            StateFileError: the content is damaged, or that of another kind or version.
        """
        metadata = self.read_metadata(lambda start, end: data[start:end], len(data))
        try:
            tensors = safetensors.torch.load(data)
        except (SafetensorError, ValueError) as error:
            raise self.damaged(error) from error
        if metadata.pop("checksum", None) != _checksum(tensors, metadata):
            raise self.damaged("its checksum is wrong")
        return tensors, {name: text for name, text in metadata.items() if name not in ("format", "version")}

    def read_metadata(self, read: Read, size: int) -> dict[str, str]:
        """Read the texts without the tensors: a length in 8 bytes, then JSON.

        Args:
            read: returns the bytes from one place of the file to another, fewer where it ends.
            size: of the file, in bytes.

        Returns:
            The texts, whose checksum has not been checked.

        Raises:
            StateFileError: there are none, they are of another kind or version, or the file has another size than
                they say.
        """
        start = read(0, _FIRST)
        end = 8 + int.from_bytes(start[:8], "little")
        try:
            if end > _MAX_HEADER:
                raise ValueError("its header is too long")
            text = start[8:end] if end <= len(start) else read(8, end)
            tensors = json.loads(text.decode())
            metadata: dict[str, str] = tensors.pop("__metadata__")
            whole = end + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            if whole != size:
                raise ValueError(f"it has {size:,} bytes and not {whole:,}")
            if metadata.get("format") != self.format or not all(isinstance(x, str) for x in metadata.values()):
                raise ValueError(f"its format is {metadata.get('format')!r}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StateFileError(f"this is no {self.kind}, or a damaged one ({error}): {REMEDY}") from error
        if metadata.get("version") != self.version:
            raise StateFileError(
                f"the {self.kind} has version {metadata.get('version')!r} and this is Titans for version "
                f"{self.version}: use the Titans that wrote it"
            )
        return metadata

    def damaged(self, reason: object) -> StateFileError:
        """Say that a file is damaged."""
        return StateFileError(f"the {self.kind} is damaged ({reason}): {REMEDY}")


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    return tensors_digest(tensors, json.dumps(metadata, sort_keys=True))

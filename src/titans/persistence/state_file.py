"""State files: one safetensors file holds one state, and says to which model it belongs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from titans.errors import TitansError
from titans.io import atomic
from titans.models.memory_state import MemoryState
from titans.models.provenance import Provenance
from titans.persistence.errors import FingerprintError, StateFileError
from titans.persistence.fingerprint import base, differences, fingerprint, is_of, relevant_config, tensors_digest
from titans.persistence.tree import flatten, unflatten

FORMAT, VERSION = "titans-memory-state", "1"
_FIRST = 1 << 16  # bytes that hold the header of most state files
_MAX_HEADER = 1 << 23  # bytes; a state of a thousand layers needs a fifth
_REMEDY = "use a copy that is whole, or start a new memory"

Read = Callable[[int, int], bytes]


@dataclasses.dataclass(frozen=True)
class Header:
    """What a state file says about itself.

    Args:
        fingerprint: of the model that made the state.
        config: the fields of its configuration that matter to a state; defaults may be left out.
        variant: its variant.
        tokens: positions read; of several rows, the most.
        created: when the first state of this memory was saved, ISO 8601 in UTC.
        updated: when this one was.
    """

    fingerprint: str
    config: dict[str, Any]
    variant: str
    tokens: int
    created: str
    updated: str

    def is_of(self, model: Any) -> bool:
        """Tell whether a model made the state."""
        return is_of(self.fingerprint, self.config, model)


def save(state: MemoryState, path: str | os.PathLike[str]) -> None:
    """Write a state file; see `MemoryState.save`."""
    path = Path(path)
    model = None if state.provenance is None else state.provenance.model()
    if model is None:
        raise TitansError(
            "this state cannot be saved because its model is gone or unknown: "
            "keep the model, and save a state that it handed out in this process"
        )
    try:
        created = read_header(partial(atomic.read, path), path.stat().st_size).created
    except (OSError, StateFileError):
        created = None  # nothing there, or nothing that says since when
    atomic.write(path, dump(state, model, created=created), atomic.PRIVATE)


def load(path: str | os.PathLike[str], model: Any, *, force: bool = False) -> MemoryState:
    """Read a state file; see `MemoryState.load`."""
    try:
        data = atomic.read(Path(path))
    except OSError as error:
        raise StateFileError(f"cannot read the state file {path} ({error.strerror}): is the path right?") from error
    try:
        return parse(data, model, force=force)[0]
    except StateFileError as error:
        raise StateFileError(f"{path}: {error}") from error
    except FingerprintError as error:
        raise FingerprintError(f"{path}: {error}, or pass force=True to use the state all the same") from error


def dump(state: MemoryState, model: Any, *, created: str | None = None) -> bytes:
    """Write a state as the content of a state file.

    Args:
        state: the state, on any device.
        model: the model that made it, of which a state whose provenance is not known is taken to be.
        created: when the first state of this memory was saved. Default: now.

    Returns:
        The content, which `parse` reads.

    Raises:
        TitansError: the model did not make the state, or its weights have changed since.
        StateFileError: the state holds what no state of this model does, such as NaN.
    """
    inner: Any = base(model)
    _check_provenance(state.provenance, inner)
    entries = dict(flatten(state))
    try:
        unflatten(entries, inner)  # what cannot be read back is not written
    except StateFileError as error:
        raise StateFileError(f"this state cannot be saved, because {error}: save an earlier state") from error
    tensors = {
        name: x.detach().cpu().clone(memory_format=torch.contiguous_format)  # of its own: rows may share memory
        for name, x in entries.items()
        if isinstance(x, Tensor)
    }
    now = datetime.now(UTC).isoformat(timespec="seconds")
    tokens = entries["tokens"]
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fingerprint(model),
        "config": json.dumps(relevant_config(model)),
        "variant": inner.config.variant,
        "tokens": str(int(tokens.max()) if isinstance(tokens, Tensor) else tokens),
        "integers": json.dumps({name: x for name, x in entries.items() if not isinstance(x, Tensor)}),
        "created": created or now,
        "updated": now,
    }
    return safetensors.torch.save(tensors, {**metadata, "checksum": _checksum(tensors, metadata)})


def parse(data: bytes, model: Any, *, force: bool = False) -> tuple[MemoryState, Header]:
    """Read the content of a state file, from anywhere: nothing in it is run or trusted.

    Args:
        data: the content.
        model: the model that made the state.
        force: take a state of other weights or another configuration, as far as the shapes allow.

    Returns:
        The state, on the model's device, and the file's header.

    Raises:
        FingerprintError: the state belongs to another model.
        StateFileError: the content is damaged, not a state, or does not fit the model.
    """
    header, tensors, integers = _whole(data)
    if not force:
        _check_fingerprint(header, model)
    inner: Any = base(model)
    try:
        state = unflatten({**integers, **tensors}, inner, cast=force)
    except StateFileError as error:
        raise StateFileError(
            f"the state does not fit this model, because {error}: load the model that made it, or start a new memory"
        ) from error
    state = dataclasses.replace(state.to(inner.device), provenance=Provenance.of(inner))
    return state, header


def check(data: bytes) -> Header:
    """Refuse content that is no state file, or a damaged one, whatever model it belongs to.

    Args:
        data: the content.

    Returns:
        The file's header.

    Raises:
        StateFileError: it is that.
    """
    return _whole(data)[0]


def read_header(read: Read, size: int) -> Header:
    """Read what a state file says about itself, without its tensors and without checking its checksum.

    Args:
        read: returns the bytes from one place of the file to another, fewer where it ends.
        size: of the file, in bytes.

    Returns:
        Its header.

    Raises:
        StateFileError: it has none, or the file is shorter or longer than that says.
    """
    return _header(_metadata(read, size))


def _whole(data: bytes) -> tuple[Header, dict[str, Tensor], dict[str, int]]:
    """Read the content of a state file as far as that needs no model."""
    metadata = _metadata(lambda start, end: data[start:end], len(data))
    header = _header(metadata)
    try:
        tensors = safetensors.torch.load(data)
        integers = json.loads(metadata["integers"])
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise StateFileError(f"the state file is damaged ({error}): {_REMEDY}") from error
    checksum = metadata.pop("checksum", None)
    if checksum != _checksum(tensors, metadata):
        raise StateFileError(f"the state file is damaged (its checksum is wrong): {_REMEDY}")
    if not isinstance(integers, dict) or any(type(x) is not int for x in integers.values()):
        raise StateFileError(f"the state file is damaged (its integers are none): {_REMEDY}")
    return header, tensors, integers


def _metadata(read: Read, size: int) -> dict[str, str]:
    """Read the text part of a safetensors file, its length in 8 bytes, then JSON, and see that the rest is there."""
    start = read(0, _FIRST)
    end = 8 + int.from_bytes(start[:8], "little")
    try:
        if end > _MAX_HEADER:
            raise ValueError("its header is too long")
        text = start[8:end] if end <= len(start) else read(8, end)
        tensors = json.loads(text.decode())
        metadata = tensors.pop("__metadata__")
        whole = end + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        if whole != size:
            raise ValueError(f"it has {size:,} bytes and not {whole:,}")
        if metadata.get("format") != FORMAT or not all(isinstance(x, str) for x in metadata.values()):
            raise ValueError("it has no such header")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateFileError(f"this is no state file, or a damaged one ({error}): {_REMEDY}") from error
    if metadata.get("version") != VERSION:
        raise StateFileError(
            f"the state file has version {metadata.get('version')!r} and this is Titans for version {VERSION}: "
            "use the Titans that wrote it"
        )
    return dict(metadata)


def _header(metadata: Mapping[str, str]) -> Header:
    try:
        config, times = json.loads(metadata["config"]), [metadata["created"], metadata["updated"]]
        if not isinstance(config, dict) or any(datetime.fromisoformat(time).tzinfo is None for time in times):
            raise ValueError("a field has the wrong type")
        return Header(metadata["fingerprint"], config, metadata["variant"], int(metadata["tokens"]), *times)
    except (ValueError, KeyError, RecursionError) as error:
        raise StateFileError(f"the header of the state file is damaged ({error}): {_REMEDY}") from error


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    return tensors_digest(tensors, json.dumps(metadata, sort_keys=True))


def _check_provenance(provenance: Provenance | None, model: Any) -> None:
    if provenance is None:
        return
    if provenance.model() is not model:
        raise TitansError("this state was made by another model: save it with the model that made it")
    if provenance.is_stale():
        raise TitansError(
            "the model's weights have changed since this state's stream began, so that no weights belong to it: "
            "start a new stream and save that"
        )


def _check_fingerprint(header: Header, model: Any) -> None:
    if header.is_of(model):
        return
    fields = differences(header.config, model)
    what = f"another configuration ({', '.join(fields)})" if fields else "other weights"
    raise FingerprintError(
        f"the state belongs to a model of {what}, with the fingerprint {header.fingerprint}, and this model's is "
        f"{fingerprint(model)}: load the model that made the state"
    )

"""State files: one safetensors file holds one state, and says to which model it belongs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from titans.errors import TitansError
from titans.io import atomic
from titans.models.memory_state import MemoryState
from titans.models.provenance import Provenance
from titans.persistence.errors import FingerprintError, StateFileError
from titans.persistence.fingerprint import base, differences, fingerprint, relevant_config
from titans.persistence.tensor_file import Read, TensorFile
from titans.persistence.tree import flatten, unflatten

STATE_FILE = TensorFile("state file", "titans-memory-state", "2")


@dataclasses.dataclass(frozen=True)
class Header:
    """What a state file says about itself.

    Args:
        fingerprint: of the model that made the state.
        config: the fields of its configuration that matter to a state, without defaults.
        variant: its variant, or its mixers in words.
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


def save_state(state: MemoryState, path: str | os.PathLike[str]) -> None:
    """Write a state to one safetensors file that `load_state` reads; a crash leaves the old file or the new one.

    Args:
        state: the state, as a model handed it out in this process.
        path: the file; its folder exists. The time of creation in a file that is replaced is kept.

    Raises:
        TitansError: the model that made the state is not known, or its weights have changed since.
    """
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


def load_state(path: str | os.PathLike[str], model: nn.Module, *, force: bool = False) -> MemoryState:
    """Read a state that `save_state` wrote.

    Args:
        path: the file.
        model: the model that made it: the same weights and configuration.
        force: take a state of other weights or another configuration, as far as the shapes allow.

    Returns:
        The state, on the model's device.

    Raises:
        FingerprintError: the state belongs to another model.
        StateFileError: the file is damaged, not a state, or does not fit the model.
    """
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
    tensors, integers = take_apart(state, model)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    metadata = {
        "fingerprint": fingerprint(model),
        "config": json.dumps(relevant_config(model)),
        "variant": base(model).config.kind,
        "tokens": str(int(tensors["tokens"].max()) if "tokens" in tensors else integers["tokens"]),
        "integers": json.dumps(integers),
        "created": created or now,
        "updated": now,
    }
    return STATE_FILE.dump(tensors, metadata)


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
    tensors, metadata = STATE_FILE.load(data)
    header = _header(metadata)
    if not force:
        _check_fingerprint(header, model)
    return put_together(tensors, metadata.get("integers", ""), model, force=force), header


def check(data: bytes) -> Header:
    """Refuse content that is no state file, or a damaged one, whatever model it belongs to; returns its header.

    Raises:
        StateFileError: it is that.
    """
    return _header(STATE_FILE.load(data)[1])


def read_header(read: Read, size: int) -> Header:
    """Read what a state file says about itself, without its tensors; see `TensorFile.read_metadata`."""
    return _header(STATE_FILE.read_metadata(read, size))


def take_apart(state: MemoryState, model: Any) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Name the tensors and integers of a state that a model made, in this process and with the weights that it has.

    Args:
        state: the state, on any device.
        model: the model.

    Returns:
        The tensors, on the CPU and each in memory of its own, and the integers; what `put_together` takes.

    Raises:
        TitansError: the model did not make the state, or its weights have changed since.
        StateFileError: the state holds what no state of this model does, such as NaN.
    """
    inner = base(model)
    _check_provenance(state.provenance, inner)
    entries = dict(flatten(state))
    try:
        unflatten(entries, inner)  # what cannot be read back is not written
    except StateFileError as error:
        raise StateFileError(f"this state cannot be saved, because {error}: save an earlier state") from error
    return split(entries)


def split(entries: Mapping[str, Tensor | int]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Divide the entries of a state into tensors, on the CPU and each in memory of its own, and integers."""
    tensors = {
        name: x.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, x in entries.items()
        if isinstance(x, Tensor)
    }
    return tensors, {name: x for name, x in entries.items() if not isinstance(x, Tensor)}


def put_together(tensors: Mapping[str, Tensor], integers: str, model: Any, *, force: bool = False) -> MemoryState:
    """Make a state of what `take_apart` made of one, its integers as JSON; neither needs to be trusted.

    Raises:
        StateFileError: they are not what a state of this model holds.
    """
    try:
        numbers = json.loads(integers)
    except (ValueError, RecursionError) as error:
        raise STATE_FILE.damaged(error) from error
    if not isinstance(numbers, dict) or any(type(x) is not int for x in numbers.values()):
        raise STATE_FILE.damaged("its integers are none")
    inner = base(model)
    try:
        state = unflatten({**numbers, **tensors}, inner, cast=force)
    except StateFileError as error:
        raise StateFileError(
            f"the state does not fit this model, because {error}: load the model that made it, or start a new memory"
        ) from error
    return dataclasses.replace(state.to(inner.device), provenance=Provenance.of(inner))


def _header(metadata: Mapping[str, str]) -> Header:
    try:
        config, times = json.loads(metadata["config"]), [metadata["created"], metadata["updated"]]
        if not isinstance(config, dict) or any(datetime.fromisoformat(time).tzinfo is None for time in times):
            raise ValueError("a field has the wrong type")
        return Header(metadata["fingerprint"], config, metadata["variant"], int(metadata["tokens"]), *times)
    except (ValueError, KeyError, RecursionError) as error:
        raise STATE_FILE.damaged(f"its header: {error}") from error


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
    if header.fingerprint == fingerprint(model):
        return
    fields = differences(header.config, model)
    what = f"another configuration ({', '.join(fields)})" if fields else "other weights"
    raise FingerprintError(
        f"the state belongs to a model of {what}, with the fingerprint {header.fingerprint}, and this model's is "
        f"{fingerprint(model)}: load the model that made the state"
    )

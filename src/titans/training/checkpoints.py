"""Checkpoints that show whether they are whole, and the memory state inside them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titans.errors import TitansError
from titans.io import atomic
from titans.models.memory_state import MemoryState
from titans.persistence import StateFileError
from titans.persistence.state_file import put_together, split
from titans.persistence.tensor_file import TensorFile
from titans.persistence.tree import flatten

_CARRIED = TensorFile("state of a training", "titans-training-state", "1")
_MANIFEST = "complete.json"
_ORDER = "data_order.json"
ELSEWHERE = "choose another training.output_dir, or delete this one to start anew"


def seal(checkpoint: Path) -> None:
    """Force a finished checkpoint to disk, then write the manifest that marks it as whole.

    Args:
        checkpoint: the folder, with everything in it.
    """
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name != _MANIFEST]
    for path in files:
        atomic.sync(path)
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
    for folder in (path for path in checkpoint.rglob("*") if path.is_dir()):
        atomic.sync_folder(folder)
    atomic.write(checkpoint / _MANIFEST, json.dumps(sizes, indent=1).encode())
    atomic.sync_folder(checkpoint.parent)


def unseal(checkpoint: Path) -> None:
    """Take back the mark of a checkpoint that is about to be written again."""
    (checkpoint / _MANIFEST).unlink(missing_ok=True)


def last_intact_checkpoint(output_dir: Path) -> Path | None:
    """Find where training can go on, skipping what a crash left torn.

    Args:
        output_dir: the folder that holds `checkpoint-STEP` folders.

    Returns:
        The whole checkpoint of the largest step, or None.
    """
    found = [(int(match[1]), path) for path in output_dir.glob("checkpoint-*") if (match := _STEP.fullmatch(path.name))]
    return next((path for _, path in sorted(found, reverse=True) if _is_intact(path)), None)


def save_order(checkpoint: Path, order: Mapping[str, Any]) -> None:
    """Write what decides which pieces each step reads.

    Args:
        checkpoint: the folder.
        order: numbers by name.
    """
    (checkpoint / _ORDER).write_text(json.dumps(order, indent=1))


def check_order(checkpoint: Path, order: Mapping[str, Any]) -> None:
    """Refuse to go on where steps would read other pieces than the checkpoint's training: some twice, others never.

    Args:
        checkpoint: the folder.
        order: of the training that is to go on.

    Raises:
        TitansError: the order is another one, or not known, as of checkpoints of older versions.
    """
    path = checkpoint / _ORDER
    if not path.exists():
        raise TitansError(f"{checkpoint} does not say in which order it read its data: {ELSEWHERE}")
    before = json.loads(path.read_text())
    for name, value in before.items():
        if order.get(name) != value:
            raise TitansError(
                f"{checkpoint} read its data in another order ({name} was {value}, now it is {order.get(name)}) and "
                f"cannot be resumed: set it as it was, or {ELSEWHERE}"
            )


def state_path(checkpoint: Path, process: int) -> Path:
    """Return where a checkpoint holds the memory state of a process, counted from 0."""
    return checkpoint / f"memory_state_{process}.safetensors"


def save_carried_state(path: Path, state: MemoryState) -> None:
    """Write the state that a training carries from step to step, of weights that change meanwhile.

    Args:
        path: the file.
        state: the state.
    """
    tensors, integers = split(dict(flatten(state)))
    atomic.write(path, _CARRIED.dump(tensors, {"integers": json.dumps(integers)}))


def load_carried_state(path: Path, model: Any, rows: int) -> MemoryState:
    """Read a state that `save_carried_state` wrote.

    Args:
        path: the file.
        model: the language model that the state belongs to.
        rows: of its batches.

    Returns:
        The state, on the model's device.

    Raises:
        TitansError: the file is damaged or belongs to a state of other shapes.
    """
    try:
        tensors, metadata = _CARRIED.load(path.read_bytes())
        state = put_together(tensors, metadata.get("integers", ""), model)
    except StateFileError as error:
        raise TitansError(f"the memory state {path} does not belong to this model or is damaged ({error})") from error
    if any(len(x) != rows for x in state.tensors()):
        raise TitansError(f"the memory state {path} is not one of {rows} rows, as batches have now")
    return state


_STEP = re.compile(r"checkpoint-(\d+)")


def _is_intact(checkpoint: Path) -> bool:
    try:
        sizes = json.loads((checkpoint / _MANIFEST).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False

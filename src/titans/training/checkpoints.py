"""Checkpoints that show whether they are whole, and the memory state inside them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils import _pytree as pytree

from titans.errors import TitansError
from titans.io import atomic
from titans.ops.state import State, level

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
        checkpoint: the folder; of one that an older version wrote, only the number of processes is known.
        order: of the training that is to go on.

    Raises:
        TitansError: the order is another one.
    """
    path = checkpoint / _ORDER
    before = json.loads(path.read_text()) if path.exists() else {"processes": _processes(checkpoint)}
    for name, value in before.items():
        if order.get(name) != value:
            raise TitansError(
                f"{checkpoint} read its data in another order ({name} was {value}, now it is {order.get(name)}) and "
                f"cannot be resumed: set it as it was, or {ELSEWHERE}"
            )


def save_state(path: Path, state: State) -> None:
    """Write a state as safetensors: tensors by their place in the tree, integers in the metadata.

    Args:
        path: the file.
        state: the state.
    """
    leaves = dict(enumerate(pytree.tree_leaves(state)))
    tensors = {
        str(i): leaf.detach().clone().contiguous() for i, leaf in leaves.items() if isinstance(leaf, torch.Tensor)
    }
    rest = {str(i): leaf for i, leaf in leaves.items() if not isinstance(leaf, torch.Tensor)}
    save_file(tensors, path, metadata={"rest": json.dumps(rest)})


def load_state(path: Path, like: State, device: torch.device) -> State:
    """Read a state that `save_state` wrote.

    Args:
        path: the file.
        like: a state of the same model and number of rows.
        device: where the tensors go.

    Returns:
        The state.

    Raises:
        TitansError: the file is damaged or belongs to a state of other shapes.
    """
    expected, spec = pytree.tree_flatten(like)
    leaves: list[Any] = [None] * len(expected)
    try:
        with safe_open(path, framework="pt") as file:  # on the CPU: safetensors does not know every device's name
            for i, leaf in json.loads(file.metadata()["rest"]).items():
                leaves[int(i)] = leaf
            for key in file.keys():  # noqa: SIM118 - not a mapping
                leaves[int(key)] = file.get_tensor(key)
    except (SafetensorError, IndexError, KeyError, ValueError) as error:
        raise TitansError(f"the memory state {path} does not belong to this model or is damaged ({error})") from error
    state: State = pytree.tree_unflatten(leaves, spec).to(device)
    for leaf, other in zip(*(pytree.tree_leaves(x) for x in level([state, like])), strict=True):
        if isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor) and leaf.shape != other.shape:
            raise TitansError(
                f"the memory state {path} holds a tensor {tuple(leaf.shape)} where this model and batch size "
                f"need {tuple(other.shape)}"
            )
    return state


def _processes(checkpoint: Path) -> int:
    """Count the processes that wrote a checkpoint: several write random numbers each, and each a carried memory."""
    return max(1, *(len(list(checkpoint.glob(f"{name}_*"))) for name in ("rng_state", "memory_state")))


_STEP = re.compile(r"checkpoint-(\d+)")


def _is_intact(checkpoint: Path) -> bool:
    try:
        sizes = json.loads((checkpoint / _MANIFEST).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False

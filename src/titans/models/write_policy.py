"""Write policies: which tokens a model's memories take in, chosen at inference (docs/semantics.md, section 6)."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from titans.errors import TitansError
from titans.io import atomic
from titans.layers.neural_memory import NeuralMemoryState
from titans.layers.writing import WriteState
from titans.models.memory_state import MemoryState

FILE = "write_policy.json"
WRITE = ("always", "gated", "never")
RULE = {"always": -math.inf, "never": math.inf}  # the threshold under which every token is written, or none


@dataclasses.dataclass(frozen=True)
class WritePolicy:
    """When the memories of a model write: always, never, or only what surprises.

    Per memory layer and row, with `g_t` the norm of the token's gradient (the mean over heads): a token with
    `(g_t - mean) / deviation > largest_z` is dropped, where mean and deviation follow the stream; for the others
    `s_t = beta s_{t-1} + (1 - beta) g_t`, and a token is written where `s_t > threshold`, else skipped. A written token
    also forgets a share `decay a_t` of the memory, `a_t = beta a_{t-1} + [written]`.

    Args:
        write: "always", "gated" or "never".
        threshold: of each memory layer, in order; needed for "gated" only, as are mean and deviation.
        mean: of each layer's gradient norm, where a stream starts.
        deviation: its standard deviation.
        smoothing: beta, in [0, 1). Default 0.9.
        largest_z: above 0; inf drops nothing. Default 3.
        decay: lambda, at least 0 and at most 1 - beta. Default 1e-5.

    Raises:
        TitansError: a value is out of range, or the layers' values are not equally many.
    """

    write: str = "gated"
    threshold: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    smoothing: float = 0.9
    largest_z: float = 3.0
    decay: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse what cannot be followed; sequences of numbers become tuples."""
        if self.write not in WRITE:
            raise TitansError(f"write={self.write!r} is unknown: choose one of {', '.join(WRITE)}")
        for name in ("threshold", "mean", "deviation"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(_is_number(x) and math.isfinite(x) for x in value):
                raise TitansError(f"{name}={value!r} must hold one finite number per memory layer")
            object.__setattr__(self, name, tuple(float(x) for x in value))
        if not len(self.threshold) == len(self.mean) == len(self.deviation):
            raise TitansError(
                f"{len(self.threshold)} thresholds, {len(self.mean)} means and {len(self.deviation)} deviations: "
                "expected one of each per memory layer"
            )
        for name in ("smoothing", "largest_z", "decay"):
            if not _is_number(getattr(self, name)):
                raise TitansError(f"{name}={getattr(self, name)!r} must be a number")
        try:
            self._numbers().check()
        except ValueError as error:
            raise TitansError(str(error)) from error

    def start(self, state: MemoryState) -> MemoryState:
        """Have the streams of a state follow this policy from here on.

        A stream starts at the mean surprise, so that its first tokens are judged by what they are. One that followed a
        gated policy before keeps its smoothed surprise and activity; every one keeps its counters.

        Args:
            state: of a model with as many memory layers as the policy has values; not modified. A state without
                memory layers is returned as it is.

        Returns:
            The state to go on from.

        Raises:
            TitansError: the policy was made for another number of memory layers.
        """
        layers = len(_memories(state))
        if self.write == "gated" and layers not in (0, len(self.threshold)):
            raise TitansError(
                f"the write policy is for {len(self.threshold)} memory layers and the model has {layers}: "
                "run titans calibrate on this model"
            )
        number = iter(range(layers))

        def follow(part: object) -> object:
            if not isinstance(part, NeuralMemoryState):
                return part
            return dataclasses.replace(part, writing=self._follow(next(number), part))

        started: MemoryState = pytree.tree_map(follow, state, is_leaf=lambda x: isinstance(x, NeuralMemoryState))
        return started

    def _numbers(self) -> WriteState:
        """Write the policy's numbers as the state of a stream that has read nothing, whose ranges are known."""
        numbers = {
            field.name: torch.tensor(getattr(self, field.name, 0), dtype=torch.float64, device="cpu").view(-1)
            for field in dataclasses.fields(WriteState)
        }
        return WriteState(**numbers)

    def _follow(self, layer: int, state: NeuralMemoryState) -> WriteState:
        """Make the write state of one memory layer, with what counts on from the state it is in."""
        like = state.memory.weights[0][:, 0, 0, 0].detach()  # [B]
        gated, none = self.write == "gated", torch.zeros_like(like, dtype=torch.int64)
        new = WriteState(
            threshold=torch.full_like(like, self.threshold[layer] if gated else RULE[self.write]),
            mean=torch.full_like(like, self.mean[layer] if gated else 0.0),
            deviation=torch.full_like(like, self.deviation[layer] if gated else 1.0),
            largest_z=torch.full_like(like, self.largest_z),
            smoothing=torch.full_like(like, self.smoothing),
            decay=torch.full_like(like, self.decay),
            smoothed=torch.full_like(like, self.mean[layer] if gated else 0.0),
            activity=torch.zeros_like(like),
            written=none,
            skipped=none,
            dropped=none,
        )
        old = state.writing
        if old is None:
            return new
        known = old.threshold.isfinite()  # elsewhere nothing has been measured
        measured = {n: torch.where(known, getattr(old, n), getattr(new, n)) for n in ("mean", "deviation", "smoothed")}
        counted = {n: getattr(old, n) for n in ("activity", "written", "skipped", "dropped")}
        return dataclasses.replace(new, **measured, **counted)

    def save(self, folder: str | os.PathLike[str], best: str = "always") -> Path:
        """Write `write_policy.json` into a model folder; a crash leaves the old file or the new one.

        Args:
            folder: the model's.
            best: what the model does by default: "always", "gated", which is this policy, or "never".

        Returns:
            The file.
        """
        path = Path(folder) / FILE
        atomic.write(path, (json.dumps({"best": best, **dataclasses.asdict(self)}, indent=2) + "\n").encode())
        return path

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> WritePolicy | None:
        """Read the policy of a model folder; see `load_best`, which tells what is best, too."""
        return load_best(folder)[1]


def load_best(folder: str | os.PathLike[str]) -> tuple[str, WritePolicy | None]:
    """Read what `WritePolicy.save` wrote.

    Args:
        folder: the model's, or a hub id.

    Returns:
        Which tokens the model should write by default, "always" where nothing was calibrated, and the folder's policy,
        None where it has none.

    Raises:
        TitansError: the file is damaged, or holds something else.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return "always", None
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:  # json's and UTF-8's
        raise TitansError(f"{path} is no JSON file ({error}): run titans calibrate again") from error
    fields = {"best", *(field.name for field in dataclasses.fields(WritePolicy))}
    if not isinstance(values, dict) or set(values) != fields:
        raise TitansError(f"{path} is no write policy: expected an object with {', '.join(sorted(fields))}")
    best = values.pop("best")
    if best not in WRITE:
        raise TitansError(f"{path}: best={best!r} is unknown: choose one of {', '.join(WRITE)}")
    try:
        return best, WritePolicy(**values)
    except TitansError as error:
        raise TitansError(f"{path}: {error}") from error


@dataclasses.dataclass(frozen=True)
class WriteCounts:
    """What became of the tokens that a stream has read, summed over its memory layers.

    Args:
        written: tokens written.
        skipped: tokens left out because they did not surprise.
        dropped: tokens left out as outliers.
        layers: memory layers, each of which decides for itself.
    """

    written: int
    skipped: int
    dropped: int
    layers: int

    @property
    def total(self) -> int:
        """All tokens, once for each layer."""
        return self.written + self.skipped + self.dropped

    @staticmethod
    def sum(counts: Iterable[WriteCounts]) -> WriteCounts:
        """Add up the counts of streams of one model, at least one."""
        found = list(counts)
        written, skipped, dropped = (sum(getattr(c, name) for c in found) for name in ("written", "skipped", "dropped"))
        return WriteCounts(written, skipped, dropped, found[0].layers)


def write_counts(state: MemoryState) -> list[WriteCounts]:
    """Count what became of the tokens of each row since it follows a policy.

    Args:
        state: of a model.

    Returns:
        The counts, row by row; zeros for a state without a policy.
    """
    memories = _memories(state)
    known = [memory.writing for memory in memories if memory.writing is not None]
    if not known:
        return [WriteCounts(0, 0, 0, len(memories))] * state.rows
    sums = torch.stack([torch.stack((w.written, w.skipped, w.dropped), 1) for w in known]).sum(0)
    return [WriteCounts(written, skipped, dropped, len(memories)) for written, skipped, dropped in sums.tolist()]


def write_modes(state: MemoryState) -> list[str | None]:
    """Tell how each row of a state writes.

    Args:
        state: of a model.

    Returns:
        "always", "gated" or "never", row by row; None without a policy, which writes every token, too.
    """
    known = [memory.writing for memory in _memories(state) if memory.writing is not None]
    if not known:
        return [None] * state.rows
    modes = {threshold: mode for mode, threshold in RULE.items()}
    return [modes.get(threshold, "gated") for threshold in known[0].threshold.tolist()]


def memory_norms(state: MemoryState) -> list[list[float]]:
    """Measure how large each memory is.

    Args:
        state: of a model.

    Returns:
        The Frobenius norm of each memory layer's weights, row by row; empty lists without memory layers.
    """
    layers = [_norms(memory.memory.weights) for memory in _memories(state)]
    if not layers:
        return [[] for _ in range(state.rows)]
    norms: list[list[float]] = torch.stack(layers, 1).tolist()
    return norms


def memory_norm(state: MemoryState) -> list[float]:
    """Measure how large the memories of each row are, all layers together.

    Args:
        state: of a model.

    Returns:
        The Frobenius norm of all memory weights, row by row; 0 without memory layers.
    """
    return [math.hypot(*layers) for layers in memory_norms(state)]


def _norms(weights: list[Tensor]) -> Tensor:
    """The Frobenius norm `[B]` of the weights of one memory."""
    squares: Tensor = torch.stack([w.flatten(1).square().sum(1) for w in weights]).sum(0)
    return squares.sqrt()


def _memories(state: MemoryState) -> list[NeuralMemoryState]:
    """The states of the memory layers, in order."""
    parts = pytree.tree_leaves(state, is_leaf=lambda x: isinstance(x, NeuralMemoryState))
    return [part for part in parts if isinstance(part, NeuralMemoryState)]


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and not math.isnan(x)

"""What the API asks of the service, and what it is told at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from titans.models.write_policy import WriteCounts
from titans.persistence import MemoryInfo


@dataclasses.dataclass(frozen=True)
class Job:
    """A request to the service, its prompt already in tokens.

    Args:
        prompt: tokens to read; where there is a bos token, a stream has it before its first token and nowhere else.
        joint: tokens before them where a stream goes on.
        max_new_tokens: see `Generation`.
        temperature: see `Generation`.
        top_p: see `Generation`.
        seed: see `Generation`.
        stop: see `Generation`.
        trace: see `Generation`.
        memory: name of the memory to go on from and to keep; None to start anew and keep nothing.
        expected: the version that the memory must be at, 0 where it must not exist; None for any.
        write: "always", "gated" or "never"; None for the memory's way, or the model's where it is new.
    """

    prompt: Sequence[int]
    joint: Sequence[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    stop: Sequence[str]
    trace: bool
    memory: str | None
    expected: int | None
    write: str | None


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """What a request did to the memory.

    Args:
        info: the memory as saved; None where nothing was kept.
        tokens: tokens the memory has seen.
        bytes: its size; that of its file, where it is kept.
        norm: Frobenius norm of the memory's weights.
        counts: tokens written, skipped and dropped by this request, summed over the memory layers.
    """

    info: MemoryInfo | None
    tokens: int
    bytes: int
    norm: float
    counts: WriteCounts


@dataclasses.dataclass(frozen=True)
class Finished:
    """The end of a request: why, how many tokens, and what became of the memory."""

    reason: str
    prompt_tokens: int
    completion_tokens: int
    memory: MemoryReport

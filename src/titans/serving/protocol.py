"""What the API, the service and the engine tell each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from titans.models.memory_state import MemoryState
from titans.models.write_policy import WriteCounts, memory_norm, write_counts
from titans.persistence import MemoryInfo


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How to go on from a prompt.

    Args:
        max_new_tokens: tokens to say at most.
        temperature: see `titans.generation.sample`.
        top_p: see `titans.generation.sample`.
        seed: of the sampling; None for a random one.
        stop: strings that end the text.
        trace: whether to tell of every token what it did.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    trace: bool = False


@dataclasses.dataclass(frozen=True)
class ServiceRequest:
    """A request to the service, its prompt already in tokens.

    Args:
        prompt: tokens to read; where there is a bos token, a stream has it before its first token and nowhere else.
        joint: tokens before them where a stream goes on.
        params: how to go on from it.
        memory: name of the memory to go on from and to keep; None to start anew and keep nothing.
        expected: the version that the memory must be at, 0 where it must not exist; None for any.
        write: "always", "gated" or "never"; None for the memory's way, or the model's where it is new.
    """

    prompt: Sequence[int]
    joint: Sequence[int]
    params: SamplingParams
    memory: str | None
    expected: int | None
    write: str | None


@dataclasses.dataclass(eq=False)
class EngineRequest:
    """A request to the engine.

    Args:
        prompt: tokens to read first; at least one.
        state: the memory to go on from, one row.
        params: how to go on from it.
        keep: whether the memory is kept, so that the last token said must be read as well.
        emit: called from the engine's thread with each event; the last is a result or a failure.
        tenant: whose request it is. Default: nobody's.
        cancelled: set when nobody waits for the answer any more.
    """

    prompt: Sequence[int]
    state: MemoryState
    params: SamplingParams
    keep: bool
    emit: Callable[[Event], None]
    tenant: str = ""
    cancelled: bool = False


@dataclasses.dataclass(frozen=True)
class TracedToken:
    """A token that was read, and what it did to the memory.

    Args:
        text: its text; empty for the first parts of a character.
        surprise: norm of its gradient, mean over the memory layers.
        written: share of the memory layers that wrote it.
        dropped: share of those that dropped it as an outlier.
        forgotten: share of the memory that it let decay.
        generated: whether the model said it.
    """

    text: str
    surprise: float
    written: float
    dropped: float
    forgotten: float
    generated: bool


@dataclasses.dataclass(frozen=True)
class Delta:
    """What has become known: text that was said, and tokens that were read where a trace was asked for."""

    text: str
    trace: list[TracedToken]


@dataclasses.dataclass(frozen=True)
class EngineResult:
    """The end of a request.

    Args:
        reason: "stop", "length" or "cancelled".
        state: the memory after all that was read; None where it was cancelled before its prompt was read.
        read: tokens read.
        said: tokens generated.
    """

    reason: str
    state: MemoryState | None
    read: int
    said: int


@dataclasses.dataclass(frozen=True)
class EngineFailure:
    """The model could not go on."""

    error: Exception


Event = Delta | EngineResult | EngineFailure


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

    @classmethod
    def of(cls, state: MemoryState, info: MemoryInfo | None, before: WriteCounts, read: int) -> MemoryReport:
        """Report on the memory that a request left, which has read some tokens and whose counts were others before."""
        after = write_counts(state)[0]
        if after.total:
            fields = ("written", "skipped", "dropped")
            written, skipped, dropped = (getattr(after, name) - getattr(before, name) for name in fields)
        else:  # a state without a policy counts nothing, and writes every token
            written, skipped, dropped = read * after.layers, 0, 0
        counts = WriteCounts(written, skipped, dropped, after.layers)
        return cls(info, state.tokens, state.nbytes if info is None else info.bytes, memory_norm(state)[0], counts)


@dataclasses.dataclass(frozen=True)
class Finished:
    """The end of a request: why, how many tokens, and what became of the memory."""

    reason: str
    prompt_tokens: int
    completion_tokens: int
    memory: MemoryReport

"""The requests at work: what each has still to read, what it has said, and where its state is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.generation import StopFilter, TextWriter, sample
from titans.models.memory_state import MemoryState
from titans.models.watching import TokenTrace
from titans.models.write_policy import write_modes


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
class Piece:
    """What has become known: text that was said, and tokens that were read where a trace was asked for."""

    text: str
    trace: list[TracedToken]


@dataclasses.dataclass(frozen=True)
class Done:
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
class Failed:
    """The model could not go on."""

    error: Exception


Event = Piece | Done | Failed


@dataclasses.dataclass(eq=False)
class Generation:
    """A request to the engine.

    Args:
        prompt: tokens to read first; at least one.
        state: the memory to go on from, one row.
        max_new_tokens: tokens to say at most.
        temperature: see `titans.generation.sample`.
        top_p: see `titans.generation.sample`.
        seed: of the sampling; None for a random one.
        stop: strings that end the text.
        keep: whether the memory is kept, so that the last token said must be read as well.
        trace: whether to tell of every token what it did.
        emit: called from the engine's thread with each event; the last is `Done` or `Failed`.
        tenant: whose request it is. Default: nobody's.
    """

    prompt: Sequence[int]
    state: MemoryState
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    stop: Sequence[str]
    keep: bool
    trace: bool
    emit: Callable[[Event], None]
    tenant: str = ""
    cancelled: bool = False


class Place(NamedTuple):
    """Where a request's state is: a row of a state that it may share with others."""

    state: MemoryState
    row: int


def join(places: Sequence[Place]) -> MemoryState:
    """Make one state of several places; without copying where they already are one."""
    first = places[0].state
    if len(places) == 1:
        return first if first.rows == 1 else first.row(places[0].row)
    if all(place.state is first for place in places):
        rows = [place.row for place in places]
        return first if rows == list(range(first.rows)) else first.select(torch.tensor(rows))
    return MemoryState.cat([join([place]) for place in places])


class Row:
    """One request at work.

    Args:
        request: what was asked for.
        tokenizer: the model's.
        ends: tokens that end the text and are no part of it.
    """

    def __init__(self, request: Generation, tokenizer: Any, ends: Container[int]) -> None:
        self.request = request
        self.pending = list(request.prompt)  # to be read
        self.place = Place(request.state, 0)
        self.tokens = request.state.tokens
        self.write = write_modes(request.state)[0]
        self.read = self.said = 0
        self.ends = ends
        self.reason: str | None = None
        self.writer = TextWriter(tokenizer, request.prompt, skip_special_tokens=True)
        self.reader = TextWriter(tokenizer, [])
        self.stop = StopFilter(request.stop)
        self.generator = torch.Generator()
        if request.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(request.seed)

    @property
    def in_prompt(self) -> bool:
        """Whether the prompt is still being read."""
        return self.read < len(self.request.prompt)

    def take(self, limit: int) -> list[int]:
        """Return the tokens to read next, at most `limit`."""
        return self.pending[:limit]

    def advance(self, tokens: list[int], place: Place, logits: Tensor, trace: list[TokenTrace]) -> None:
        """Note that tokens were read, and say the next one where the model is to go on.

        Args:
            tokens: what `take` returned.
            place: the state after them.
            logits: after the last of them `[vocab_size]`, on the CPU.
            trace: of each of them, where a trace was asked for.
        """
        self.place = place
        del self.pending[: len(tokens)]
        seen = self._traced(tokens, trace)
        self.read += len(tokens)
        if self.request.cancelled and self.reason is None:
            self.reason = "cancelled"
        text = ""
        if not self.pending and self.reason is None:
            text = self._say(sample(logits, self.request.temperature, self.request.top_p, self.generator))
        if text or seen:
            self.request.emit(Piece(text, seen))

    def _traced(self, tokens: list[int], trace: list[TokenTrace]) -> list[TracedToken]:
        if not self.request.trace:
            return []
        first = self.read
        return [
            TracedToken(self.reader.add(token), *t, generated=first + i >= len(self.request.prompt))
            for i, (token, t) in enumerate(zip(tokens, trace, strict=True))
        ]

    def _say(self, token: int) -> str:
        """Take a generated token: it is to be read next, unless nothing comes of it."""
        self.said += 1
        if token in self.ends:
            self.reason = "stop"
            text = self.stop.add(self.writer.flush())
        else:
            text = self.stop.add(self.writer.add(token))
            if self.stop.stopped:
                self.reason = "stop"
            elif self.said >= self.request.max_new_tokens:
                self.reason = "length"
                text += self.stop.add(self.writer.flush())
        if self.reason is not None:
            text += self.stop.flush()
        if self.reason is None or self.request.keep:
            self.pending.append(token)
        return text

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if self.request.cancelled and (self.in_prompt or not self.request.keep):
            return True  # what was said and not read matters to a kept memory only
        return self.reason is not None and not self.pending

    def done(self) -> Done:
        """Return the last event of a finished request."""
        if self.request.cancelled and self.in_prompt:
            return Done("cancelled", None, self.read, self.said)
        state = dataclasses.replace(join([self.place]), tokens=self.tokens + self.read)
        return Done(self.reason or "cancelled", state, self.read, self.said)

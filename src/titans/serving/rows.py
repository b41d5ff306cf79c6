"""The requests at work: what each has still to read, what it has said, and where its state is."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.generation import StopFilter, TextWriter, sample
from titans.models.memory_state import MemoryState
from titans.models.watching import TokenTrace
from titans.models.write_policy import write_modes
from titans.serving.protocol import Delta, EngineRequest, EngineResult, TracedToken


class StateRow(NamedTuple):
    """Where a request's state is: a row of a state that it may share with others."""

    state: MemoryState
    row: int


def join(states: Sequence[StateRow]) -> MemoryState:
    """Make one state of the rows of several; without copying where they already are one."""
    first = states[0].state
    if len(states) == 1:
        return first if first.rows == 1 else first.row(states[0].row)
    if all(each.state is first for each in states):
        rows = [each.row for each in states]
        return first if rows == list(range(first.rows)) else first.select(torch.tensor(rows))
    return MemoryState.cat([join([each]) for each in states])


class Row:
    """One request at work.

    Args:
        request: what was asked for.
        tokenizer: the model's.
        ends: tokens that end the text and are no part of it.
    """

    def __init__(self, request: EngineRequest, tokenizer: Any, ends: Container[int]) -> None:
        self.request = request
        self.pending = list(request.prompt)  # to be read
        self.state = StateRow(request.state, 0)
        self.tokens = request.state.tokens
        self.write = write_modes(request.state)[0]
        self.read = self.said = 0
        self.ends = ends
        self.reason: str | None = None
        self.writer = TextWriter(tokenizer, request.prompt, skip_special_tokens=True)
        self.reader = TextWriter(tokenizer, [])
        self.stop = StopFilter(request.params.stop)
        self.generator = torch.Generator()
        if request.params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(request.params.seed)

    @property
    def in_prompt(self) -> bool:
        """Whether the prompt is still being read."""
        return self.read < len(self.request.prompt)

    def take(self, limit: int) -> list[int]:
        """Return the tokens to read next, at most `limit`."""
        return self.pending[:limit]

    def advance(self, tokens: list[int], state: StateRow, logits: Tensor, trace: list[TokenTrace]) -> None:
        """Note that tokens were read, and say the next one where the model is to go on.

        Args:
            tokens: what `take` returned.
            state: the state after them.
            logits: after the last of them `[vocab_size]`, on the CPU.
            trace: of each of them, where a trace was asked for.
        """
        self.state = state
        del self.pending[: len(tokens)]
        seen = self._traced(tokens, trace)
        self.read += len(tokens)
        if self.request.cancelled and self.reason is None:
            self.reason = "cancelled"
        text = ""
        if not self.pending and self.reason is None:
            text = self._say(sample(logits, self.request.params.temperature, self.request.params.top_p, self.generator))
        if text or seen:
            self.request.emit(Delta(text, seen))

    def _traced(self, tokens: list[int], trace: list[TokenTrace]) -> list[TracedToken]:
        if not self.request.params.trace:
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
            elif self.said >= self.request.params.max_new_tokens:
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

    def done(self) -> EngineResult:
        """Return the last event of a finished request."""
        if self.request.cancelled and self.in_prompt:
            return EngineResult("cancelled", None, self.read, self.said)
        state = dataclasses.replace(join([self.state]), tokens=self.tokens + self.read)
        return EngineResult(self.reason or "cancelled", state, self.read, self.said)

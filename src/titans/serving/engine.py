"""One thread that runs the model, all requests at work joined into few forward passes."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from titans.generation import end_tokens
from titans.models.memory_state import MemoryState
from titans.models.watching import TokenTrace, Trace, watch
from titans.serving.protocol import EngineFailure, EngineRequest
from titans.serving.rows import Row, StateRow, join
from titans.serving.scheduling import FairQueue, PrefillBudget

_WATCHED = 16  # of so many passes, one is watched for the metrics
logger = logging.getLogger(__name__)


class Engine:
    """Reads and generates for many requests at once.

    A step goes on with all answers by a token, in one forward pass, and then reads a portion of the prompts, as
    `PrefillBudget` allows, in another, padded. A request's result does not depend on the others.

    Args:
        model: a causal language model of this package, in evaluation mode.
        tokenizer: its tokenizer.
        max_batch: requests at work at once; others wait. Default 32.
        piece: tokens of a prompt read in one step at most. Default 512.
        on_step: called after each forward pass with the number of requests in it and of tokens read. Default: nothing.
        on_surprise: called for every request that a watched pass reads for, with the mean surprise of its tokens. Every
            16th is, at up to a third of its cost, and computes the same. Default: nothing.
        clock: tells the seconds. Default that of the system.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int = 32,
        piece: int = 512,
        on_step: Callable[[int, int], None] = lambda rows, tokens: None,
        on_surprise: Callable[[float], None] = lambda surprise: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_batch, self.on_step, self.clock = max_batch, on_step, clock
        self.on_surprise, self.passes = on_surprise, 0
        self.pace = PrefillBudget(piece)
        self.ends = end_tokens(model, tokenizer)
        self.waiting = FairQueue()
        self.rows: list[Row] = []
        self.wake = threading.Condition()
        self.closing = False
        self.thread = threading.Thread(target=self._run, name="titans-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; its events come through `request.emit`.

        Raises:
            RuntimeError: the engine is closing.
        """
        with self.wake:
            if self.closing:
                raise RuntimeError("the engine is closing")
            self.waiting.add(request)
            self.wake.notify()

    def close(self) -> None:
        """Finish what was submitted, then stop the thread."""
        with self.wake:
            self.closing = True
            self.wake.notify()
        self.thread.join()

    @property
    def load(self) -> tuple[int, int]:
        """Requests at work and requests that wait."""
        with self.wake:
            return len(self.rows), len(self.waiting)

    @torch.inference_mode()
    def _run(self) -> None:
        while self._admit():
            try:
                self._step()
            except Exception as error:  # no request may end the thread that all others wait for
                for row in list(self.rows):
                    self._fail(row, error)

    def _step(self) -> None:
        answers, prompts = self._groups()
        self.pace.answered(sum(self._read(group, 1) for group in answers))
        if self.pace.may_read:
            for group in prompts:
                portion = self.pace.portion(group[0].write, len(group), len(prompts))
                longest = min(portion, max(len(row.pending) for row in group))
                self.pace.read(group[0].write, len(group) * longest, self._read(group, portion))
        for row in [row for row in self.rows if row.finished]:
            event = row.done()
            self.rows.remove(row)
            row.request.emit(event)

    def _admit(self) -> bool:
        """Take in waiting requests; wait while there is nothing to do. Returns whether to go on."""
        with self.wake:
            while not self.rows and not self.waiting and not self.closing:
                self.wake.wait()
            while self.waiting and len(self.rows) < self.max_batch:
                request = self.waiting.take(Counter(row.request.tenant for row in self.rows))
                try:
                    self.rows.append(Row(request, self.tokenizer, self.ends))
                except Exception as error:
                    logger.error("a request cannot be taken in", exc_info=error)
                    request.emit(EngineFailure(error))
            return bool(self.rows) or not self.closing

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self.thread.is_alive()

    def _groups(self) -> tuple[list[list[Row]], list[list[Row]]]:
        """Divide the requests into those that can share a forward pass: answers, and prompts, alike in writing."""
        answers: dict[str | None, list[Row]] = {}
        prompts: dict[str | None, list[Row]] = {}
        for row in self.rows:
            if not row.finished:
                (prompts if len(row.pending) > 1 else answers).setdefault(row.write, []).append(row)
        return list(answers.values()), list(prompts.values())

    def _read(self, rows: list[Row], most: int) -> float:
        """Read with a group, and return how many seconds it took.

        Where it fails, each is read alone, so that one bad state harms nobody else.
        """
        start = self.clock()
        pieces = [row.take(most) for row in rows]
        try:
            state, logits, traces = self._forward(rows, pieces)
        except Exception as error:
            if len(rows) > 1:
                for row in rows:
                    self._read([row], most)
            else:
                self._fail(rows[0], error)
            return self.clock() - start
        self.on_step(len(rows), sum(map(len, pieces)))
        for i, row in enumerate(rows):
            try:
                row.advance(pieces[i], StateRow(state, i), logits[i], traces[i])
            except Exception as error:  # NaN in the logits
                self._fail(row, error)
        return self.clock() - start

    def _fail(self, row: Row, error: Exception) -> None:
        logger.error("a request failed in the model", exc_info=error)
        self.rows.remove(row)
        row.request.emit(EngineFailure(error))

    def _forward(self, rows: list[Row], pieces: list[list[int]]) -> tuple[MemoryState, Tensor, list[list[TokenTrace]]]:
        """Run the model; returns the state of all rows, their last logits and, where asked for, traces."""
        longest = max(map(len, pieces))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, piece in enumerate(pieces):  # padded on the left: the last logits are then those of the last token
            ids[i, longest - len(piece) :] = torch.tensor(piece)
            mask[i, longest - len(piece) :] = 1
        sampled = self.passes % _WATCHED == 0
        self.passes += 1
        watched = sampled or any(row.request.params.trace for row in rows)
        with watch(self.model) if watched else contextlib.nullcontext(Trace(0)) as trace:
            output = self.model(
                ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                cache=join([row.state for row in rows]),
                use_cache=True,
                logits_to_keep=1,
            )
        if sampled and trace.layers:
            for i in range(len(rows)):
                self.on_surprise(fmean(token.surprise for token in trace.tokens(i)))
        traces = [trace.tokens(i) if row.request.params.trace else [] for i, row in enumerate(rows)]
        return output.cache, output.logits[:, -1].float().cpu(), traces

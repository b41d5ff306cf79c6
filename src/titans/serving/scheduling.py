"""Whose turn it is: of the requests that wait, and of answers and prompts in the engine's time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from titans.serving.protocol import EngineRequest

SECONDS = 0.05  # that others wait for a portion of a prompt
_TOKENS = 4  # a portion takes at least as long as so many tokens of the answers, so that its fixed cost matters little
_FEWEST = 16  # tokens of a portion


class FairQueue:
    """The requests that wait, in a queue for each tenant, so that a long one keeps nobody else waiting."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[EngineRequest]] = {}  # in the order of turns

    def __len__(self) -> int:
        """Count the requests."""
        return sum(map(len, self.queues.values()))

    def add(self, request: EngineRequest) -> None:
        """Let a request wait behind those of its tenant."""
        self.queues.setdefault(request.tenant, deque()).append(request)

    def take(self, at_work: Counter[str]) -> EngineRequest:
        """Take out the next request: of the tenant with the fewest at work, of several the one served longest ago.

        Args:
            at_work: how many requests of each tenant are at work.
        """
        tenant = min(self.queues, key=lambda tenant: at_work[tenant])
        queue = self.queues.pop(tenant)
        request = queue.popleft()
        if queue:
            self.queues[tenant] = queue  # behind the others
        return request


class PrefillBudget:
    """How much of the prompts is read in a step, so that long ones do not hold up the others.

    Prompts are read in portions of a bounded time. While somebody is answered, the next one comes when the answers have
    had as long: an answer takes about twice as long as alone, and so does a prompt.

    Args:
        piece: tokens of each prompt in a portion at most.
    """

    def __init__(self, piece: int) -> None:
        self.piece = piece
        self.owed = 0.0  # seconds that prompts have had and answers have not
        self.step: float | None = None  # seconds that a token of all answers took last
        self.cost: dict[Hashable, float] = {}  # seconds that a token of a prompt took, by the way of writing

    def answered(self, seconds: float) -> None:
        """Note how long it took to go on with all answers by a token; 0 where there are none."""
        self.owed = max(0.0, self.owed - seconds) if seconds else 0.0
        self.step = seconds or self.step

    @property
    def may_read(self) -> bool:
        """Whether it is the prompts' turn."""
        return not self.owed

    def portion(self, write: Hashable, prompts: int, groups: int) -> int:
        """Return how many tokens of each prompt to read now.

        Args:
            write: the prompts' way of writing.
            prompts: how many are read together.
            groups: how many such portions there are in this step.
        """
        if self.step is None:  # as at the start: nobody has been answered yet
            return self.piece
        if write not in self.cost:
            return min(self.piece, _FEWEST)
        seconds = max(SECONDS, _TOKENS * self.step) / groups
        return min(self.piece, max(_FEWEST, int(seconds / self.cost[write] / prompts)))

    def read(self, write: Hashable, tokens: int, seconds: float) -> None:
        """Note how long a portion took, and its tokens, padding included."""
        self.cost[write] = seconds / tokens
        self.owed += seconds

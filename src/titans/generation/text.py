"""Put tokens together as text while they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LONGEST_CHARACTER = 4  # bytes of the longest UTF-8 character


class TextWriter:
    """Turns token ids into text, holding back a character until all its tokens are there.

    Tokens are decoded together with those before them, since decoders treat the first one specially.

    Args:
        tokenizer: the tokenizer.
        context: the tokens before; the last few are enough.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.ids = list(context[-LONGEST_CHARACTER:])
        self.known = len(self.ids)

    def add(self, token: int) -> str:
        """Add a token; returns the text that is now known, possibly none."""
        self.ids.append(token)
        text = self._new_text()
        waiting = len(self.ids) - self.known
        if text and (not text.endswith("\ufffd") or waiting >= LONGEST_CHARACTER):
            self.ids, self.known = self.ids[self.known :], waiting
            return text
        return ""

    def flush(self) -> str:
        """Return the text of the tokens held back, whole characters or not."""
        text = self._new_text() if len(self.ids) > self.known else ""
        self.known = len(self.ids)
        return text

    def _new_text(self) -> str:
        before: str = self.tokenizer.decode(self.ids[: self.known])
        text: str = self.tokenizer.decode(self.ids)
        return text[len(before) :]


class StopFilter:
    """Lets text through up to the first of some stop strings, holding back what may become one.

    Args:
        stops: the strings; none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Add text; returns what is now known to come before any stop string."""
        self.held += text
        found = [at for at in (self.held.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self.stopped = True
            cut = min(found)
        else:
            cut = len(self.held) - self._beginning()
        passed, self.held = self.held[:cut], self.held[cut:]
        return passed

    def flush(self) -> str:
        """Return what is still held back, unless a stop string came."""
        return "" if self.stopped else self.held

    def _beginning(self) -> int:
        """The length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        for length in range(min(longest, len(self.held)), 0, -1):
            if any(stop.startswith(self.held[-length:]) for stop in self.stops):
                return length
        return 0

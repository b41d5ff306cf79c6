"""Put tokens together as text while they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LONGEST_CHARACTER = 4  # bytes of the longest UTF-8 character, and so the most tokens that it takes
CONTEXT = 2 * LONGEST_CHARACTER  # tokens among which a character begins
BROKEN = "\ufffd"  # how decoders show bytes that are no character, or not yet
GENUINE = (BROKEN, "ï¿½", "<0xEF><0xBF><0xBD>")  # that very character, as tokenizers write its bytes


class TextWriter:
    """Turns token ids into text, holding back no more than a character that is not finished.

    Tokens are decoded together with those before them, since decoders treat the first one specially, and since the
    text before may end within a character: that comes whole with the token that completes it.

    Args:
        tokenizer: the tokenizer.
        context: the tokens before; the last 8 are enough.
        skip_special_tokens: leave out the text of special tokens, as `<|pad|>`. Default: no.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int], skip_special_tokens: bool = False) -> None:
        self.tokenizer, self.skip_special_tokens = tokenizer, skip_special_tokens
        ids = list(context[-CONTEXT:])
        if self._ends_in_a_genuine_one(ids):
            self.ids, self.waiting = self._from_a_character(ids, 0), 0
            self.said = self._decode(self.ids)
            return
        for waiting in range(min(LONGEST_CHARACTER, len(ids))):  # tokens at the end that a character may have begun in
            self.ids, self.waiting = self._from_a_character(ids, waiting), waiting
            self.said = self._decode(self.ids[: len(self.ids) - waiting])
            if self.said and not self.said.endswith(BROKEN):
                break
        else:
            self.ids, self.said = self._from_a_character(ids, 0) or ids[1 - LONGEST_CHARACTER :], ""
            self.waiting = min(len(ids), LONGEST_CHARACTER - 1)
        whole = self._decode(self.ids).rstrip(BROKEN)
        if whole.startswith(self.said):  # also the character that a waiting token ended
            self.said = whole

    def add(self, token: int) -> str:
        """Add a token; returns the text that is now known, possibly none."""
        self.ids.append(token)
        self.waiting += 1
        text = self._text()
        known = text.rstrip(BROKEN)
        if known == text or self._ends_in_a_genuine_one(self.ids):
            return self._say(text, text, waiting=0)
        if len(known) > len(self.said):  # the token that ends one character begins another
            return self._say(known, text, waiting=1)
        if self.waiting < LONGEST_CHARACTER:
            return ""
        # What may still become a character begins in the last three tokens; before them, the text is broken for good.
        broken = self._decode(self.ids[: 1 - LONGEST_CHARACTER])
        return self._say(broken if broken.startswith(self.said) else self.said, text, waiting=LONGEST_CHARACTER - 1)

    def flush(self) -> str:
        """Return the text of the tokens held back, whole characters or not."""
        text = self._text()
        return self._say(text, text, waiting=0)

    def _say(self, known: str, text: str, waiting: int) -> str:
        """Return what is new in the known part of the text, and forget the tokens that are of no more use."""
        new, unsaid = known[len(self.said) :], len(text) - len(known)
        self.ids, self.waiting = self._from_a_character(self.ids, waiting), waiting
        left = self._decode(self.ids)
        self.said = left[: max(0, len(left) - unsaid)]
        return new

    def _text(self) -> str:
        """Decode the tokens, where those that wait leave the text before them as it was said."""
        text = self._decode(self.ids)
        if text.startswith(self.said):
            return text
        return self.said + self._decode(self.ids[len(self.ids) - self.waiting :])

    def _from_a_character(self, ids: list[int], waiting: int) -> list[int]:
        """Take the last tokens, from the first on that begins a character; those that wait begin one."""
        end = len(ids) - waiting
        starts = range(max(0, len(ids) - CONTEXT), end)
        return ids[next((start for start in starts if not self._decode(ids[start:end]).startswith(BROKEN)), end) :]

    def _ends_in_a_genuine_one(self, ids: list[int]) -> bool:
        """Tell whether the last character is U+FFFD itself, which decoded looks like one that is not finished."""
        tokens = filter(None, self.tokenizer.convert_ids_to_tokens(ids))  # none for an id beyond the vocabulary
        return "".join(tokens).endswith(GENUINE)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=self.skip_special_tokens)
        return text


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

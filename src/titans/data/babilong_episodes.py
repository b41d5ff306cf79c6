"""BABILong to train on: contexts and questions of one length, with labels on the answers alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from titans.data.babi import Story
from titans.data.babilong import TRIES, Background, make_sample
from titans.data.babilong_prompts import bare_prompt
from titans.data.corpora import Document
from titans.data.packing import IGNORED
from titans.data.tokenizers import encode_batch
from titans.errors import TitansError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Draw = Callable[[random.Random], Story | Sequence[Story]]


class BabilongEpisodes:
    """Questions about facts in book text, in the form without instructions that `--bare` evaluates.

    A curriculum is a matter of the lengths that are asked for: short ones first.

    Args:
        tokenizer: of the model; where it has a bos token, episodes start with it.
        draws: each draws a story, as `functools.partial(simulate, "qa1")`, or `lambda rng: rng.choice(stories)` of
            stories read from the official training files; or stories of the same facts with different questions, as
            `partial(simulate_questions, "qa1", most=6)`. Each episode uses one of them at random.
        books: the text around the facts, as `titans.data.corpora.documents` gives it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, draws: Sequence[Draw], books: Sequence[Document]) -> None:
        self._tokenizer, self._draws = tokenizer, draws
        self._start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        self._background = Background(books, self._count)

    def batch(
        self, rows: int, length: int, generator: torch.Generator, most_filler: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Make episodes.

        Args:
            rows: episodes B.
            length: tokens N of each.
            generator: of everything random.
            most_filler: tokens of book text around a story, 0 to this many; an episode is then story after story,
                the last one cut: many answers, from which a small model learns at all. Default: one story, and as
                much text as fills the length.

        Returns:
            Tokens and labels, both `[B, T]`: the labels of the answers' tokens are these tokens, all others `IGNORED`.
            Where the text comes out a few tokens short, as after a cut word, the last token is repeated.

        Raises:
            TitansError: hardly any story fits the length, or there is too little background.
        """
        rng = random.Random(int(torch.randint(2**62, (), generator=generator)))
        episodes = [
            self._one(length, rng) if most_filler is None else self._many(length, most_filler, rng) for _ in range(rows)
        ]
        ids, labels = (torch.tensor(x) for x in zip(*episodes, strict=True))
        return ids, labels

    def _one(self, length: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """Ask one story, in as much text as fits."""
        draw = rng.choice(self._draws)
        for _ in range(TRIES):
            stories = _listed(draw(rng))
            room = length - len(self._start) - sum(map(len, self._parts("", stories)))
            while self._count(" ".join(stories[0].facts)) <= room:
                sample = make_sample(stories[0], room, self._background, self._count, rng)
                asked, *rest = self._parts(sample.context, stories)
                ids, labels = _labelled([self._start + asked, *rest])
                missing = length - len(ids)
                if missing >= 0:
                    return ids + [ids[-1]] * missing, labels + [IGNORED] * missing
                room += missing  # a subword tokenizer can make more tokens of a text than of its parts
        raise _none_fits(length)

    def _many(self, length: int, most_filler: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """Ask story after story, each in its own text."""
        draw, fruitless = rng.choice(self._draws), 0
        ids, labels = _labelled([self._start])
        while len(ids) < length:
            stories, filler = _listed(draw(rng)), rng.randint(0, most_filler)
            tokens = filler and self._count(" ".join(stories[0].facts)) + filler
            sample = make_sample(stories[0], tokens, self._background, self._count, rng)
            parts = self._parts(sample.context, stories)
            fruitless += 1
            if len(self._start) + len(parts[0]) + len(parts[1]) <= length:  # else it would not even fit alone
                told, asked = _labelled(parts)
                ids, labels, fruitless = ids + told, labels + asked, 0
            elif fruitless == TRIES:
                raise _none_fits(length)
        return ids[:length], labels[:length]

    def _parts(self, context: str, stories: Sequence[Story]) -> list[list[int]]:
        """Encode a context with the first question, its answer, the second question, its answer, and so on."""
        parts = []
        for story in stories:
            parts += [bare_prompt(context if story is stories[0] else "", story.question), f" {story.answer}."]
        return encode_batch(self._tokenizer, parts)

    def _count(self, text: str) -> int:
        return len(encode_batch(self._tokenizer, [text])[0])


def _labelled(parts: Sequence[list[int]]) -> tuple[list[int], list[int]]:
    """Join tokens; every second part is an answer, and has labels."""
    ids, labels = list[int](), list[int]()
    for number, tokens in enumerate(parts):
        ids += tokens
        labels += tokens if number % 2 else [IGNORED] * len(tokens)
    return ids, labels


def _listed(found: Story | Sequence[Story]) -> Sequence[Story]:
    return [found] if isinstance(found, Story) else found


def _none_fits(length: int) -> TitansError:
    return TitansError(f"hardly any story fits {length:,} tokens: train on greater lengths")

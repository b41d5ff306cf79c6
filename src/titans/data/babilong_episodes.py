"""BABILong to train on: contexts and questions of one length, with labels on the answers alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from titans.data.babi import Story
from titans.data.babilong import TRIES, Background, make_sample
from titans.data.babilong_prompts import prompt
from titans.data.corpora import Document
from titans.data.packing import IGNORED
from titans.data.tokenizers import encode_batch
from titans.errors import TitansError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class BabilongEpisodes:
    """Questions about facts in book text, in the form without instructions that `--bare` evaluates.

    A curriculum is a matter of the lengths that are asked for: short ones first.

    Args:
        tokenizer: of the model; where it has a bos token, episodes start with it.
        draws: each draws a story, as `functools.partial(simulate, "qa1")`, or `lambda rng: rng.choice(stories)` of
            stories read from the official training files; each episode uses one of them at random.
        books: the text around the facts, as `titans.data.corpora.documents` gives it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        draws: Sequence[Callable[[random.Random], Story]],
        books: Sequence[Document],
    ) -> None:
        self._tokenizer, self._draws = tokenizer, draws
        self._background = Background(books, self._count)

    def batch(self, rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make episodes.

        Args:
            rows: episodes B.
            length: tokens N of each.
            generator: of everything random.

        Returns:
            Tokens and labels, both `[B, N]`: the labels of the answer's tokens are these tokens, all others `IGNORED`.
            Where the text comes out a few tokens short, as after a cut word, the last token is repeated.

        Raises:
            TitansError: hardly any story fits the length, or there is too little background.
        """
        rng = random.Random(int(torch.randint(2**62, (), generator=generator)))
        episodes = [self._episode(length, rng) for _ in range(rows)]
        ids, labels = (torch.tensor(x) for x in zip(*episodes, strict=True))
        return ids, labels

    def _episode(self, length: int, rng: random.Random) -> tuple[list[int], list[int]]:
        draw = rng.choice(self._draws)
        start = [] if self._tokenizer.bos_token_id is None else [self._tokenizer.bos_token_id]
        for _ in range(TRIES):
            story = draw(rng)
            answer = self._encode(f" {story.answer}.")
            room = length - len(start) - self._count(_bare("", story)) - len(answer)
            while self._count(" ".join(story.facts)) <= room:
                sample = make_sample(story, room, self._background, self._count, rng)
                asked = start + self._encode(_bare(sample.context, story))
                missing = length - len(asked) - len(answer)
                if missing >= 0:
                    labels = [IGNORED] * len(asked) + answer + [IGNORED] * missing
                    return asked + answer + [answer[-1]] * missing, labels
                room += missing  # a subword tokenizer can make more tokens of a text than of its parts
        raise TitansError(f"hardly any story fits {length:,} tokens: train on greater lengths")

    def _count(self, text: str) -> int:
        return len(self._encode(text))

    def _encode(self, text: str) -> list[int]:
        return encode_batch(self._tokenizer, [text])[0]


def _bare(context: str, story: Story) -> str:
    return prompt("", context, story.question, None)

"""Recall episodes: facts stated once among real text and asked for later, in bytes."""

from __future__ import annotations

import string

import torch
from torch import Tensor

from titans.data.packing import IGNORED

MARK = "#"
KEYS = string.ascii_uppercase
VALUES = string.ascii_lowercase
CHANCE = 1 / len(VALUES)
FILLER_SHARE = 0.15  # of the steps of a training episode
MOST_FILLER = 11  # bytes of text per such step


class RecallEpisodes:
    """Facts `#Kv` among filler: once stated, the mark and the key must bring back the value.

    Every episode draws its facts anew, in training and in the test, so an answer can come from the episode only.
    Single pairs are not held out: a model soon knows which pairs never occur and would not answer with one.

    Args:
        text: where filler is cut from, bytes `[M]`, int64.
        seed: of everything random.
        facts: facts per episode, at most 26. Default 8.
    """

    def __init__(self, text: Tensor, seed: int, facts: int = 8) -> None:
        self.text, self.facts = text, facts
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Make training episodes, dense in questions.

        Args:
            rows: episodes B.
            length: bytes N of each.

        Returns:
            Bytes and labels, both `[B, N]`: the labels of answers are the answers, all others `IGNORED`.
        """
        episodes = [self._episode(length) for _ in range(rows)]
        ids, labels = (torch.tensor(x) for x in zip(*episodes, strict=True))
        return ids, labels

    def test(self, rows: int, distance: int) -> tuple[Tensor, Tensor]:
        """Make test episodes: new facts, `distance` bytes of text, one question about one of the facts.

        Args:
            rows: episodes B.
            distance: bytes between the last fact and the question; at most the length of the text.

        Returns:
            Prompts that end where the answer is due, `[B, M]`, and the answers `[B]`.
        """
        prompts, answers = [], []
        for _ in range(rows):
            facts = self._facts()
            key = list(facts)[self._integer(len(facts))]
            stated = "".join(_fact(k, v) for k, v in facts.items())
            prompts.append([*stated.encode(), *self._filler(distance), *f"{MARK}{key}".encode()])
            answers.append(ord(facts[key]))
        return torch.tensor(prompts), torch.tensor(answers)

    def _episode(self, length: int) -> tuple[list[int], list[int]]:
        """State each fact once and ask for those stated round after round, so that no answer is always near."""
        facts = self._facts()
        unstated, stated, queue = list(facts), list[str](), list[str]()
        ids: list[int] = []
        labels: list[int] = []
        while len(ids) < length:
            draw = float(torch.rand((), generator=self.generator))
            if draw < FILLER_SHARE:
                part, answer = self._filler(1 + self._integer(MOST_FILLER)), IGNORED
            elif unstated and (draw < 0.6 or not stated):
                stated.append(unstated.pop())
                part, answer = list(_fact(stated[-1], facts[stated[-1]]).encode()), IGNORED
            else:
                queue = queue or self._shuffled(stated)
                key = queue.pop()
                part, answer = list(_fact(key, facts[key]).encode()), ord(facts[key])
            ids += part
            labels += [IGNORED] * (len(part) - 1) + [answer]
        return ids[:length], labels[:length]

    def _facts(self) -> dict[str, str]:
        return {key: VALUES[self._integer(len(VALUES))] for key in self._shuffled(KEYS)[: self.facts]}

    def _shuffled(self, keys: str | list[str]) -> list[str]:
        return [keys[i] for i in torch.randperm(len(keys), generator=self.generator).tolist()]

    def _filler(self, length: int) -> list[int]:
        start = self._integer(len(self.text) - length + 1)
        cut: list[int] = self.text[start : start + length].tolist()
        return cut

    def _integer(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self.generator))


def _fact(key: str, value: str) -> str:
    return f"{MARK}{key}{value}"

from types import SimpleNamespace

import pytest
import torch

from titans.evaluation.fact_recall import RecallResult, recall
from titans.evaluation.intervals import wilson


class Echo:
    """Predicts the first byte of the prompt, which it must carry as its state from piece to piece."""

    training = True
    device = torch.device("cpu")

    def __init__(self):
        self.modes = []

    def train(self, mode=True):
        self.modes.append(mode)

    def eval(self):
        self.train(False)

    def __call__(self, piece, cache, use_cache, logits_to_keep):
        assert use_cache
        assert logits_to_keep == 1
        first = piece[:, 0] if cache is None else cache
        logits = torch.nn.functional.one_hot(first, 256).float().unsqueeze(1)
        return SimpleNamespace(logits=logits, cache=first)


@pytest.mark.parametrize("piece_length", [1, 3, 100])
def test_counts_right_answers_over_pieces_with_carried_state(piece_length):
    prompts = torch.tensor([[65, 1, 2, 3], [66, 1, 2, 3], [67, 1, 2, 3]])
    model = Echo()
    result = recall(model, prompts, torch.tensor([65, 66, 90]), distance=7, piece_length=piece_length)
    assert (result.distance, result.asked, result.correct) == (7, 3, 2)
    assert result.accuracy == pytest.approx(2 / 3)
    assert model.modes == [False, True]


def test_wilson_interval():
    # 81 of 263 at 95 %: an often quoted example (Newcombe, 1998, method 3)
    low, high = wilson(81, 263)
    assert low == pytest.approx(0.2553, abs=5e-4)
    assert high == pytest.approx(0.3662, abs=5e-4)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1


def test_accuracy_is_a_share():
    assert RecallResult(1, 4, 1, 0, 1).accuracy == 0.25


def test_wilson_holds_the_share_in_spite_of_rounding():
    for asked in range(1, 300):
        for correct in {0, 1, asked - 1, asked}:
            low, high = wilson(correct, asked)
            assert low <= correct / asked <= high, (correct, asked)

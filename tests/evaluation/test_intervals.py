import pytest

from titans.evaluation.intervals import wilson


def test_wilson_interval():
    # 81 of 263 at 95 %: an often quoted example (Newcombe, 1998, method 3)
    low, high = wilson(81, 263)
    assert low == pytest.approx(0.2553, abs=5e-4)
    assert high == pytest.approx(0.3662, abs=5e-4)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1


def test_wilson_holds_the_share_in_spite_of_rounding():
    for asked in range(1, 300):
        for correct in {0, 1, asked - 1, asked}:
            low, high = wilson(correct, asked)
            assert low <= correct / asked <= high, (correct, asked)

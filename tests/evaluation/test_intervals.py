import math

import pytest

from titans.evaluation.intervals import Mean, student_t, wilson


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


def test_student_t():
    # 97.5 % quantiles as printed in tables
    for freedom, quantile in ((1, 12.706), (2, 4.303), (9, 2.262), (11, 2.201), (15, 2.131), (30, 2.042), (120, 1.980)):
        assert student_t(freedom) == pytest.approx(quantile, abs=6e-4)
    mean = Mean.of([0.5, 0.6, 0.7])
    assert (mean.mean, mean.half_width) == (pytest.approx(0.6), pytest.approx(4.303 * 0.1 / math.sqrt(3)))
    assert Mean.of([0.5]).half_width is None
    assert Mean.of([]) is None

"""Calls in processes of their own: results in order, messages while they work, and an end for all when one fails."""

import multiprocessing
import time

import pytest

from titans.errors import TitansError
from titans.evaluation.processes import call_in_processes

pytestmark = pytest.mark.slow  # every process imports torch


def double(number, tell):
    tell(f"{number} is doubled")
    return 2 * number


def fail_or_sleep(number, tell):
    tell(number)
    if number:
        time.sleep(600)
    raise TitansError("number 0 fails")


def test_results_come_in_order_and_every_message_arrives():
    told = []
    assert call_in_processes(double, [(3,), (1,), (2,)], 2, told.append) == [6, 2, 4]
    assert sorted(told) == ["1 is doubled", "2 is doubled", "3 is doubled"]


def test_one_that_fails_ends_all():
    before, start = multiprocessing.active_children(), time.monotonic()
    with pytest.raises(TitansError, match="number 0 fails"):
        call_in_processes(fail_or_sleep, [(1,), (0,)], 2, lambda message: None)
    assert time.monotonic() - start < 120
    assert multiprocessing.active_children() == before

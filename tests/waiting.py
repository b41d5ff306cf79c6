"""Waiting for what another thread or process does."""

import time


def until(condition, seconds=20):
    """Ask again and again; fail where the condition does not come about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)

import pytest
import torch

from titans.errors import TitansError
from titans.forecasting.windows import Windows

SERIES = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("context", "horizon"), [(1, 1), (7, 4), (4, 7), (30, 20)])
def test_every_window_is_a_slice_of_the_series(context, horizon, same):
    windows = Windows(SERIES, context, horizon)
    assert len(windows) == 50 - context - horizon + 1
    past, future = windows.batch(torch.arange(len(windows)))
    for start in range(len(windows)):
        same(past[start], SERIES[start : start + context])
        same(future[start], SERIES[start + context : start + context + horizon])


def test_batch_takes_any_order_and_repeats(same):
    windows = Windows(SERIES, 7, 4)
    past, future = windows.batch(torch.tensor([39, 0, 39, 12]))
    same(past, torch.stack([SERIES[start : start + 7] for start in (39, 0, 39, 12)]))
    same(future, torch.stack([SERIES[start + 7 : start + 11] for start in (39, 0, 39, 12)]))


@pytest.mark.parametrize("size", [1, 3, 8, 40, 41])
def test_batches_leave_nothing_out(size, same):
    windows = Windows(SERIES, 7, 4)  # 40 windows
    pasts, futures = zip(*windows.batches(size), strict=True)
    assert [len(past) for past in pasts[:-1]] == [size] * (len(pasts) - 1)
    same((torch.cat(pasts), torch.cat(futures)), windows.batch(torch.arange(40)))


def test_batch_is_a_copy(same):
    series = SERIES.clone()
    past, _ = Windows(series, 7, 4).batch(torch.tensor([0, 1]))
    past.zero_()
    same(series, SERIES)


def test_refuses_what_it_cannot_cut():
    with pytest.raises(TitansError, match=r"has 50 steps, but .* of 40 and .* of 11 need 51"):
        Windows(SERIES, 40, 11)
    with pytest.raises(TitansError, match="horizon 0, expected at least 1"):
        Windows(SERIES, 40, 0)
    with pytest.raises(TitansError, match=r"shape \(50,\), expected \[steps, channels\]"):
        Windows(SERIES[:, 0], 40, 1)

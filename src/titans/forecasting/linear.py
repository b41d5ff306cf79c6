"""The best linear forecast of what a window shows, in closed form: where the training of a model starts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from titans.forecasting.training import Batches
from titans.models.forecasting import NORM_EPS, TitansForForecasting

PENALTY = 0.05  # of a squared weight, in units of the mean square of an input
BATCH = 1024
MOST = 16_384  # rows whose errors the quantiles are taken of


@torch.no_grad()
def start_linear(model: TitansForForecasting, windows: Batches) -> bool:
    """Set the model's linear part to ridge regression, for good, and the rest of its head to the errors' quantiles.

    The regression is of the future on the window, both less the window's mean, over all windows and channels. It
    costs seconds, and forecasts better than the same map trained by gradient descent (docs/guide/forecasting.md). Its
    weights then need no gradient: what is trained afterwards is what the memory adds to it.

    Args:
        model: the model, which it changes.
        windows: what to fit: `batch(index)` gives pasts `[..., L, C]` and futures `[..., H, C]` first.

    Returns:
        Whether there was anything to fit: a window without missing values that is not constant. Otherwise the model
        is left as it was.
    """
    length, horizon = model.config.context_length, model.config.horizon
    square = torch.zeros(length, length, dtype=torch.float64)
    product = torch.zeros(length, horizon, dtype=torch.float64)
    for x, y, _ in _rows(model, windows, torch.arange(len(windows))):
        square += x.T @ x
        product += x.T @ y
    size = square.trace() / length
    if not bool(size > 0):
        return False
    weights = torch.linalg.solve(square + PENALTY * size * torch.eye(length, dtype=torch.float64), product)
    model.linear.weight.copy_(weights.T)
    model.linear.bias.zero_()
    model.linear.requires_grad_(False)
    model.head.weight.zero_()
    model.head.bias.zero_()
    if model.config.quantiles is not None:
        some = torch.arange(0, len(windows), -(-len(windows) // BATCH))
        errors = torch.cat([(y - x @ weights) / scale for x, y, scale in _rows(model, windows, some)])
        levels = torch.tensor(model.config.quantiles, dtype=torch.float64)
        model.head.bias.view(-1, horizon, len(levels)).copy_(torch.quantile(errors[:MOST], levels, 0).T)
    return True


def _rows(model: TitansForForecasting, windows: Batches, index: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Iterate over windows of one channel without gaps: past `[R, L]` and future `[R, H]`, centred, and the scale."""
    for some in index.split(BATCH):
        past, future, *_ = windows.batch(some)
        x = past.double().cpu().movedim(-1, -2).reshape(-1, past.shape[-2])
        y = future.double().cpu().movedim(-1, -2).reshape(-1, future.shape[-2])
        whole = x.isfinite().all(1) & y.isfinite().all(1)
        x, y = x[whole], y[whole]
        if not len(x):
            continue
        if not model.config.normalize:
            yield x, y, torch.ones_like(x[:, :1])
            continue
        mean = x.mean(1, keepdim=True)
        yield x - mean, y - mean, (x.var(1, keepdim=True, unbiased=False) + NORM_EPS).sqrt()

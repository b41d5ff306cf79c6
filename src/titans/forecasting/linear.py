"""The best linear forecast of what a window shows, in closed form: where the training of a model starts."""

from __future__ import annotations

import torch

from titans.forecasting.training import Batches
from titans.models.forecasting import TitansForForecasting

PENALTY = 0.05  # of a squared weight, in units of the mean square of an input
BATCH = 1024


@torch.no_grad()
def start_linear(model: TitansForForecasting, windows: Batches) -> bool:
    """Set the model's linear part to ridge regression, for good, and the rest of its head to 0.

    The regression is of the future on the window, both less the window's mean, over all windows and channels. It
    costs seconds, and forecasts better than the same map trained by gradient descent (docs/forecasting.md). Its weights
    then need no gradient: what is trained afterwards is what the memory adds to it.

    Args:
        model: the model, which it changes; quantiles all start at the linear forecast.
        windows: what to fit: `batch(index)` gives pasts `[..., L, C]` and futures `[..., H, C]` first.

    Returns:
        Whether there was anything to fit: a window without missing values that is not constant. Otherwise the model
        is left as it was.
    """
    config = model.config
    length, horizon = config.context_length, config.horizon
    square = torch.zeros(length, length, dtype=torch.float64)
    product = torch.zeros(length, horizon, dtype=torch.float64)
    for index in torch.arange(len(windows)).split(BATCH):
        past, future, *_ = windows.batch(index)
        x = past.double().cpu().movedim(-1, -2).reshape(-1, length)
        y = future.double().cpu().movedim(-1, -2).reshape(-1, horizon)
        whole = x.isfinite().all(1) & y.isfinite().all(1)
        x, y = x[whole], y[whole]
        mean = x.mean(1, keepdim=True) if config.normalize else x.new_zeros(len(x), 1)
        square += (x - mean).T @ (x - mean)
        product += (x - mean).T @ (y - mean)
    size = square.trace() / length
    if not bool(size > 0):
        return False
    weights = torch.linalg.solve(square + PENALTY * size * torch.eye(length, dtype=torch.float64), product)
    model.linear.weight.copy_(weights.T)
    model.linear.bias.zero_()
    model.head.weight.zero_()
    model.head.bias.zero_()
    model.linear.requires_grad_(False)
    return True

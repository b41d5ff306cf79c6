"""The forecasting model: a window of a series in, its horizon out, through the stack of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from titans.models.forecasting_configuration import TitansForecastingConfig
from titans.models.memory_state import MemoryState
from titans.models.stack import TitansStack

NORM_EPS = 1e-5  # the field's: sqrt(variance + 1e-5)
HUBER_DELTA = 1.0


@dataclass
class ForecastOutput(ModelOutput):
    """What `TitansForForecasting` puts out.

    Args:
        loss: where the future is given.
        prediction: the point forecast `[B, H, C]`.
        quantiles: the levels of the configuration, rising, `[B, H, C, Q]`; None without.
        cache: what the memory holds after this window.
    """

    loss: Tensor | None = None
    prediction: Tensor | None = None
    quantiles: Tensor | None = None
    cache: MemoryState | None = None


class TitansForForecasting(TitansStack):
    """Forecasts all time steps of a horizon at once.

    A window is normalised (reversible instance norm), cut into tokens (patches of each channel, patches of all
    channels, or whole channels) and read by the blocks; the head maps all their outputs to the horizon, beside a
    linear map of the window itself.

    A window read with the `cache` of the window before it is forecast by a memory that has learned from both: see
    `titans.forecasting.ForecastStream`.

    Args:
        config: the configuration.
    """

    config_class = TitansForecastingConfig

    def __init__(self, config: TitansForecastingConfig) -> None:
        super().__init__(config)
        mixed = config.num_channels if config.channel_mixing and config.tokens == "patch" else 1
        span = config.patch_length if config.tokens == "patch" else config.context_length
        levels = len(config.quantiles or [0.5])
        outputs = config.horizon * levels * mixed
        self.embed = nn.Linear(mixed * span, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        read_out = config.num_tokens if config.tokens == "patch" else 1
        self.head = nn.Linear(read_out * config.hidden_size, outputs)
        self.linear = nn.Linear(config.context_length, config.horizon)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        past_values: Tensor,
        future_values: Tensor | None = None,
        observed: Tensor | None = None,
        cache: MemoryState | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> ForecastOutput:
        batch, length, channels = past_values.shape
        x = past_values
        mean = x.mean(1, keepdim=True)
        scale = (x.var(1, keepdim=True, unbiased=False) + NORM_EPS).sqrt()
        x = ((x - mean) / scale).transpose(1, 2).flatten(0, 1)  # [B * C, L]
        config = self.config
        short = (config.num_tokens - 1) * config.patch_stride + config.patch_length - length
        tokens = F.pad(x, (short, 0)).unfold(1, config.patch_length, config.patch_stride)
        hidden, state = self.read(self.dropout(self.embed(tokens)), cache, None, use_cache)
        y = self.head(self.dropout(hidden.flatten(1))) + self.linear(x)
        y = y.view(batch, channels, -1).transpose(1, 2)
        prediction = y * scale + mean
        loss = None
        if future_values is not None:
            kind = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}[config.loss]
            loss = kind(prediction, future_values)
        return ForecastOutput(loss=loss, prediction=prediction, cache=state)

"""The configuration of a forecasting model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from titans.layers.memory_config import MemoryConfig
from titans.models.configuration import StackConfig

TOKENS = ("patch", "variate")
LOSSES: dict[str, Callable[..., Tensor]] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}


class TitansForecastingConfig(StackConfig):
    """Configuration of `TitansForForecasting`.

    Args:
        context_length: look-back window L, in time steps. Default 96.
        horizon: time steps H to forecast. Default 96.
        num_channels: channels C of a series; decides the shapes of a model that mixes channels only. Default 1.
        tokens: what a token is: "patch" (some time steps) or "variate" (the whole window of one channel, so that the
            blocks read one channel after the other). Default "patch".
        channel_mixing: a patch holds all channels; off: each channel is a sequence of its own, under shared weights.
            Default: on for variates, which cannot do without, off for patches.
        patch_length: time steps of a patch. Default 16.
        patch_stride: time steps from patch to patch, at most `patch_length`. Default 8.
        normalize: take the window's mean and deviation off each channel and put them back on the forecast
            (reversible instance norm). Default True.
        loss: "mse", "mae" or "huber" (at 1 from squared to absolute), on the scale of the values; without quantiles.
            Default "mse".
        quantiles: levels between 0 and 1 to forecast, trained by the pinball loss; 0.5 must be among them and is the
            point forecast. Default None: the point alone.
        num_future_covariates: covariates F known for the window and the horizon. Default 0.
        num_static_covariates: numbers S known of a series. Default 0.
        dropout: of the tokens and before the head. Default 0.
        **kwargs: the fields of `StackConfig`; the variant is "lmm" by default, and the blocks are small.

    Raises:
        ValueError: a field is out of range or two do not fit together.
    """

    model_type = "titans_forecasting"
    default_variant: ClassVar[str] = "lmm"
    auto_classes = {"AutoConfig": "TitansForecastingConfig", "AutoModel": "TitansForForecasting"}  # noqa: RUF012

    hidden_size: int = 32
    num_hidden_layers: int = 1
    num_attention_heads: int = 2
    num_persistent_tokens: int = 4
    memory: MemoryConfig = MemoryConfig(chunk_size=16, expansion=2)  # frozen
    context_length: int = 96
    horizon: int = 96
    num_channels: int = 1
    tokens: str = "patch"
    channel_mixing: bool | None = None
    patch_length: int = 16
    patch_stride: int = 8
    normalize: bool = True
    loss: str = "mse"
    quantiles: list[float] | None = None
    num_future_covariates: int = 0
    num_static_covariates: int = 0
    dropout: float = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in derived defaults and refuse what cannot work, before anything is built."""
        if self.channel_mixing is None:
            self.channel_mixing = self.tokens == "variate"
        levels: Any = self.quantiles
        if isinstance(levels, tuple):
            self.quantiles = list(levels)  # as JSON gives them back
        super().__post_init__(**kwargs)

    @property
    def num_tokens(self) -> int:
        """Tokens of a window."""
        if self.tokens == "variate":
            return self.num_channels
        return 1 + -(-(self.context_length - self.patch_length) // self.patch_stride)

    def _check_choices(self) -> None:
        super()._check_choices()
        for name, allowed in (("tokens", TOKENS), ("loss", LOSSES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: choose one of {', '.join(allowed)}")
        for name in ("channel_mixing", "normalize"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")

    def _check_sizes(self) -> None:
        super()._check_sizes()
        for name in ("context_length", "horizon", "num_channels", "patch_length", "patch_stride"):
            self._check_whole(name, 1)
        for name in ("num_future_covariates", "num_static_covariates"):
            self._check_whole(name, 0)
        dropout: Any = self.dropout
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:  # not, for NaN
            raise ValueError(f"dropout={self.dropout!r} must be a number of at least 0 and below 1")

    def _check_fit(self) -> None:
        super()._check_fit()
        if self.tokens == "variate" and not self.channel_mixing:
            raise ValueError("tokens='variate' mixes channels: leave channel_mixing unset, or choose tokens='patch'")
        if self.tokens == "patch" and self.patch_length > self.context_length:
            raise ValueError(
                f"patch_length={self.patch_length} is longer than the window, context_length={self.context_length}"
            )
        if self.tokens == "patch" and self.patch_stride > self.patch_length:
            raise ValueError(
                f"patch_stride={self.patch_stride} is longer than a patch, patch_length={self.patch_length}: the steps "
                "between patches would not be read"
            )
        if self.quantiles is not None:
            levels: Any = self.quantiles
            if not isinstance(levels, list) or not all(isinstance(q, float) for q in levels):
                raise ValueError(f"quantiles={levels!r} must be a list of numbers between 0 and 1")
            if not all(0 < q < 1 for q in levels) or sorted(set(levels)) != levels:
                raise ValueError(f"quantiles={levels!r} must rise from above 0 to below 1")
            if 0.5 not in levels:
                raise ValueError(f"quantiles={levels!r} must hold 0.5, which is the point forecast")

"""The forecasting model: a window of a series in, its horizon out, through the stack of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput, can_return_tuple

from titans.layers.mixer import precise
from titans.models.arguments import refuse_attentions, wants_hidden_states
from titans.models.forecasting_configuration import LOSSES, TitansForecastingConfig
from titans.models.memory_state import MemoryState
from titans.models.stack import TitansStack
from titans.ops.tracing import is_concrete

NORM_EPS = 1e-5  # the field's: sqrt(variance + 1e-5)


@dataclass
class ForecastOutput(ModelOutput):
    """What `TitansForForecasting` puts out.

    Args:
        loss: where the future is given.
        prediction: the point forecast `[B, H, C]`: the median, where there are quantiles.
        quantiles: the levels of the configuration, rising, `[B, H, C, Q]`; None without.
        cache: what the memory holds after this window.
        hidden_states: where they are asked for: the tokens `[R, T, D]` that enter each block, and what the last puts
            out, normalised.
    """

    loss: Tensor | None = None
    prediction: Tensor | None = None
    quantiles: Tensor | None = None
    cache: MemoryState | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class TitansForForecasting(TitansStack):
    """Forecasts all time steps of a horizon at once.

    A window is normalised (reversible instance norm, Kim et al., 2022), cut into tokens (patches of each channel,
    patches of all channels, or whole channels) and read by the blocks; the head maps all that they put out to the
    horizon, beside a linear map of the window itself.

    A window that is read with the `cache` of the window before it is forecast by a memory that has learned from both:
    see `titans.forecasting.stream.ForecastStream`.

    Args:
        config: the configuration.
    """

    config_class = TitansForecastingConfig

    def __init__(self, config: TitansForecastingConfig) -> None:
        super().__init__(config)
        width, patches = config.hidden_size, config.tokens == "patch"
        self.channels = config.num_channels if patches and config.channel_mixing else 1  # of a token
        span = config.patch_length if patches else config.context_length
        self.levels = len(config.quantiles or [0.5])
        self.embed = nn.Linear(self.channels * span, width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(
            (config.num_tokens if patches else 1) * width, self.channels * config.horizon * self.levels
        )
        self.linear = nn.Linear(config.context_length, config.horizon)
        if known := config.num_future_covariates:
            self.embed_covariates = nn.Linear(known * span, width, bias=False)
            self.covariate_features = nn.Linear(known, width)
            self.covariate_effects = nn.Linear(width, self.channels * self.levels * width)
        if config.num_static_covariates:
            self.embed_static = nn.Linear(config.num_static_covariates, width, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        past_values: Tensor,
        future_values: Tensor | None = None,
        observed: Tensor | None = None,
        future_covariates: Tensor | None = None,
        static_covariates: Tensor | None = None,
        cache: MemoryState | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> ForecastOutput:
        """Forecast what follows a window.

        Args:
            past_values: the window `[B, L, C]`, of any number type. Pad a shorter history on the left, as not
                observed. A deviation far below 0.003 counts as none, since the norm adds 1e-5 to the variance.
            future_values: what came `[B, H, C]`, for the loss; NaN where it is missing, which does not count.
            observed: `[B, L, C]`, bool, False where a value is missing, whatever stands there. Default: all are. The
                model sees a missing value as the mean of the channel's others (as 0 if it does not normalise), and no
                token in which all are missing. A channel without any is forecast as if its mean and deviation were 0.
            future_covariates: `[B, L + H, F]`, known of the window and the horizon, on a scale of about 1. Those of a
                step of the horizon act on this step alone.
            static_covariates: `[B, S]`, known of each series, on a scale of about 1.
            cache: what the memory held after the window before, of the same series; it is not modified. None: a new
                stream.
            use_cache: return the cache. Default: the configuration's in evaluation, False in training.
            output_hidden_states: return all hidden states. Default: the configuration's, False.
            output_attentions: refused, there and in the configuration.
            **kwargs: ignored, but for `return_dict`: False returns a tuple.

        Returns:
            The forecast, on the scale of the values; `loss`, on that scale too, with `future_values`.

        Raises:
            ValueError: shapes that are not those of the configuration; an observed value or a covariate that is not
                finite, or too large to be squared; a cache of other series; attention weights asked for.
        """
        refuse_attentions(self.config, output_attentions)
        self._check(past_values, future_values, observed, future_covariates, static_covariates)
        past_values = precise(past_values)
        if observed is not None:
            past_values = torch.where(observed, past_values, 0.0)
        x, mean, scale = self._normalise(past_values.transpose(1, 2), observed)  # [B, C, L]
        self._check_numbers(scale if self.config.normalize else x, future_covariates, static_covariates)
        x, known = x.to(self.dtype), None if future_covariates is None else future_covariates.to(self.dtype)
        static = None if static_covariates is None else static_covariates.to(self.dtype)
        tokens, mask = self._tokens(x, observed, known, static)
        self._check_cache(cache, len(tokens))
        keep = wants_hidden_states(self.config, output_hidden_states)
        seen = self.read(self.dropout(tokens), cache, mask, use_cache, keep)
        y = self._head(self.dropout(seen.hidden), known, x.shape[1])  # [B, C, H, Q]
        y = (y + self.linear(x).unsqueeze(-1)).sort(-1).values * scale.unsqueeze(-1) + mean.unsqueeze(-1)
        levels = y.transpose(1, 2)  # [B, H, C, Q]
        quantiles = self.config.quantiles
        prediction = levels[..., quantiles.index(0.5) if quantiles else 0]
        loss = None
        if future_values is not None:
            loss = self._loss(prediction, levels, future_values.to(levels.dtype))
        return ForecastOutput(
            loss=loss,
            prediction=prediction,
            quantiles=levels if quantiles else None,
            cache=seen.state,
            hidden_states=seen.all_hidden,
        )

    @torch.no_grad()
    def forecast(self, past_values: Tensor, **kwargs: Any) -> ForecastOutput:
        """Do as `forward` does, in evaluation mode and without gradients; the mode of each module is left as it was.

        Args:
            past_values: as in `forward`.
            **kwargs: the other arguments of `forward`.

        Returns:
            As `forward`.

        Raises:
            ValueError: as `forward`.
        """
        modes = [(module, module.training) for module in self.modules()]
        try:
            self.train(False)
            output: ForecastOutput = self(past_values, **kwargs)
        finally:
            for module, mode in modes:
                module.training = mode
        return output

    def _normalise(self, x: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Take mean and deviation of what is observed off each channel of `x` `[B, C, L]`; missing values become 0."""
        if not self.config.normalize:
            return x, torch.zeros_like(x[..., :1]), torch.ones_like(x[..., :1])
        if observed is None:
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
            scale = (variance + NORM_EPS).sqrt()
            return (x - mean) / scale, mean, scale
        real = observed.transpose(1, 2)
        count = real.sum(-1, keepdim=True).clamp(min=1)
        mean = x.sum(-1, keepdim=True) / count
        centred = torch.where(real, x - mean, 0.0)
        scale = (centred.square().sum(-1, keepdim=True) / count + NORM_EPS).sqrt()
        return centred / scale, mean, scale

    def _tokens(
        self, x: Tensor, observed: Tensor | None, known: Tensor | None, static: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Embed a normalised window: tokens `[R, T, D]` and which of them hold anything observed, `[R, T]`."""
        tokens = self.embed(self._cut(x))
        mask = None if observed is None else self._cut(observed.transpose(1, 2)).any(-1)
        if mask is not None and is_concrete(mask) and bool(mask.all()):
            mask = None  # as usual, where only some values are missing: without padding the mixers are faster
        repeats = len(tokens) // len(x)  # rows of a window
        if known is not None:
            covariates = known[:, : self.config.context_length].transpose(1, 2)  # [B, F, L]
            covariates = (
                covariates.flatten(1).unsqueeze(1) if self.config.tokens == "variate" else self._patches(covariates)
            )
            tokens = tokens + self.embed_covariates(covariates).repeat_interleave(repeats, 0)
        if static is not None:
            tokens = tokens + self.embed_static(static).unsqueeze(1).repeat_interleave(repeats, 0)
        return tokens, mask

    def _cut(self, x: Tensor) -> Tensor:
        """Cut `[B, C, L]` into what a token holds, `[R, T, S]`: R is B C where each channel is a sequence, else B."""
        if self.config.tokens == "variate":
            return x
        return self._patches(x if self.config.channel_mixing else x.flatten(0, 1).unsqueeze(1))

    def _patches(self, x: Tensor) -> Tensor:
        """Cut `[R, M, L]` into patches of all M channels, `[R, T, M P]`; what lacks on the left is 0."""
        config = self.config
        covered = (config.num_tokens - 1) * config.patch_stride + config.patch_length
        x = F.pad(x, (covered - config.context_length, 0)).unfold(-1, config.patch_length, config.patch_stride)
        return x.transpose(1, 2).flatten(2)

    def _head(self, hidden: Tensor, known: Tensor | None, channels: int) -> Tensor:
        """Turn what the blocks put out, `[R, T, D]`, into the horizon of each channel, `[B, C, H, Q]`.

        The effect of a covariate on a step is bilinear: in features of the step's covariates, and in how strongly
        the window says that these act here.
        """
        horizon = self.config.horizon
        variate = self.config.tokens == "variate"
        y: Tensor = self.head(hidden if variate else hidden.flatten(1)).view(-1, channels, horizon, self.levels)
        if known is None:
            return y
        features = F.gelu(self.covariate_features(known[:, -horizon:])).unsqueeze(1)  # [B, 1, H, D]
        window = hidden if variate else hidden.mean(1)
        effects: Tensor = self.covariate_effects(window).view(-1, channels, self.levels, hidden.shape[-1])
        return y + features @ effects.transpose(-1, -2)

    def _loss(self, prediction: Tensor, levels: Tensor, future: Tensor) -> Tensor:
        missing = future.isnan()
        if not self.config.quantiles:
            future = torch.where(missing, prediction.detach(), future)
            losses = LOSSES[self.config.loss](prediction, future, reduction="none")
        else:
            level = torch.tensor(self.config.quantiles, dtype=levels.dtype, device=levels.device)
            error = torch.where(missing.unsqueeze(-1), 0.0, future.unsqueeze(-1) - levels)
            losses = 2 * torch.maximum(level * error, (level - 1) * error).mean(-1)  # at 0.5 the absolute error
        return losses.sum() / (~missing).sum().clamp(min=1)

    def _check(
        self, past: Tensor, future: Tensor | None, observed: Tensor | None, known: Tensor | None, static: Tensor | None
    ) -> None:
        """Refuse shapes that are not those of the configuration."""
        config = self.config
        length, horizon = config.context_length, config.horizon
        if past.dim() != 3 or past.shape[1] != length or 0 in past.shape:
            raise ValueError(f"past_values has shape {tuple(past.shape)}: expected [batch, {length}, channels]")
        batch, _, channels = past.shape
        if config.channel_mixing and channels != config.num_channels:
            raise ValueError(f"past_values holds {channels} channels: this model mixes {config.num_channels}")
        covariates, statics = config.num_future_covariates, config.num_static_covariates
        for name, x, expected in (
            ("future_values", future, (batch, horizon, channels)),
            ("observed", observed, (batch, length, channels)),
            ("future_covariates", known, (batch, length + horizon, covariates) if covariates else None),
            ("static_covariates", static, (batch, statics) if statics else None),
        ):
            required = name.endswith("covariates") and expected is not None
            found = None if x is None else tuple(x.shape)
            if found != expected and (x is not None or required):
                raise ValueError(f"{name} has shape {found}: expected {'none' if expected is None else list(expected)}")
        if observed is not None and observed.dtype != torch.bool:
            raise ValueError(f"observed is {observed.dtype}: expected torch.bool, False where a value is missing")

    def _check_numbers(self, past: Tensor, known: Tensor | None, static: Tensor | None) -> None:
        """Refuse what is not finite; `past` is the window's scale, or the window where it has none."""
        if is_concrete(past) and not bool(past.isfinite().all()):
            raise ValueError(
                "past_values holds NaN, infinity or numbers too large to be squared: mark missing values as not "
                "observed, and scale large ones"
            )
        for name, x in (("future_covariates", known), ("static_covariates", static)):
            if x is not None and is_concrete(x) and not bool(x.isfinite().all()):
                raise ValueError(f"{name} holds NaN or infinity: fill in what is not known")

    def _check_cache(self, cache: MemoryState | None, rows: int) -> None:
        """Refuse memories of other series, which would be repeated as those of beams are, in no order of channels."""
        held = next(cache.tensors(), None) if isinstance(cache, MemoryState) else None
        if held is not None and len(held) != rows:
            raise ValueError(
                f"the cache holds {len(held)} memories and the window {rows} "
                f"{'series' if self.config.channel_mixing else 'channels of series'}: pass a cache of the same ones"
            )

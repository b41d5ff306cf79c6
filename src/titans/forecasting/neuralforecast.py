"""The forecasting model as a model of NeuralForecast, to be used beside PatchTST, iTransformer and the rest."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from titans.errors import TitansError
from titans.extras import missing
from titans.models.configuration import StackConfig
from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig

try:
    from neuralforecast.common._base_model import BaseModel
    from neuralforecast.core import MODEL_FILENAME_DICT
    from neuralforecast.losses.pytorch import MAE, HuberIQLoss, HuberMQLoss, IQLoss, MQLoss
    from neuralforecast.models import PatchTST
except ImportError as error:
    raise missing(error, "forecast", "comparing with other models") from error

_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(PatchTST).parameters.items()
    if name in inspect.signature(BaseModel).parameters and parameter.default is not parameter.empty
}
"""What all models of the library take, as PatchTST has it."""
_STRIDE = 8  # as PatchTST's


class Titans(BaseModel):  # type: ignore[misc]
    """A forecaster with neural memory that NeuralForecast trains and queries: one series at a time, all steps at once.

    Each series is a sequence of patches, read under weights that all share. `core` is the `TitansForForecasting`
    inside. Its own normalisation of the window is off where it cannot be undone: for the parameters of a
    distribution, which `scaler_type` brings to the scale of the values, and where the window is left out.

    Args:
        h: steps to forecast.
        input_size: look-back window, in steps; below 1: three times `h`.
        variant: "lmm" (memory alone), "mac" (memory as context), "mag" (memory as gate), "mal" (memory as layer), or
            a twin without memory: "swa", "none". Default "lmm".
        hidden_size: width of the blocks. Default 32.
        encoder_layers: blocks. Default 1.
        n_heads: heads of the attention, and of the memory. Default 2.
        dropout: of the tokens and before the head. Default 0.
        patch_len: steps of a patch; cut to `input_size`. Default 16.
        stride: steps from patch to patch, at most `patch_len`; cut where that is. Default 8, or `patch_len` if shorter.
        config: other fields of `StackConfig`, such as `{"memory": {"depth": 1}}`.
        loss: point, quantile or distribution loss of `neuralforecast.losses.pytorch`. Default `MAE()`.
        scaler_type: temporal scaler of each window. Default: "standard" for losses that take more than values on their
            own scale, the distributions and implicit quantiles (`IQLoss`); else "identity".
        **arguments: all others are those of the library's `PatchTST`, with its defaults: `stat_exog_list`,
            `hist_exog_list` and `futr_exog_list`, columns of covariates on a scale of about 1 (see `scaler_type` here
            and `local_scaler_type` of NeuralForecast); `exclude_insample_y`, `valid_loss`, `max_steps`,
            `learning_rate`, `batch_size`, `windows_batch_size`, `val_check_steps`, `early_stop_patience_steps`,
            `random_seed` (of the initial weights, too), `alias`, `optimizer`, and those of Lightning's Trainer.

    Raises:
        TitansError: arguments of the network are out of range or do not fit together, or `config` holds a field that
            there is not or that another argument decides.
    """

    EXOGENOUS_FUTR = True
    EXOGENOUS_HIST = True
    EXOGENOUS_STAT = True
    MULTIVARIATE = False
    RECURRENT = False

    def __init__(
        self,
        h: int,
        input_size: int,
        *,
        variant: str = "lmm",
        hidden_size: int = 32,
        encoder_layers: int = 1,
        n_heads: int = 2,
        dropout: float = 0.0,
        patch_len: int = 16,
        stride: int | None = None,
        config: dict[str, Any] | None = None,
        loss: Any = None,
        scaler_type: str | None = None,
        **arguments: Any,
    ) -> None:
        loss = MAE() if loss is None else loss
        if scaler_type is None:
            maps_on = loss.is_distribution_output or isinstance(loss, IQLoss | HuberIQLoss)
            scaler_type = "standard" if maps_on else "identity"
        others = {"input_size": input_size, "loss": loss, "scaler_type": scaler_type}
        super().__init__(h=h, **(_DEFAULTS | arguments | others))
        length = min(patch_len, self.input_size)
        cut = stride is None or length < patch_len  # nobody asked for a patch so short with a stride so long
        fields = {
            "variant": variant,
            "hidden_size": hidden_size,
            "num_hidden_layers": encoder_layers,
            "num_attention_heads": n_heads,
            "dropout": dropout,
            "patch_length": length,
            "patch_stride": min(_STRIDE if stride is None else stride, length) if cut else stride,
        }
        self.core = self._build(fields, config or {})

    def _build(self, fields: dict[str, Any], others: dict[str, Any]) -> TitansForForecasting:
        """Build the network that puts out what the loss wants of each step.

        The levels of a quantile loss are the network's own. The P parameters of a distribution have no order, so each
        is a step of its own in a horizon P times as long, and covariates say which parameter a step is.
        """
        if unknown := sorted(others.keys() - (StackConfig.hints().keys() - fields.keys())):
            raise TitansError(
                f"config holds {', '.join(unknown)}: expected fields of StackConfig that no argument sets"
            )
        quantiles = None
        self.parameters_per_step, self.ranks = self.loss.outputsize_multiplier, None
        if isinstance(self.loss, MQLoss | HuberMQLoss):
            levels = [round(q, 6) for q in self.loss.quantiles.tolist()]  # float32 there
            quantiles = sorted({*levels, 0.5})
            self.parameters_per_step, self.ranks = 1, [quantiles.index(q) for q in levels]
        covariates = self.futr_exog_size + self.hist_exog_size
        if covariates and self.parameters_per_step > 1:
            covariates += self.parameters_per_step
        try:
            config = TitansForecastingConfig(
                **fields,
                **others,
                context_length=self.input_size,
                horizon=self.h * self.parameters_per_step,
                normalize=not self.loss.is_distribution_output and not self.exclude_insample_y,
                quantiles=quantiles,
                num_future_covariates=covariates,
                num_static_covariates=self.stat_exog_size,
            )
            return TitansForForecasting(config)
        except ValueError as error:
            raise TitansError(str(error)) from error

    def forward(self, windows_batch: dict[str, Any]) -> Tensor:
        """Forecast what follows each window.

        Args:
            windows_batch: `insample_y` and `insample_mask` `[B, L, 1]`, `futr_exog` `[B, L + h, F]`, `hist_exog`
                `[B, L, X]`, `stat_exog` `[B, S]`; the last three None where there are none.

        Returns:
            What the loss wants of each step, `[B, h, outputs]`.
        """
        window, observed = windows_batch["insample_y"], windows_batch["insample_mask"] > 0
        output = self.core(
            window,
            observed=None if bool(observed.all()) else observed,  # a mask costs half the speed
            future_covariates=self._covariates(windows_batch["futr_exog"], windows_batch["hist_exog"]),
            static_covariates=windows_batch["stat_exog"],
            use_cache=False,
        )
        if self.ranks is not None:
            return output.quantiles[:, :, 0, self.ranks]  # type: ignore[no-any-return]
        return output.prediction.view(len(window), self.h, -1)  # type: ignore[no-any-return]

    def _covariates(self, known: Tensor | None, past: Tensor | None) -> Tensor | None:
        """Join covariates `[B, L + h, F]` and, as 0 in the horizon, `[B, L, X]`; one step for each parameter of a step.

        Returns:
            `[B, L + h P, F + X + P]`; without the last P where P is 1.
        """
        parts = [] if known is None else [known]
        if past is not None:
            parts.append(F.pad(past, (0, 0, 0, self.h)))
        if not parts:
            return None
        joined, count = torch.cat(parts, -1), self.parameters_per_step
        if count == 1:
            return joined
        joined = F.pad(joined, (0, count))
        window, horizon = joined.split([self.input_size, self.h], 1)
        horizon = horizon.repeat_interleave(count, 1)
        horizon[..., -count:] = torch.eye(count, dtype=joined.dtype, device=joined.device).repeat(self.h, 1)
        return torch.cat((window, horizon), 1)


# NeuralForecast loads models by the names that it knows.
MODEL_FILENAME_DICT["titans"] = Titans

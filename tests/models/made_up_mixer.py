"""A token mixer from outside the package, whole in one file: what somebody writes who adds one."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from titans import register_mixer
from titans.layers.mixer import Mixer
from titans.ops.state import State


class LeakyAverageState(State):
    average: Tensor  # [B, D]


class LeakyAverage(Mixer):
    """An average of all tokens, of which later ones count more: `h_t = a h_{t-1} + (1 - a) x_t W`, `y_t = h_t V`.

    Args:
        hidden_size: width D.
        start: the a of all channels before training.
    """

    component = "leaky averages"

    def __init__(self, hidden_size: int, start: float = 0.9) -> None:
        super().__init__()
        self.hidden_size, self.initial_leak = hidden_size, start
        self.in_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.leak = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        return cls(config.hidden_size, **options)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.leak, math.log(self.initial_leak / (1 - self.initial_leak)))

    def flops(self, context: int) -> float:
        return 4 * self.hidden_size

    def empty_state(self, batch_size: int) -> LeakyAverageState:
        return LeakyAverageState(self.leak.new_zeros(batch_size, self.hidden_size))

    def mix(self, x: Tensor, state: LeakyAverageState, lengths: Tensor | None) -> tuple[Tensor, LeakyAverageState]:
        average, averages = state.average, []
        for t, token in enumerate(self.in_proj(x).unbind(1)):
            read = torch.lerp(token, average, self.leak.sigmoid())
            average = read if lengths is None else torch.where((t < lengths).unsqueeze(1), read, average)
            averages.append(average)
        return self.out_proj(torch.stack(averages, 1)), LeakyAverageState(average)


register_mixer("leaky_average", LeakyAverage)

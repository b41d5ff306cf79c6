"""The options of a neural memory: declared and checked in one place, for layers and models alike."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

from titans.ops.associative_memory import ACTIVATIONS, RULES

GATES = ("token", "chunk")


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
    """The options of `titans.NeuralMemory`, and the field `memory` of `titans.TitansConfig`.

    Args:
        num_heads: memory heads H, each a network of its own on `D / H` channels; of the other recurrent mixers of a
            model, too. Default: the layer's argument; in a model `num_attention_heads`.
        depth: layers L of the memory MLP; 1 is a matrix. Default 2.
        expansion: width of its hidden layers in units of `D / H`. Default 4.
        chunk_size: tokens b whose gradients share one anchor; in other recurrent mixers of a model it changes speed
            only. Default 64.
        rule: "chunk" (mini-batch rule) or "token" (online, exact in the last layer; its norm is between the layers and
            not on the output). Default "token".
        hidden_lr: under rule "token" the step size of the layers below the last, in units of `theta / chunk_size`, at
            most 1; 0: they stay as they were trained, and only the last is part of the state. Above 0, forgetting fades
            them within tens of thousands of tokens: switch it off for streams as long. Default 0.
        activation: "gelu", "silu" or "relu". Default "gelu".
        residual: add the query to what is read. Default: on under rule "chunk", off under "token".
        norm: normalise the MLP's output. Default: on under rule "chunk"; not possible under "token".
        momentum: keep past surprise (eta); off: eta = 0. Default True.
        forgetting: let the memory decay (alpha); off: alpha = 0. Default True.
        channelwise_forgetting: one forget gate per channel instead of per head. Default False.
        use_short_conv: short convolutions on queries, keys and values; of DeltaNet and Gated DeltaNet in a model, too.
            Default True.
        gates: "token", or "chunk" for gates shared by a chunk, taken from its first token. Default "token".
        limit_steps: shorten the gradients of a deep or normed memory to the curvature they meet, without which
            repeated data is lost again and again (docs/lab-notes/stability.md). Off: the plain gradient. Default True.
        theta_max: bound of the step size; with momentum below 0.5 under rule "chunk" and below 1 under "token".
            Default: `0.5 / chunk_size` under "chunk", 0.5 under "token": equal keys of one chunk correct an error once;
            1 with free gates.
        free_gates: step and momentum do not depend on each other and reach their bounds: `theta = theta_max sigmoid(.)`
            and `eta = sigmoid(.)`, the paper's gates. What is then written may grow without bound. Default False.
        gate_floor: in evaluation, a token whose write gate (the sigmoid in theta) is open less than this share neither
            writes nor forgets; in training gates only come near 0, so that they can open again. Default 0: none.

    Raises:
        ValueError: an option is out of range or two do not fit together.
    """

    num_heads: int | None = None
    depth: int = 2
    expansion: int = 4
    chunk_size: int = 64
    rule: str = "token"
    hidden_lr: float = 0.0
    activation: str = "gelu"
    residual: bool | None = None
    norm: bool | None = None
    momentum: bool = True
    forgetting: bool = True
    channelwise_forgetting: bool = False
    use_short_conv: bool = True
    gates: str = "token"
    limit_steps: bool = True
    theta_max: float | None = None
    free_gates: bool = False
    gate_floor: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("num_heads", "depth", "expansion", "chunk_size"):
            value = getattr(self, name)
            if not (name == "num_heads" and value is None) and (type(value) is not int or value < 1):
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        for name, allowed in (("rule", RULES), ("activation", ACTIVATIONS), ("gates", GATES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: choose one of {', '.join(allowed)}")
        for field in dataclasses.fields(self):
            if "bool" in str(field.type) and not isinstance(getattr(self, field.name), bool | type(field.default)):
                raise ValueError(f"{field.name}={getattr(self, field.name)!r} must be True or False")
        self._check_numbers()
        if self.rule == "token" and self.norm:
            raise ValueError("rule='token' needs norm=False: it solves for a linear output")
        if self.has_fixed_features and self.residual:
            raise ValueError("residual=True needs depth=1 or hidden_lr: fixed layers stand between query and memory")
        if self.rule == "chunk" and self.hidden_lr:
            raise ValueError("hidden_lr needs rule='token': under rule='chunk' all layers learn alike")
        if self.rule == "token" and self.gates == "chunk":
            raise ValueError("gates='chunk' needs rule='chunk': under the token rule a chunk has no meaning")

    def _check_numbers(self) -> None:
        theta: Any = self.theta_max
        floor: Any = self.gate_floor
        hidden_lr: Any = self.hidden_lr
        if not isinstance(hidden_lr, int | float) or not 0 <= hidden_lr <= 1:
            raise ValueError(f"hidden_lr={hidden_lr!r} must be a number from 0 to 1")
        if theta is not None and not (isinstance(theta, int | float) and 0 < theta < math.inf):  # not, for NaN
            raise ValueError(f"theta_max={theta!r} must be a positive number")
        if not isinstance(floor, int | float) or not 0 <= floor < 1:
            raise ValueError(f"gate_floor={floor!r} must be a share of an open gate: at least 0 and less than 1")
        if theta is not None and self.momentum and not self.free_gates and theta >= self.theta_bound:
            raise ValueError(
                f"theta_max={theta} leaves no room for momentum: keep it below {self.theta_bound}, "
                "or set momentum=False"
            )

    def updated(self, options: Mapping[str, Any]) -> MemoryConfig:
        """Change some options.

        Args:
            options: by name.

        Returns:
            The options with these changes.

        Raises:
            ValueError: there is no such option, it is out of range, or it does not fit the others.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in options:
            if name not in names:
                close = difflib.get_close_matches(str(name), names, 1)
                hint = f"did you mean {close[0]}?" if close else f"choose among {', '.join(names)}"
                raise ValueError(f"a memory has no option {name}: {hint}")
        return dataclasses.replace(self, **options)

    @property
    def theta_bound(self) -> float:
        """Step size at which no momentum would be left: half as long where gradients are up to a chunk old."""
        return 1.0 if self.rule == "token" or self.chunk_size == 1 else 0.5

    @property
    def has_fixed_features(self) -> bool:
        """Whether the layers below the last stay as they were trained, and are no part of the state."""
        return self.has_feature_norm and self.hidden_lr == 0

    @property
    def has_feature_norm(self) -> bool:
        """Whether what layers hand to the next is centred and brought to length 1, as the online rule needs it."""
        return self.rule == "token" and self.depth > 1

    @property
    def has_norm(self) -> bool:
        """Whether the MLP's output is normalised."""
        return self.rule == "chunk" if self.norm is None else self.norm

    @property
    def has_residual(self) -> bool:
        """Whether the query is added to what is read."""
        return self.rule == "chunk" if self.residual is None else self.residual

    @property
    def max_step(self) -> float:
        """Bound of the step size: `theta_max`, or its default."""
        bounded = 0.5 if self.rule == "token" else 0.5 / self.chunk_size
        return self.theta_max or (1.0 if self.free_gates else bounded)

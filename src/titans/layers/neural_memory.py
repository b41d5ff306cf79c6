"""The neural memory layer: projections, gates and read-out around the associative memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, Self, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.memory_config import MemoryConfig
from titans.layers.mixer import Mixer, bounded, check_positive, last, pad_right, precise, valid
from titans.layers.projection import ConvolvedProjection
from titans.layers.registry import register_mixer
from titans.layers.writing import Observer, WriteState, Written, write
from titans.ops import AssociativeMemoryState, initial_state
from titans.ops.associative_memory import memory_features, read_memory
from titans.ops.gated_rms_norm import gated_rms_norm
from titans.ops.short_conv import clip_rms
from titans.ops.state import State

FORGET_BIAS = -8.0  # alpha = sigmoid(. - 8): a new memory forgets a 3,000th per token
INITIAL_SCALE, INITIAL_NORM = 0.1, 0.3  # of a new memory's answers: what is written stands out (docs/lab-notes)
OUTPUT_EPS = 1e-6
MAX_GATE_INPUT_RMS = 1.0  # keeps gates of inputs of any scale off 0 and 1, where a deep memory could end at 0 for good


class NeuralMemoryState(State):
    """State of `NeuralMemory`.

    Args:
        memory: the associative memory.
        conv_state: last inputs of the short convolutions, of queries, keys and values, `[B, 3, 3 D]`; None without.
        gates: gates of the current chunk `[B, G]`, where a chunk shares them; None otherwise.
        writing: which tokens are written; None: every one.
    """

    memory: AssociativeMemoryState
    conv_state: Tensor | None
    gates: Tensor | None
    writing: WriteState | None = None


class NeuralMemory(Mixer):
    """A memory that learns at test time (the paper's LMM; docs/semantics.md, sections 1 to 4).

    Keys, values and queries are `SiLU(conv(x W))`, keys and queries of unit length per head; the memory is an
    MLP per head, written and read by `titans.ops.associative_memory`; what is read is normalised, gated by
    the input and projected. Inputs may be anything: token embeddings, patches of an image, samples of a
    sensor. Beyond ±10,000 they are clipped.

    The gates are `eta = eta_max sigmoid(.)` and `theta = theta_max (1 - eta) sigmoid(.)`, where `eta_max` follows
    from `theta_max`: chosen so that a chunk of equal keys cannot amplify an error (docs/lab-notes/stability.md). With
    `free_gates` they are the paper's.

    Args:
        hidden_size: width D of the input and the output; a multiple of `num_heads`.
        num_heads: memory heads H, each an MLP of its own on `D / H` channels.
        config: options to start from. Default: those of `MemoryConfig`.
        persistent_tokens: learned tokens read once, before the first token of a stream. Default 0.
        **options: of `titans.layers.memory_config.MemoryConfig`, by name: depth, expansion, chunk_size, rule and more.

    Raises:
        ValueError: a value is out of range or two do not fit together.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        config: MemoryConfig | None = None,
        *,
        persistent_tokens: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size, num_heads=num_heads)
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size={hidden_size} is not a multiple of num_heads={num_heads}")
        if persistent_tokens < 0:
            raise ValueError(f"persistent_tokens={persistent_tokens} must not be negative")
        config = (config or MemoryConfig()).updated({**options, "num_heads": num_heads})
        width = hidden_size // num_heads
        self.hidden_size, self.num_heads, self.config = hidden_size, num_heads, config
        self.options: dict[str, Any] = {
            "chunk_size": config.chunk_size,
            "rule": config.rule,
            # a linear output has no limit
            "limit_steps": config.limit_steps and config.rule == "chunk" and (config.depth > 1 or config.has_norm),
            "hidden_lr": config.hidden_lr / config.chunk_size if config.rule == "token" else 1.0,
        }
        self.network_options: dict[str, Any] = {
            "activation": config.activation,
            "residual": config.has_residual,
            "feature_norm": config.has_feature_norm,
        }
        norms = ("l2norm", "l2norm", "clip_rms")  # of q, k, v
        self.qkv_proj = ConvolvedProjection(hidden_size, num_heads, norms, config.use_short_conv)
        forget_gates = hidden_size if config.channelwise_forgetting else num_heads
        # Of theta, eta and alpha.
        self.gate_sizes = [num_heads, num_heads * config.momentum, forget_gates * config.forgetting]
        self.gates = nn.Linear(hidden_size, sum(self.gate_sizes))
        widths = [width] + [width * config.expansion] * (config.depth - 1) + [width]
        weights = [torch.empty(num_heads, i, o) for i, o in pairwise(widths)]
        fixed = len(weights) - 1 if config.has_fixed_features else 0
        self.feature_weights = nn.ParameterList(weights[:fixed])
        self.initial_weights = nn.ParameterList(weights[fixed:])
        self.memory_norm = nn.Parameter(torch.ones(num_heads, width)) if config.has_norm else None
        self.o_norm = nn.RMSNorm(width, eps=OUTPUT_EPS)
        self.g_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.persistent = nn.Parameter(torch.empty(persistent_tokens, hidden_size)) if persistent_tokens else None
        self.observer: Observer | None = None  # told what became of the tokens; see `titans.watch`
        self.reset_parameters()

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        options = {"persistent_tokens": config.num_persistent_tokens, **options}
        return cls(config.hidden_size, config.memory.num_heads, config.memory, **options)

    @property
    def size(self) -> int:
        """Weights P of the memories of all heads."""
        return sum(w.numel() for w in self.initial_weights)

    def flops(self, context: int) -> float:
        """Count 12 P: 2 P each for the keys' way through the network and their errors' way back, updates and reads.

        Fixed layers of F weights add 4 F, for keys and queries.
        """
        features: int = sum(w.numel() for w in self.feature_weights)
        return 12 * self.size + 4 * features

    def state_limits(self) -> dict[str, int]:
        """Return the last place of a chunk; see `Mixer.state_limits`."""
        return {"memory.offset": self.config.chunk_size - 1}

    @property
    def eta_max(self) -> float:
        """Bound of the momentum: past surprise moves it no further than a step (docs/lab-notes/stability.md)."""
        return 1.0 if self.config.free_gates else 1 - self.config.max_step / self.config.theta_bound

    def reset_parameters(self) -> None:
        """Initialise what has no standard initialisation: the initial memory, the gates, the persistent tokens."""
        *below, last_layer = [*self.feature_weights, *self.initial_weights]
        for w in below:
            # Features have length 1: products near 1 lie where the activation is no longer a straight line.
            nn.init.normal_(w, std=1.0 if self.config.has_feature_norm else w.shape[1] ** -0.5)
        scale = INITIAL_SCALE if self.memory_norm is None else 1.0
        nn.init.normal_(last_layer, std=scale * last_layer.shape[1] ** -0.5)
        if self.memory_norm is not None:
            nn.init.constant_(self.memory_norm, INITIAL_NORM)
        nn.init.zeros_(self.gates.bias)
        if self.persistent is not None:
            nn.init.normal_(self.persistent)

    def empty_state(self, batch_size: int) -> NeuralMemoryState:
        """Return the state before any token, persistent ones included; see `Mixer.empty_state`."""
        gates = self.o_norm.weight.new_zeros(1, sum(self.gate_sizes)) if self.config.gates == "chunk" else None
        if not isinstance(self.initial_weights, nn.ParameterList):
            raise ValueError(
                f"initial_weights stand in a {type(self.initial_weights).__name__}: a memory starts from them without "
                "calling a module, so that no adapter reaches them; train them whole, with requires_grad_ or, in PEFT, "
                "with the layer in modules_to_save"
            )
        weights = [w.clone() for w in self.initial_weights]  # a value: an optimizer step must not change it
        state = NeuralMemoryState(initial_state(weights), self.qkv_proj.initial_conv_state(), gates)
        return state.expand(batch_size)

    def start(self, batch_size: int) -> NeuralMemoryState:
        """Return the state in which `batch_size` streams start: the persistent tokens have been read."""
        return self.after(self.persistent).expand(batch_size)

    def after(self, persistent: Tensor | None) -> NeuralMemoryState:
        """Return the state, of one row, of a memory that has read persistent tokens `[n, D]` or None.

        They belong to the model and not to a stream: no observer sees them.
        """
        state = self.empty_state(1)
        return state if persistent is None else self._write(persistent.unsqueeze(0), state, None, measure=False)[1]

    @overload
    def forward(
        self, x: Tensor, state: NeuralMemoryState | None = None, mask: Tensor | None = None, *,
        return_surprise: Literal[False] = False,
    ) -> tuple[Tensor, NeuralMemoryState]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, state: NeuralMemoryState | None = None, mask: Tensor | None = None, *,
        return_surprise: Literal[True],
    ) -> tuple[Tensor, NeuralMemoryState, Tensor]: ...  # fmt: skip
    def forward(
        self,
        x: Tensor,
        state: NeuralMemoryState | None = None,
        mask: Tensor | None = None,
        *,
        return_surprise: bool = False,
    ) -> tuple[Tensor, NeuralMemoryState] | tuple[Tensor, NeuralMemoryState, Tensor]:
        """Write each token, then read it at the memory as of that token.

        Args:
            x: tokens `[B, T, D]`, T at least 1.
            state: what an earlier call returned, to continue its stream; None starts a new one. Never
                modified.
            mask: `[B, T]`, bool, False for padding, which is neither read nor written; its output is 0.
            return_surprise: also return the norm of each token's gradient, the momentary surprise.

        Returns:
            `(y, state)`: outputs `[B, T, D]` and the state after the last token; with `return_surprise`
            `(y, state, surprise)` with surprise `[B, T, H]`, not differentiable.

        Raises:
            ValueError: the shapes of x, mask and state do not fit the layer, or x is not finite.
        """
        if not return_surprise:
            return super().forward(x, state, mask)
        self.check(x, state, mask)
        state = self.start(x.shape[0]) if state is None else state
        x, lengths, restore = pad_right(x, mask)
        y, state, written = self._write(x, state, lengths, measure=True)
        assert written.surprise is not None  # measured
        return restore(y), state, restore(written.surprise)

    def read(self, x: Tensor, state: NeuralMemoryState | None = None, mask: Tensor | None = None) -> Tensor:
        """Read without writing: what `forward` would return if no token changed the memory.

        Args:
            x: as in `forward`.
            state: as in `forward`.
            mask: as in `forward`.

        Returns:
            What the memory holds for each token, `[B, T, D]`.
        """
        self.check(x, state, mask)
        state = self.start(x.shape[0]) if state is None else state
        x, lengths, restore = pad_right(bounded(x), mask)
        (q, _, _), _ = self.qkv_proj(x, state.conv_state, lengths)
        return restore(self._norm_gate_project(self.recall(q, state.memory.weights), x))

    def mix(self, x: Tensor, state: NeuralMemoryState, lengths: Tensor | None) -> tuple[Tensor, NeuralMemoryState]:
        """Write and read tokens whose padding, if any, is on the right; see `Mixer.mix`."""
        y, state, written = self._write(x, state, lengths, measure=self.observer is not None)
        if self.observer is not None:
            self.observer(written, lengths)
        return y, state

    def recall(self, q: Tensor, weights: list[Tensor]) -> Tensor:
        """Read the memory only: `M*(q)`.

        Args:
            q: queries `[B, T, H, d]`, of any length; the memory sees their direction.
            weights: the memory's weights, L tensors `[B, H, d_in, d_out]`.

        Returns:
            What the memory holds, `[B, T, H, d]`, before output norm and gate.
        """
        features = self._features(F.normalize(q, dim=-1))
        return read_memory(features, weights, **self.network_options, norm_weight=self.memory_norm).to(q.dtype)

    def _write(
        self, x: Tensor, state: NeuralMemoryState, lengths: Tensor | None, measure: bool
    ) -> tuple[Tensor, NeuralMemoryState, Written]:
        """The layer, from the tokens to the output, the state after them, and what became of each token."""
        x = bounded(x)
        (q, k, v), conv_state = self.qkv_proj(x, state.conv_state, lengths)  # [B, T, H, d] each
        theta, alpha, eta, gates = self._gates(x, state, lengths)  # [B, T, H] each
        q, k = self._features(q), self._features(k)
        options = {**self.options, **self.network_options, "norm_weight": self.memory_norm}
        written = write((q, k, v, theta, alpha, eta), state.memory, state.writing, valid(x, lengths), measure, options)
        y = self._norm_gate_project(written.y, x)
        return y, NeuralMemoryState(written.memory, conv_state, gates, written.writing), written

    def _features(self, x: Tensor) -> Tensor:
        """Carry keys or queries `[B, T, H, d]` through the fixed layers, where there are any."""
        return memory_features(x, list(self.feature_weights), activation=self.config.activation)

    def _gates(
        self, x: Tensor, state: NeuralMemoryState, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Compute theta, alpha and eta, `[B, T, H]` (alpha channel-wise `[B, T, H, d]`), and the gates to carry."""
        logits, carried = self.gates(clip_rms(x, MAX_GATE_INPUT_RMS)), None
        if state.gates is not None:
            logits, carried = self._share(logits, state, lengths)
        logits = precise(logits)
        step, momentum, forget = logits.split(self.gate_sizes, -1)  # [B, T, H] each; empty where switched off
        opening, off = step.sigmoid(), torch.zeros_like(step)
        eta = self.eta_max * momentum.sigmoid() if self.gate_sizes[1] else off
        alpha = (forget + FORGET_BIAS).sigmoid() if self.gate_sizes[2] else off
        if alpha.shape[-1] > self.num_heads:
            alpha = alpha.unflatten(-1, (self.num_heads, -1))
        if self.config.gate_floor and not self.training:
            is_open = opening >= self.config.gate_floor
            opening = opening * is_open
            alpha = alpha * (is_open if alpha.dim() == 3 else is_open.unsqueeze(-1))
        free = 1 if self.config.free_gates else 1 - eta
        return self.config.max_step * free * opening, alpha, eta, carried

    def _share(self, logits: Tensor, state: NeuralMemoryState, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Give every token the gates of the first token of its chunk, which an earlier call may have read."""
        assert state.gates is not None
        here = torch.arange(logits.shape[1], device=logits.device)
        offset = torch.as_tensor(state.memory.offset, device=logits.device).reshape(-1, 1)
        first = here - (offset + here) % self.options["chunk_size"]  # negative: read by an earlier call
        index = (first.clamp(min=-1) + 1).expand(logits.shape[0], -1)
        logits = torch.cat([state.gates.unsqueeze(1).to(logits.dtype), logits], 1)
        shared = logits.gather(1, index.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        carried = last(torch.cat([logits[:, :1], shared], 1), lengths, 1).squeeze(1)
        return shared, carried.to(state.gates.dtype)

    def _norm_gate_project(self, y: Tensor, x: Tensor) -> Tensor:
        """Normalise per head what was read, `[B, T, H, d]`, gate it by the bounded input and project: `[B, T, D]`."""
        gate = self.g_proj(x).unflatten(-1, (self.num_heads, -1))
        out: Tensor = self.o_proj(gated_rms_norm(y, gate, self.o_norm.weight, OUTPUT_EPS).flatten(2))
        return out


register_mixer("memory", NeuralMemory)

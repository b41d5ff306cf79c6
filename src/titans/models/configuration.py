"""The configurations: of the stack of blocks that every Titans model has, and of the language model."""

from __future__ import annotations

import inspect
import math
import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from titans.layers.neural_memory import GATES, theta_bound
from titans.ops.associative_memory import ACTIVATIONS, RULES

# The mixers of each block, in order; a variant of several blocks repeats them in turn.
VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lmm": (("memory",),),
    "mac": (("memory_as_context",),),
    "mag": (("memory_as_gate",),),
    "mal": (("memory", "attention"),),
    "transformer": (("full_attention",),),
    "swa": (("attention",),),
    "rmt": (("full_attention",),),  # segment by segment: see `titans.models.segment_recurrence`
    "ttt-linear": (("ttt_linear",),),
    "ttt-mlp": (("ttt_mlp",),),
    "retnet": (("retention",),),
    "gla": (("gated_linear_attention",),),
    "deltanet": (("delta_net",),),
    "gated-deltanet": (("gated_delta_net",),),
    "gated-deltanet-h2": (("mamba2",), ("gated_delta_net",), ("attention_alone",)),
    "mamba": (("mamba",),),
    "mamba2": (("mamba2",),),
    "samba": (("mamba",), ("attention_alone",)),
    "none": ((),),
}
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "sliding_window",
    "segment_length",
    "num_persistent_tokens",
    "num_memory_tokens",
    "num_retrieved_tokens",
    "memory_heads",
    "memory_depth",
    "memory_expansion",
    "memory_chunk_size",
)


class StackConfig(PreTrainedConfig):
    """What every Titans model has: a stack of blocks, each of the variant's mixers and a feed-forward layer.

    Args:
        variant: "lmm" (memory alone), "mac" (memory as context), "mag" (memory as gate), "mal" (memory as layer); a
            twin without memory: "transformer" (full attention, whose state grows with the stream), "swa"
            (sliding-window attention alone), "none" (feed-forward layers alone); or another baseline: "ttt-linear",
            "ttt-mlp", "retnet", "gla", "deltanet", "gated-deltanet", "mamba", "mamba2", "samba",
            "gated-deltanet-h2", "rmt" (docs/guide/models.md). Default "mac".
        hidden_size: width D. Default 256.
        num_hidden_layers: blocks. Default 4.
        num_attention_heads: heads of the attention. Default 4.
        intermediate_size: hidden width of the feed-forward layers. Default: 8/3 of D, rounded up to a multiple of 16.
        sliding_window: tokens in view of the attention in MAG, MAL, SWA, Samba and Gated DeltaNet-H2. Default 512.
        segment_length: tokens per segment in MAC and RMT. Default 512.
        num_persistent_tokens: learned tokens always in view; 0 switches persistent memory off. Default 16.
        num_memory_tokens: what RMT carries from segment to segment. Default 16.
        num_retrieved_tokens: learned queries asked of the memory per MAC segment. Default: one query per token.
        memory_heads: memory heads, of the baselines with heads too. Default: `num_attention_heads`.
        memory_depth: layers of the memory MLP; 1 is a matrix. Default 2.
        memory_expansion: hidden width of the memory MLP over its head width. Default 4.
        memory_chunk_size: tokens per memory chunk; in the baselines it changes speed only. Default 64.
        memory_rule: "chunk", or "token" (exact online rule; needs depth 1 and no norm). Default "chunk".
        memory_activation: "gelu", "silu" or "relu". Default "gelu".
        memory_residual: add the query to what is read. Default: on under rule "chunk", off under "token".
        memory_norm: normalise what the memory MLP puts out. Default: on under rule "chunk", off under "token".
        memory_momentum: keep past surprise. Default True.
        memory_forgetting: let the memory decay. Default True.
        memory_channelwise_forgetting: one forget gate per channel. Default False.
        memory_convolution: short convolutions on queries, keys and values, of DeltaNet and Gated DeltaNet too.
            Default True.
        memory_gates: "token", or "chunk" for gates shared by a chunk. Default "token".
        memory_limit_steps: shorten the memory's gradients to the curvature they meet. Default True.
        memory_theta_max: bound of the memory's step size. Default: see `titans.NeuralMemory`.
        memory_gate_floor: in evaluation, tokens whose write gate is open less than this share neither write nor
            forget. Default 0.
        rms_norm_eps: of the block norms. Default 1e-6.
        rope_theta: base of the rotary frequencies. Default 10,000.
        initializer_range: standard deviation of initial projections and embeddings. Default 0.02.
        use_cache: return the memory state outside training. Default True.

    Raises:
        ValueError: a field is out of range or two do not fit together.
    """

    auto_classes = dict[str, str]()  # noqa: RUF012  # what transformers' Auto classes find in a saved folder
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # noqa: RUF012  # `Trainer` adds to a list

    variant: str = "mac"
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    sliding_window: int = 512
    segment_length: int = 512
    num_persistent_tokens: int = 16
    num_memory_tokens: int = 16
    num_retrieved_tokens: int | None = None
    memory_heads: int | None = None
    memory_depth: int = 2
    memory_expansion: int = 4
    memory_chunk_size: int = 64
    memory_rule: str = "chunk"
    memory_activation: str = "gelu"
    memory_residual: bool | None = None
    memory_norm: bool | None = None
    memory_momentum: bool = True
    memory_forgetting: bool = True
    memory_channelwise_forgetting: bool = False
    memory_convolution: bool = True
    memory_gates: str = "token"
    memory_limit_steps: bool = True
    memory_theta_max: float | None = None
    memory_gate_floor: float = 0.0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    initializer_range: float = 0.02
    use_cache: bool = True

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """Return the fields that Titans adds to Hugging Face's, each with its type."""
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, StackConfig)]
        return {name: hint for kind in kinds for name, hint in inspect.get_annotations(kind, eval_str=True).items()}

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in derived defaults and refuse what cannot work, before anything is built."""
        self._check_choices()
        self._check_sizes()
        if self.intermediate_size is None:
            self.intermediate_size = -(-8 * self.hidden_size // 48) * 16
        if self.memory_heads is None:
            self.memory_heads = self.num_attention_heads
        self._check_fit(self.memory_heads)
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def mixers(self, layer: int) -> tuple[str, ...]:
        """Return the names of the mixers of a block, in order."""
        blocks = VARIANTS[self.variant]
        return blocks[layer % len(blocks)]

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write config.json, and what lets programs that know nothing of this package load the folder.

        Args:
            save_directory: made if it does not exist.
            push_to_hub: also upload it. Default False.
            **kwargs: as `PreTrainedConfig.save_pretrained` has them.
        """
        code = Path(__file__).with_name("modeling_titans.py")
        self.auto_map = {auto: f"{code.stem}.{name}" for auto, name in self.auto_classes.items()}
        os.makedirs(save_directory, exist_ok=True)
        Path(save_directory, code.name).write_bytes(code.read_bytes())
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def _check_choices(self) -> None:
        choices = {
            "variant": VARIANTS,
            "memory_rule": RULES,
            "memory_activation": ACTIVATIONS,
            "memory_gates": GATES,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: choose one of {', '.join(allowed)}")

    def _check_sizes(self) -> None:
        for name in SIZES:
            optional = name in ("intermediate_size", "num_retrieved_tokens", "memory_heads")
            self._check_whole(name, 0 if name == "num_persistent_tokens" else 1, optional)
        for name in ("rms_norm_eps", "rope_theta", "initializer_range", "memory_theta_max"):
            value = getattr(self, name)
            if value is None and name == "memory_theta_max":
                continue
            if not isinstance(value, int | float) or not 0 < value < math.inf:  # not, for NaN
                raise ValueError(f"{name}={value!r} must be a positive number")

    def _check_whole(self, name: str, bound: int, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < bound:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {bound}")

    def _check_fit(self, memory_heads: int) -> None:
        kinds = len(VARIANTS[self.variant])
        if self.num_hidden_layers < kinds:
            raise ValueError(
                f"num_hidden_layers={self.num_hidden_layers} has no room for the {kinds} kinds of block that "
                f"variant={self.variant!r} alternates"
            )
        for name, heads in (
            ("num_attention_heads", self.num_attention_heads),
            ("memory_heads", memory_heads),
        ):
            if self.hidden_size % heads:
                raise ValueError(f"hidden_size={self.hidden_size} is not a multiple of {name}={heads}")
        if self.memory_rule == "token" and (self.memory_depth > 1 or self.memory_norm):
            raise ValueError("memory_rule='token' needs memory_depth=1 and memory_norm unset or False")
        if self.memory_rule == "token" and self.memory_gates == "chunk":
            raise ValueError("memory_gates='chunk' needs memory_rule='chunk'")
        floor: Any = self.memory_gate_floor
        if not isinstance(floor, int | float) or not 0 <= floor < 1:
            raise ValueError(f"memory_gate_floor={floor!r} must be at least 0 and less than 1")
        bound = theta_bound(self.memory_rule, self.memory_chunk_size)
        if self.memory_momentum and self.memory_theta_max is not None and self.memory_theta_max >= bound:
            raise ValueError(
                f"memory_theta_max={self.memory_theta_max} leaves no room for momentum: keep it below {bound}, "
                "or set memory_momentum=False"
            )


class TitansConfig(StackConfig):
    """Configuration of `TitansModel`, `TitansForCausalLM` and `TitansForSequenceClassification`.

    Args:
        vocab_size: number of tokens. Default 32,000.
        tie_word_embeddings: share input and output embeddings. Default True.
        bos_token_id: token that starts a document. Default None.
        eos_token_id: token that ends generation. Default None.
        pad_token_id: padding token. Default None.
        **kwargs: the fields of `StackConfig`.

    Raises:
        ValueError: a field is out of range or two do not fit together.
    """

    model_type = "titans"
    auto_classes = {  # noqa: RUF012
        "AutoConfig": "TitansConfig",
        "AutoModel": "TitansModel",
        "AutoModelForCausalLM": "TitansForCausalLM",
        "AutoModelForSequenceClassification": "TitansForSequenceClassification",
    }

    vocab_size: int = 32_000
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def _check_sizes(self) -> None:
        super()._check_sizes()
        self._check_whole("vocab_size", 1)

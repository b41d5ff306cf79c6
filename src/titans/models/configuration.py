"""The configurations: of the stack of blocks that every Titans model has, and of the language model."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from transformers import PreTrainedConfig

from titans.layers.memory_config import MemoryConfig
from titans.layers.registry import MIXERS

# Names of lists of blocks, each with its mixers in order; several blocks take turns.
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
)


PAPER_MEMORY = MappingProxyType[str, Any](
    {"rule": "chunk", "residual": False, "norm": False, "limit_steps": False, "free_gates": True}
)


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    memory: MemoryConfig = fields.pop("memory")
    return fields | {f"memory.{name}": value for name, value in dataclasses.asdict(memory).items()}


def merge_fields(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change fields of a configuration, of `memory` only the options that the change names.

    Args:
        fields: of a `StackConfig`.
        changes: likewise.

    Returns:
        The fields with these changes.
    """
    merged = {**fields, **changes}
    old, new = fields.get("memory"), changes.get("memory")
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        merged["memory"] = {**old, **new}
    return merged


class StackConfig(PreTrainedConfig):
    """What every Titans model has: a stack of blocks, each of the variant's mixers and a feed-forward layer.

    Args:
        variant: the name of a list of blocks: "lmm" (memory alone), "mac" (memory as context), "mag" (memory as gate),
            "mal" (memory as layer); a twin without memory: "transformer" (full attention, whose state grows with the
            stream), "swa" (sliding-window attention alone), "none" (feed-forward layers alone); or another baseline:
            "ttt-linear", "ttt-mlp", "retnet", "gla", "deltanet", "gated-deltanet", "mamba", "mamba2", "samba",
            "gated-deltanet-h2", "rmt" (docs/guide/models.md). Default "mac", where no layers are given.
        layers: the blocks themselves, in place of a variant: of each the name of its mixer, or a list of several that
            follow each other. A list shorter than the model starts again from its beginning: `["gated_delta_net",
            "gated_delta_net", "gated_delta_net", "attention"]` is a hybrid of 3 : 1. Names are those of
            `titans.layers.registry.MIXERS`; `titans.register_mixer` adds to them.
        hidden_size: width D. Default 256.
        num_hidden_layers: blocks. Default 4.
        num_attention_heads: heads of the attention. Default 4.
        intermediate_size: hidden width of the feed-forward layers. Default: 8/3 of D, rounded up to a multiple of 16.
        sliding_window: tokens in view of the sliding-window attention. Default 512.
        segment_length: tokens per segment in MAC and RMT. Default 512.
        num_persistent_tokens: learned tokens always in view; 0 switches persistent memory off. Default 16.
        num_memory_tokens: what RMT carries from segment to segment. Default 16.
        num_retrieved_tokens: learned queries asked of the memory per MAC segment. Default: one query per token.
        memory: the options of the memory, a `MemoryConfig` or a mapping such as `{"depth": 1}`, which changes the
            options it names.
        paper_form: MAC and MAG gate as the paper writes it (`titans.layers.memory_as_context.MemoryAsContext`), and
            attention has its projections (`titans.layers.attention.PaperAttention`). Default False.
        rms_norm_eps: of the block norms. Default 1e-6.
        rope_theta: base of the rotary frequencies. Default 10,000.
        initializer_range: standard deviation of initial projections and embeddings. Default 0.02.
        use_cache: return the memory state outside training. Default True.

    Raises:
        ValueError: a field is out of range or two do not fit together.
    """

    default_variant: ClassVar[str] = "mac"
    auto_classes = dict[str, str]()  # noqa: RUF012  # what transformers' Auto classes find in a saved folder
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # noqa: RUF012  # `Trainer` adds to a list

    variant: str | None = None
    layers: list[str | list[str]] | None = None
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    sliding_window: int = 512
    segment_length: int = 512
    num_persistent_tokens: int = 16
    num_memory_tokens: int = 16
    num_retrieved_tokens: int | None = None
    memory: MemoryConfig = MemoryConfig()  # frozen
    paper_form: bool = False
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    initializer_range: float = 0.02
    use_cache: bool = True

    @classmethod
    def paper(cls, **kwargs: Any) -> Self:
        """Make the configuration of the paper's own forms, literally.

        The memory is a plain MLP written by the chunk rule, with free gates and nothing that limits a step; MAC and MAG
        gate as the paper writes it, and attention has its projections. Nothing keeps such a memory from growing: with
        `theta_max` at its default of 1 a new one overflows on ordinary data (docs/guide/models.md).

        Args:
            **kwargs: fields, which have the last word; of `memory`, the options to change.

        Returns:
            The configuration.
        """
        return cls(**merge_fields({"paper_form": True, "memory": dict(PAPER_MEMORY)}, kwargs))

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """Return the fields that Titans adds to Hugging Face's, each with its type."""
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, StackConfig)]
        return {name: hint for kind in kinds for name, hint in inspect.get_annotations(kind, eval_str=True).items()}

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in derived defaults and refuse what cannot work, before anything is built."""
        if old := [name for name in kwargs if name.startswith("memory_")]:
            raise ValueError(
                f"{old[0]} is no field: the memory's options stand together, as in memory={{'depth': 1}}; "
                "a model that was saved with the old fields must be trained again"
            )
        if self.variant is None and self.layers is None:
            self.variant = self.default_variant
        self._check_choices()
        self._check_sizes()
        if self.intermediate_size is None:
            self.intermediate_size = -(-8 * self.hidden_size // 48) * 16
        if self.memory.num_heads is None:
            self.memory = dataclasses.replace(self.memory, num_heads=self.num_attention_heads)
        self._check_fit()
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; a mapping for `memory` changes the options that it names."""
        if name == "memory" and not isinstance(value, MemoryConfig):
            if not isinstance(value, Mapping):
                raise ValueError(f"memory={value!r} must be a MemoryConfig or a mapping of its options")
            try:
                value = self.memory.updated(value)
            except ValueError as error:
                raise ValueError(f"memory: {error}") from error
        super().__setattr__(name, value)  # type: ignore[no-untyped-call]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON has them, the memory's as a mapping."""
        return {**super().to_dict(), "memory": dataclasses.asdict(self.memory)}

    def flat_fields(self) -> dict[str, Any]:
        """Return the fields that Titans adds to Hugging Face's, the memory's options by names as `memory.depth`."""
        return _flat({name: getattr(self, name) for name in self.hints()})

    @classmethod
    def flat_defaults(cls) -> dict[str, Any]:
        """Return the defaults of `flat_fields`."""
        return _flat({name: getattr(cls, name) for name in cls.hints()})

    @property
    def blocks(self) -> list[list[str]]:
        """The mixers of each of the blocks that take turns, in order."""
        blocks: Sequence[str | Sequence[str]] = VARIANTS[self.variant or ""] if self.layers is None else self.layers
        return [[block] if isinstance(block, str) else list(block) for block in blocks]

    @property
    def kind(self) -> str:
        """The variant, or the mixers of the blocks, in words."""
        return self.variant or ", ".join("+".join(block) for block in self.blocks)

    def mixers(self, layer: int) -> list[str]:
        """Return the names of the mixers of a block, in order."""
        return self.blocks[layer % len(self.blocks)]

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
        if self.layers is None:
            if self.variant not in VARIANTS:
                raise ValueError(f"variant={self.variant!r} is unknown: choose one of {', '.join(VARIANTS)}")
            return
        layers: Any = self.layers
        if self.variant is not None:
            raise ValueError(f"variant={self.variant!r} is a list of blocks, and so is layers: give one of the two")
        named = isinstance(layers, list | tuple) and all(
            isinstance(name, str)
            for block in layers
            for name in (block if isinstance(block, list | tuple) else [block])
        )
        if not named or not layers:
            raise ValueError(f"layers={layers!r} must be a list of mixers' names, or of lists of them")
        for name in (name for block in self.blocks for name in block):
            if name not in MIXERS:
                raise ValueError(
                    f"layers holds {name!r}, which is no mixer: choose among {', '.join(MIXERS)}, or register it with "
                    "titans.register_mixer"
                )

    def _check_sizes(self) -> None:
        for name in SIZES:
            optional = name in ("intermediate_size", "num_retrieved_tokens")
            self._check_whole(name, 0 if name == "num_persistent_tokens" else 1, optional)
        for name in ("rms_norm_eps", "rope_theta", "initializer_range"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:  # not, for NaN
                raise ValueError(f"{name}={value!r} must be a positive number")

    def _check_whole(self, name: str, bound: int, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < bound:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {bound}")

    def _check_fit(self) -> None:
        kinds = len(self.blocks)
        if self.num_hidden_layers < kinds:
            raise ValueError(
                f"num_hidden_layers={self.num_hidden_layers} has no room for the {kinds} kinds of block that "
                f"{'variant' if self.layers is None else 'layers'}={self.variant or self.layers!r} alternates"
            )
        for name, heads in (
            ("num_attention_heads", self.num_attention_heads),
            ("memory.num_heads", self.memory.num_heads),
        ):
            if heads and self.hidden_size % heads:
                raise ValueError(f"hidden_size={self.hidden_size} is not a multiple of {name}={heads}")


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

"""Titans models on Hugging Face's base classes: a stack of blocks, and a language-model head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from titans.layers.attention import Attention
from titans.layers.convolution import CausalConvolution
from titans.layers.feed_forward import SwiGLU
from titans.layers.mamba import Mamba
from titans.layers.mamba2 import Mamba2
from titans.layers.memory_as_context import MemoryAsContext
from titans.layers.mixer import Mixer
from titans.layers.neural_memory import NeuralMemory
from titans.layers.projection import ConvolvedProjection
from titans.layers.time_step import TimeStep
from titans.models.configuration import VARIANTS, TitansConfig
from titans.models.memory_state import MemoryState
from titans.models.mixers import MIXERS
from titans.models.origin import Origin
from titans.state import State

# Modules with parameters that have no standard initialisation.
INITIALISED = (
    Attention,
    CausalConvolution,
    ConvolvedProjection,
    Mamba,
    Mamba2,
    MemoryAsContext,
    NeuralMemory,
    TimeStep,
)


class TitansBlock(GradientCheckpointingLayer):
    """Pre-norm residual block: each of the variant's mixers, then the feed-forward layer."""

    def __init__(self, config: TitansConfig) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(MIXERS[name](config) for name in VARIANTS[config.variant])
        self.mixer_norms = nn.ModuleList(nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in self.mixers)
        assert config.intermediate_size is not None  # set by the configuration
        self.feed_forward = SwiGLU(config.hidden_size, config.intermediate_size)
        self.feed_forward_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def initial_states(self, batch_size: int) -> list[State]:
        """Return the states in which the mixers start `batch_size` streams."""
        return [mixer.initial_state(batch_size) for mixer in self.mixers if isinstance(mixer, Mixer)]

    def forward(self, hidden: Tensor, states: list[State] | None, mask: Tensor | None) -> tuple[Tensor, list[State]]:
        """Transform `hidden` `[B, N, D]`, continuing from the states of the block's mixers (None: a new stream)."""
        if states is not None and len(states) != len(self.mixers):
            raise ValueError(
                f"the state comes from another configuration: its blocks have {len(states)} mixers, "
                f"this model's {len(self.mixers)}"
            )
        final = []
        for i, (mixer, norm) in enumerate(zip(self.mixers, self.mixer_norms, strict=True)):
            y, state = mixer(norm(hidden), None if states is None else states[i], mask)
            hidden = hidden + y
            final.append(state)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden)), final


class TitansPreTrainedModel(PreTrainedModel):
    """Base of the Titans models: configuration, initialisation, and what Hugging Face needs to know."""

    config_class = TitansConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TitansBlock"]  # noqa: RUF012
    _is_stateful = True  # a memory cannot take tokens back, so assisted decoding is refused

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, INITIALISED):
            module.reset_parameters()
        else:
            super()._init_weights(module)  # type: ignore[no-untyped-call]


class TitansModel(TitansPreTrainedModel):
    """Embeddings, blocks and a final norm.

    Args:
        config: the configuration.
    """

    def __init__(self, config: TitansConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(TitansBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    def initial_state(self, batch_size: int) -> MemoryState:
        """Return the state before the first token of `batch_size` streams, persistent tokens already read."""
        layers = [layer.initial_states(batch_size) for layer in self.layers if isinstance(layer, TitansBlock)]
        return MemoryState(layers, 0, Origin.of(self))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: MemoryState | None = None,
        past_key_values: MemoryState | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Read the next tokens of a stream.

        Args:
            input_ids: tokens `[B, N]`, of any length.
            attention_mask: 1 for tokens, 0 for padding on either side, `[B, N]`; where it is longer, its last N
                columns count. Padding changes neither state nor the outputs of other tokens.
            cache: the state that an earlier call handed out, to continue its stream; it is not modified. None starts a
                new stream.
            past_key_values: another name for `cache`.
            inputs_embeds: embeddings `[B, N, D]` in place of `input_ids`.
            use_cache: return the state. Default: the configuration's in evaluation, False in training.
            **kwargs: ignored.

        Returns:
            `last_hidden_state` `[B, N, D]` and, with `use_cache`, the state after the last token as `cache`.

        Raises:
            ValueError: not exactly one of `input_ids` and `inputs_embeds`, a token outside the vocabulary (checked on
                the CPU), or a state whose shapes are not those of this configuration and batch.
        """
        state: Any = cache if cache is not None else past_key_values
        hidden = self._embed(input_ids, inputs_embeds)
        mask = _token_mask(attention_mask, hidden)
        if state is not None:
            if not isinstance(state, MemoryState):
                raise ValueError(
                    f"the state is a {type(state).__name__}: expected a MemoryState that this model handed out"
                )
            state = state.for_rows(hidden.shape[0], len(self.layers))
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        final = []
        for i, layer in enumerate(self.layers):
            hidden, layer_state = layer(hidden, None if state is None else state.layers[i], mask)
            final.append(layer_state)
        tokens = hidden.shape[1] + (0 if state is None else state.tokens)
        origin = Origin.of(self, None if state is None else state.origin) if use_cache else None
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(hidden),
            cache=MemoryState(final, tokens, origin) if use_cache else None,  # type: ignore[arg-type]
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        if input_ids is None:
            assert inputs_embeds is not None
            if (
                inputs_embeds.dim() != 3
                or 0 in inputs_embeds.shape
                or inputs_embeds.shape[2] != self.config.hidden_size
            ):
                raise ValueError(
                    f"inputs_embeds has shape {tuple(inputs_embeds.shape)}: "
                    f"expected [batch, tokens >= 1, {self.config.hidden_size}]"
                )
            return inputs_embeds
        if input_ids.dim() != 2 or 0 in input_ids.shape or input_ids.is_floating_point():
            raise ValueError(
                f"input_ids is {input_ids.dtype} {tuple(input_ids.shape)}: expected integers [batch, tokens >= 1]"
            )
        if input_ids.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = int(input_ids.min()), int(input_ids.max())
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"input_ids holds token {low if low < 0 else high}, outside the vocabulary of "
                    f"{self.config.vocab_size}: was the text encoded with another tokenizer?"
                )
        embedded: Tensor = self.embed_tokens(input_ids)
        return embedded


class TitansForCausalLM(TitansPreTrainedModel, GenerationMixin):
    """A language model: `TitansModel` and a linear head, by default tied to the embeddings.

    `generate` works with greedy search, sampling, beams and left-padded batches; the memory state is its cache. To
    go on from an earlier `generate`, pass only what the state has not read: the last generated token and what is new.

    Args:
        config: the configuration.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TitansConfig) -> None:
        super().__init__(config)
        self.model = TitansModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def initial_state(self, batch_size: int) -> MemoryState:
        """Return the state before the first token of `batch_size` streams, persistent tokens already read."""
        state: MemoryState = self.model.initial_state(batch_size)
        return state

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: MemoryState | None = None,
        past_key_values: MemoryState | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Read the next tokens of a stream and predict the one after each.

        Args:
            input_ids: as in `TitansModel.forward`.
            attention_mask: as in `TitansModel.forward`.
            cache: as in `TitansModel.forward`.
            past_key_values: as in `TitansModel.forward`.
            inputs_embeds: as in `TitansModel.forward`.
            labels: `[B, N]`, usually `input_ids`; shifted here, -100 is ignored.
            use_cache: as in `TitansModel.forward`.
            logits_to_keep: compute logits of the last so many tokens only, or of the given positions; 0 for all.
            **kwargs: passed to the loss (`num_items_in_batch`); others are ignored.

        Returns:
            `logits` `[B, N, vocab_size]`; `loss`, the mean cross-entropy in nats, with labels; `cache`, the state.

        Raises:
            ValueError: as in `TitansModel.forward`.
        """
        output = self.model(input_ids, attention_mask, cache, past_key_values, inputs_embeds, use_cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=output.cache)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the first forward pass makes the state

    def _reorder_cache(self, cache: MemoryState, beam_idx: Tensor) -> MemoryState:
        return cache.select(beam_idx)


def _token_mask(attention_mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    """Turn an attention mask into `[B, N]` bool, or None where there is no padding."""
    if attention_mask is None:
        return None
    batch, tokens, _ = hidden.shape
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] < tokens:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}: "
            f"expected [{batch}, {tokens}], 1 for tokens, 0 for padding"
        )
    mask = attention_mask[:, attention_mask.shape[1] - tokens :].bool()
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask

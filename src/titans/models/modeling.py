"""The language model: embeddings, the stack of blocks, and a head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from titans.layers.sharding import gathers
from titans.models.arguments import refuse_attentions, token_mask, wants_hidden_states
from titans.models.configuration import TitansConfig
from titans.models.generation import StreamingGeneration
from titans.models.memory_state import MemoryState
from titans.models.packing import packed_rows
from titans.models.stack import TitansPreTrainedModel, TitansStack
from titans.ops.tracing import is_concrete


class TitansModel(TitansStack):
    """Embeddings, blocks and a final norm.

    Args:
        config: the configuration.
    """

    config_class = TitansConfig

    def __init__(self, config: TitansConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.post_init()  # type: ignore[no-untyped-call]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: MemoryState | None = None,
        past_key_values: MemoryState | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Read the next tokens of a stream.

        Args:
            input_ids: tokens `[B, T]`, of any length.
            attention_mask: 1 for tokens, 0 for padding on either side, `[B, T]`; where it is longer, its last N
                columns count. Padding changes neither state nor the outputs of other tokens.
            cache: the state that an earlier call handed out, to continue its stream; it is not modified. None starts a
                new stream.
            past_key_values: another name for `cache`.
            inputs_embeds: embeddings `[B, T, D]` in place of `input_ids`.
            use_cache: return the state. Default: the configuration's in evaluation, False in training.
            position_ids: `[B, T]` or `[1, T]`; each restart, at 0 or at the row's first, starts another document,
                which is read as a stream of its own (packed rows). The model counts for itself.
            output_hidden_states: return all hidden states. Default: the configuration's, False.
            output_attentions: refused, there and in the configuration.
            **kwargs: `return_dict` (False: a tuple), and other marks of packed rows: `cu_seqlens`, `cu_seq_lens_q`,
                `cu_seq_lens_k`, `seq_idx`. Packed rows take and hand out no state.

        Returns:
            `last_hidden_state` `[B, T, D]`; with `use_cache` the state after the last token as `cache`; with
            `output_hidden_states` the embeddings and what each block puts out, the last normalised, as `hidden_states`.

        Raises:
            ValueError: not exactly one of `input_ids` and `inputs_embeds`, a token outside the vocabulary (checked on
                the CPU), attention weights asked for, marks of packed rows that do not fit, or a state whose shapes are
                not those of this configuration and batch.
        """
        refuse_attentions(self.config, output_attentions)
        embedded = self._embed(input_ids, inputs_embeds)
        mask = token_mask(attention_mask, embedded)
        packed = packed_rows(position_ids, mask, embedded.shape[:2], kwargs)
        state = cache if cache is not None else past_key_values
        wanted = wants_hidden_states(self.config, output_hidden_states)
        if packed is None:
            seen = self.read(embedded, state, mask, use_cache, wanted)
        else:
            seen = self.read_packed(embedded, packed, state, use_cache, wanted)
        return BaseModelOutputWithPast(
            last_hidden_state=seen.hidden,
            cache=seen.state,  # type: ignore[arg-type]
            hidden_states=seen.all_hidden,
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
        if input_ids.device.type == "cpu" and is_concrete(input_ids):
            low, high = int(input_ids.min()), int(input_ids.max())
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"input_ids holds token {low if low < 0 else high}, outside the vocabulary of "
                    f"{self.config.vocab_size}: was the text encoded with another tokenizer?"
                )
        embedded: Tensor = self.embed_tokens(input_ids)
        return embedded


class TitansForCausalLM(TitansPreTrainedModel, StreamingGeneration, GenerationMixin):
    """A language model: `TitansModel` and a linear head, by default tied to the embeddings.

    `generate` works with greedy search, sampling, beams and left-padded batches; the memory state is its cache. To
    go on from an earlier `generate`, pass only what the state has not read: the last generated token and what is new.

    Args:
        config: the configuration.
    """

    config_class = TitansConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TitansConfig) -> None:
        super().__init__(config)
        self.model = TitansModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]
        self._keys_to_ignore_on_save = list(self.all_tied_weights_keys)  # which Trainer then does not miss on loading

    @gathers
    def initial_state(self, batch_size: int) -> MemoryState:
        """Return the state before the first token of `batch_size` streams, persistent tokens already read."""
        state: MemoryState = self.model.initial_state(batch_size)
        return state

    @can_return_tuple  # type: ignore[untyped-decorator]
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
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Read the next tokens of a stream and predict the one after each.

        Args:
            input_ids: as in `TitansModel.forward`.
            attention_mask: as in `TitansModel.forward`.
            cache: as in `TitansModel.forward`.
            past_key_values: as in `TitansModel.forward`.
            inputs_embeds: as in `TitansModel.forward`.
            labels: `[B, T]`, usually `input_ids`; shifted here, -100 is ignored, and so is the first of each document.
            use_cache: as in `TitansModel.forward`.
            logits_to_keep: compute logits of the last so many tokens only, of the given positions, or where a mask
                `[B, T]`, bool, says so; 0 for all.
            position_ids: as in `TitansModel.forward`.
            output_hidden_states: as in `TitansModel.forward`.
            output_attentions: as in `TitansModel.forward`.
            **kwargs: as in `TitansModel.forward`; those of the loss (`num_items_in_batch`) go there.

        Returns:
            `logits` `[B, T, vocab_size]`; `loss`, the mean cross-entropy in nats, with labels; `cache`, the state;
            `hidden_states` as of `TitansModel.forward`.

        Raises:
            ValueError: as in `TitansModel.forward`.
        """
        output = self.model(
            input_ids,
            attention_mask,
            cache,
            past_key_values,
            inputs_embeds,
            use_cache,
            position_ids,
            output_hidden_states,
            output_attentions,
            **{**kwargs, "return_dict": True},
        )
        kept: Any = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        if not (isinstance(kept, Tensor) and kept.dtype == torch.bool):
            kept = (slice(None), kept)
        logits = self.lm_head(output.last_hidden_state[kept])
        loss = None
        if labels is not None:
            mask = token_mask(attention_mask, output.last_hidden_state)
            packed = packed_rows(position_ids, mask, output.last_hidden_state.shape[:2], kwargs)
            labels = labels if packed is None else packed.mask_labels(labels)
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=output.cache, hidden_states=output.hidden_states)

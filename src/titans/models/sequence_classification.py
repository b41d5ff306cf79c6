"""Sequence classification: the stack of blocks, and a linear head on the last token that counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
from transformers.utils.generic import can_return_tuple

from titans.models.arguments import token_mask
from titans.models.configuration import TitansConfig
from titans.models.memory_state import MemoryState
from titans.models.modeling import TitansModel
from titans.models.packing import packed_rows
from titans.models.stack import TitansPreTrainedModel


class TitansForSequenceClassification(TitansPreTrainedModel):
    """A classifier (or a regression, `num_labels=1`) of whole sequences: `TitansModel` and a linear head `score`.

    The class is read off the last token, after which the memories and the attention have seen the sequence.

    Args:
        config: the configuration; `num_labels`, `id2label` and `problem_type` as everywhere in transformers.
    """

    config_class = TitansConfig

    def __init__(self, config: TitansConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None  # a property of transformers' that falls back on 2
        self.num_labels = config.num_labels
        self.model = TitansModel(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

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
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Read sequences, or the next piece of them, and classify them.

        Args:
            input_ids: as in `TitansModel.forward`.
            attention_mask: as in `TitansModel.forward`; without one all tokens count, those of padding too.
            cache: as in `TitansModel.forward`.
            past_key_values: as in `TitansModel.forward`.
            inputs_embeds: as in `TitansModel.forward`.
            labels: `[B]`, classes, or numbers where `num_labels` is 1; `[B, num_labels]` for several at once.
            use_cache: as in `TitansModel.forward`.
            position_ids: as in `TitansModel.forward`, but one document in each row.
            output_hidden_states: as in `TitansModel.forward`.
            output_attentions: as in `TitansModel.forward`.
            **kwargs: as in `TitansModel.forward`.

        Returns:
            `logits` `[B, num_labels]`; `loss` with labels, chosen by `problem_type` as everywhere in transformers;
            `cache`; `hidden_states`.

        Raises:
            ValueError: as in `TitansModel.forward`, packed rows, or a row without a token.
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
        hidden = output.last_hidden_state
        mask = token_mask(attention_mask, hidden)
        if packed_rows(position_ids, mask, hidden.shape[:2], kwargs) is not None:
            raise ValueError("packed rows cannot be classified, since each row has one class: a row for each sequence")
        logits = self.score(_last(hidden, mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(pooled_logits=logits, labels=labels, logits=logits, config=self.config)
        return SequenceClassifierOutputWithPast(
            loss=loss, logits=logits, cache=output.cache, hidden_states=output.hidden_states
        )


def _last(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return of each row `[B, T, D]` the last token that counts, `[B, D]`."""
    if mask is None:
        return hidden[:, -1]
    if not bool(mask.any(1).all()):
        raise ValueError("attention_mask leaves a row without a token: nothing to classify")
    last = hidden.shape[1] - 1 - mask.flip(1).int().argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]

"""What callers of a model pass beside the tokens, as Hugging Face names it: masks, positions and switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from titans.ops.tracing import is_concrete

# What collators of packed rows send: DataCollatorWithFlattening, and TRL with packing or padding_free.
PACKING = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "cu_seqlens",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "packed_seq_lengths",
)
OTHER_NUMBERS = (
    "attention_mask holds other numbers than 1 for tokens and 0 for padding; the rows of several documents that such a "
    "mask may number would be read as one: pass 1 and 0"
)
ONE_EACH = "give each document a row of its own, padded and with an attention_mask (packing=False, padding_free=False)"


def token_mask(attention_mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    """Turn an attention mask into `[B, T]` bool, or None where there is no padding.

    Args:
        attention_mask: 1 for tokens, 0 for padding, at least N columns, of which the last N count; None for no padding.
        hidden: the tokens `[B, T, D]`.

    Returns:
        The mask.

    Raises:
        ValueError: another shape, or other numbers: those of packed documents, or what is added to scores.
    """
    if attention_mask is None:
        return None
    batch, tokens, _ = hidden.shape
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] < tokens:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}: "
            f"expected [{batch}, {tokens}], 1 for tokens, 0 for padding"
        )
    attention_mask = attention_mask[:, attention_mask.shape[1] - tokens :]
    ones = attention_mask == 1
    right = (ones | (attention_mask == 0)).all()
    if not is_concrete(ones):
        _require(right, OTHER_NUMBERS)
        return ones
    full, right = torch.stack([ones.all(), right]).tolist()  # an accelerator is waited for once
    if not right:
        raise ValueError(OTHER_NUMBERS)
    return None if full else ones


def check_one_document(
    position_ids: Tensor | None, mask: Tensor | None, hidden: Tensor, rest: Mapping[str, Any]
) -> None:
    """Refuse rows in which several documents follow each other, which would be read as one.

    Positions are the model's own business. Those that a caller passes may start anywhere, must rise by one from token
    to token, and may count padding or not.

    Args:
        position_ids: `[B, T]` or `[1, T]`; None for none.
        mask: `[B, T]`, bool, False for padding; None for none.
        hidden: the tokens `[B, T, D]`.
        rest: the caller's other arguments.

    Raises:
        ValueError: the positions do not count up, or an argument is there that only packed rows have.
    """
    for name in PACKING:
        if rest.get(name) is not None:
            raise ValueError(f"{name} marks a row of several documents, which would be read as one: {ONE_EACH}")
    if position_ids is None:
        return
    batch, tokens, _ = hidden.shape
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, batch) or position_ids.shape[1] != tokens:
        raise ValueError(f"position_ids has shape {tuple(position_ids.shape)}: expected [{batch}, {tokens}]")
    if tokens > 1:
        _require(
            _count_up(position_ids.expand(batch, -1), mask),
            "position_ids do not rise by one from token to token, as in a row of several documents, which would be "
            f"read as one: {ONE_EACH}",
        )


def _count_up(positions: Tensor, mask: Tensor | None) -> Tensor:
    """Tell whether the positions `[B, T]` rise from each token to the next by 1, or further as far as padding lies."""
    places = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    if mask is None:
        return (positions.diff() == 1).all()
    order = mask.int().argsort(dim=1, descending=True, stable=True)  # padding last
    step, room = (x.gather(1, order).diff() for x in (positions, places))
    padding = ~mask.gather(1, order)[:, 1:]
    return (padding | ((step >= 1) & (step <= room))).all()


def _require(right: Tensor, message: str) -> None:
    """Raise where `right`, one bool, is False: at once, or in a compiled graph, which must not wait, when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(right, message)
    elif is_concrete(right) and not bool(right):
        raise ValueError(message)


def wants_hidden_states(config: PreTrainedConfig, wanted: bool | None) -> bool:
    """Tell whether all hidden states are to be returned; the configuration decides where the caller does not.

    Raises:
        ValueError: a choice of layers, which only some of transformers' models take.
    """
    wanted = config.output_hidden_states if wanted is None else wanted
    if not isinstance(wanted, bool):
        raise ValueError(f"output_hidden_states={wanted!r} must be True or False: choose among what is returned")
    return wanted


def refuse_attentions(config: PreTrainedConfig, wanted: bool | None) -> None:
    """Refuse to return attention weights.

    Raises:
        ValueError: they are asked for, by the caller or by the configuration.
    """
    if config.output_attentions if wanted is None else wanted:
        raise ValueError(
            "output_attentions=True cannot be followed: a memory has no attention weights, and the attention beside it "
            "does not keep its own; titans.watch shows what each token did to the memories"
        )

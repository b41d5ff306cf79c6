"""What callers of a model pass beside the tokens, as Hugging Face names it: masks, positions and switches."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from titans.ops.tracing import is_concrete

OTHER_NUMBERS = (
    "attention_mask holds other numbers than 1 for tokens and 0 for padding; the rows of several documents that such a "
    "mask may number would be read as one: pass 1 and 0"
)


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

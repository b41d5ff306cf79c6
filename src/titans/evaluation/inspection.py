"""What a text does to a model's memory, token by token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import torch

from titans.data.tokenizers import check_vocabulary, encode_pieces
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.evaluation.inference import evaluating
from titans.generation import TextWriter
from titans.models.watching import watch
from titans.models.write_policy import WritePolicy, memory_norms

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LIMIT = 20_000
"""Tokens that are read at most: a person looks at the result."""

_SHORTEST_PIECE = 32  # shorter ones cost more time than the curve of the norm gains
_PIECES = 200


@dataclasses.dataclass(frozen=True)
class InspectedToken:
    """What one token did.

    Args:
        text: the characters that it completes; empty where it is the beginning of one.
        surprise: norm of the gradient, the mean over memory layers.
        written: share of the memory layers that wrote it.
        dropped: share of the layers that dropped it as an outlier.
        forgotten: share of the memory that it let decay.
    """

    text: str
    surprise: float
    written: float
    dropped: float
    forgotten: float


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What a text did to a model's memory.

    Args:
        tokens: in reading order.
        lengths: numbers of tokens after which the norms were taken, from 0 to all.
        norms: Frobenius norms of the memory weights then, `[lengths][memory layers]`.
        complete: whether the text ended there; otherwise only its first tokens were read.
    """

    tokens: tuple[InspectedToken, ...]
    lengths: tuple[int, ...]
    norms: tuple[tuple[float, ...], ...]
    complete: bool

    @property
    def total_norms(self) -> tuple[float, ...]:
        """The norm of all memory layers together, at each of the lengths."""
        return tuple(math.hypot(*layers) for layers in self.norms)


def inspect(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    blocks: Iterable[str],
    *,
    policy: WritePolicy | None = None,
    limit: int = LIMIT,
    progress: Callable[[int], None] | None = None,
) -> Inspection:
    """Have a model read a text, and note what each token did to its memory.

    Args:
        model: a causal language model of this package, on any device; used in evaluation mode.
        tokenizer: its tokenizer.
        blocks: the text, in consecutive parts of any size; it is read after the bos token where there is one.
        policy: which tokens are written. Default: every one.
        limit: tokens to read at most. Default 20,000.
        progress: called with the number of tokens read since the last call. Default: nothing.

    Returns:
        What was seen.

    Raises:
        TitansError: the text is empty, the model has no memory or fails, as with weights that hold NaN, or the
            tokenizer or the policy does not fit it.
    """
    check_vocabulary(tokenizer, model.config.vocab_size)
    ids = list(islice(chain.from_iterable(encode_pieces(tokenizer, blocks, limit)), limit + 1))
    if len(ids) <= (tokenizer.bos_token_id is not None):
        raise TitansError("the text is empty: there is nothing to inspect")
    complete, ids = len(ids) <= limit, ids[:limit]
    length = max(_SHORTEST_PIECE, math.ceil(len(ids) / _PIECES))
    lengths = (*range(0, len(ids), length), len(ids))
    with evaluating(model), watch(model) as trace:
        state = model.initial_state(1)
        state = state if policy is None else policy.start(state)
        norms = [tuple(memory_norms(state)[0])]
        if not norms[0]:
            raise TitansError(
                f'there is nothing to inspect: a model of variant "{model.config.kind}" has no memory layer'
            )
        for start, stop in pairwise(lengths):
            piece = torch.tensor([ids[start:stop]], device=model.device)
            with refused_as("the model cannot read the text"):
                state = model(piece, cache=state, use_cache=True, logits_to_keep=1).cache
            norms.append(tuple(memory_norms(state)[0]))
            if progress is not None:
                progress(stop - start)
    seen = [tuple(token) for token in trace.tokens(0)]
    if not all(map(math.isfinite, chain(*norms, *seen))):
        raise TitansError("the memory holds NaN or infinity: the model's weights are damaged, or its training diverged")
    tokens = tuple(InspectedToken(text, *numbers) for text, numbers in zip(_texts(tokenizer, ids), seen, strict=True))
    return Inspection(tokens, lengths, tuple(norms), complete)


def _texts(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """The characters that each token completes; those that never become one come with the last token."""
    writer = TextWriter(tokenizer, [])
    texts = [writer.add(token) for token in ids]
    texts[-1] += writer.flush()
    return texts

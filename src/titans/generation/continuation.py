"""Go on from a text of any length."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from titans.data.tokenizers import encode_pieces
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.generation.ending import end_tokens
from titans.generation.sampling import sample, seeded
from titans.generation.text import CONTEXT, TextWriter

if TYPE_CHECKING:
    from titans.models.write_policy import WritePolicy

PIECE_LENGTH = 2048  # tokens of the prompt in one forward pass


def continue_text(
    model: Any,
    tokenizer: Any,
    prompt: Iterable[str],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    policy: WritePolicy | None = None,
) -> Iterator[str]:
    """Generate text after a prompt that may be longer than memory.

    Args:
        model: a causal language model of this package.
        tokenizer: its tokenizer.
        prompt: the text, in consecutive parts.
        max_new_tokens: stop after this many tokens, or at a token that ends a text.
        temperature: of the softmax; 0 takes the likeliest token.
        top_p: sample from the likeliest tokens of this total probability.
        seed: of the sampling. Default: a random one.
        policy: which tokens the memories write. Default: all.

    Yields:
        Whole characters, as soon as they are known.

    Raises:
        TitansError: the prompt is empty and the tokenizer has no bos token, a sampling option is out of its
            range, the policy is for another model, or the model fails, as with weights that hold NaN.
    """
    if not 0 <= temperature < math.inf:
        raise TitansError(f"temperature is {temperature}, expected a number from 0 up")
    if not 0 <= top_p <= 1:
        raise TitansError(f"top_p is {top_p}, expected a number from 0 to 1")
    generator = seeded(seed)
    logits, state, context = _read(model, tokenizer, prompt, policy)
    yield from write_tokens(
        lambda ids, state: _step(model, ids, state),
        (logits, state),
        TextWriter(tokenizer, context),
        lambda logits: sample(logits, temperature, top_p, generator),
        max_new_tokens=max_new_tokens,
        ends=end_tokens(model, tokenizer),
    )


def write_tokens(
    step: Callable[[list[int], Any], tuple[Tensor, Any]],
    read: tuple[Tensor, Any],
    writer: TextWriter,
    choose: Callable[[Tensor], int],
    *,
    max_new_tokens: int,
    ends: Container[int],
) -> Iterator[str]:
    """Write token by token after what was read.

    Args:
        step: reads tokens after a state: the logits `[vocab_size]` of the next one, and the state after them.
        read: the logits and the state after the prompt.
        writer: makes text of the tokens.
        choose: the next token, from its logits.
        max_new_tokens: stop after this many tokens, or at one of `ends`.
        ends: tokens that end the text and are no part of it.

    Yields:
        Whole characters, as soon as they are known.

    Raises:
        TitansError: the model fails.
    """
    logits, state = read
    for left in reversed(range(max_new_tokens)):
        token = choose(logits)
        if token in ends:
            break
        if text := writer.add(token):
            yield text
        if left:  # nothing is predicted after the last token
            with refused_as("the model cannot go on with the text"):
                logits, state = step([token], state)
    if text := writer.flush():
        yield text


def _read(
    model: Any, tokenizer: Any, prompt: Iterable[str], policy: WritePolicy | None
) -> tuple[Tensor, Any, list[int]]:
    """Read the prompt in pieces: the logits of the token after it, the state, and its last tokens."""
    with torch.inference_mode():
        state = None if policy is None else policy.start(model.initial_state(1))
    logits: Tensor | None = None
    context: list[int] = []
    for piece in encode_pieces(tokenizer, prompt, PIECE_LENGTH):
        with refused_as("the model cannot read the text"):
            logits, state = _step(model, piece, state)
        context = [*context, *piece][-CONTEXT:]
    if logits is None:
        raise TitansError("the prompt is empty, and this tokenizer has no bos token to start from")
    return logits, state, context


def _step(model: Any, ids: list[int], state: Any) -> tuple[Tensor, Any]:
    """Read tokens: the logits `[vocab_size]` of the next one, on the CPU, and the state after them."""
    with torch.inference_mode():
        outputs = model(torch.tensor([ids], device=model.device), cache=state, use_cache=True, logits_to_keep=1)
        return outputs.logits[0, -1].float().cpu(), outputs.cache

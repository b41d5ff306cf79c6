"""Go on from a text of any length, with `model.generate`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from titans.data.tokenizers import encode_pieces
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.generation.ending import end_tokens
from titans.generation.sampling import check_finite
from titans.generation.text import CONTEXT, TextWriter

if TYPE_CHECKING:
    from titans.models.write_policy import WritePolicy

PIECE_LENGTH = 2048  # tokens of the prompt in one forward pass


class TextStreamer(BaseStreamer):
    """Writes the text that `model.generate` says as whole characters, each as soon as it is known.

    Args:
        writer: makes text of the tokens.
        write: called with the text that is new.
        ends: tokens that are no part of the text.
    """

    def __init__(self, writer: TextWriter, write: Callable[[str], None], ends: Iterable[int]) -> None:
        self.writer, self.write, self.ends = writer, write, frozenset(ends)
        self.in_prompt = True

    def put(self, value: Tensor) -> None:
        """Take the prompt, and then token by token."""
        for token in () if self.in_prompt else value.flatten().tolist():
            if token not in self.ends and (text := self.writer.add(token)):
                self.write(text)
        self.in_prompt = False

    def end(self) -> None:
        """Write what was held back."""
        if text := self.writer.flush():
            self.write(text)


class _Finite(LogitsProcessor):
    """Refuses logits of a damaged model, of which nothing can be chosen."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        check_finite(scores)
        return scores


def generate_text(
    model: Any,
    tokenizer: Any,
    prompt: Iterable[str],
    write: Callable[[str], None],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    policy: WritePolicy | None = None,
) -> None:
    """Generate text after a prompt that may be longer than memory.

    Args:
        model: a causal language model of this package.
        tokenizer: its tokenizer.
        prompt: the text, in consecutive parts.
        write: called with whole characters, as soon as they are known.
        max_new_tokens: stop after this many tokens, or at a token that ends a text.
        temperature: of the softmax, at least 0, which takes the likeliest token.
        top_p: sample from the likeliest tokens of this total probability.
        seed: of the sampling. Default: a random one.
        policy: which tokens the memories write. Default: all.

    Raises:
        TitansError: the prompt is empty and the tokenizer has no bos token, a sampling option is out of its range, the
            policy is for another model, or the model fails, as with weights that hold NaN.
    """
    if not 0 <= temperature < math.inf:
        raise TitansError(f"temperature is {temperature}, expected a number from 0 up")
    if not 0 <= top_p <= 1:
        raise TitansError(f"top_p is {top_p}, expected a number from 0 to 1")
    state, unread, context = _read(model, tokenizer, prompt, policy)
    ends = sorted(end_tokens(model, tokenizer))
    sampling = {"temperature": float(temperature), "top_p": top_p, "top_k": 0} if temperature else {}
    devices = [model.device] if model.device.type == "cuda" else []
    with refused_as("the model cannot go on with the text"), torch.random.fork_rng(devices):
        torch.manual_seed(int.from_bytes(os.urandom(7)) if seed is None else seed)  # its only source of chance
        model.generate(
            torch.tensor([unread], device=model.device),
            cache=state,
            streamer=TextStreamer(TextWriter(tokenizer, context, skip_special_tokens=True), write, ends),
            logits_processor=LogitsProcessorList([_Finite()]),
            max_new_tokens=max_new_tokens,
            do_sample=temperature > 0,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,  # of no use: there is one row
            **sampling,
        )


def _read(
    model: Any, tokenizer: Any, prompt: Iterable[str], policy: WritePolicy | None
) -> tuple[Any, list[int], list[int]]:
    """Read the prompt in pieces but for the last token: the state, what is unread, and the last tokens before."""
    state: Any = None
    unread: list[int] = []
    context: list[int] = []
    with torch.no_grad(), refused_as("the model cannot read the text"):
        if policy is not None:
            state = policy.start(model.initial_state(1))
        for piece in encode_pieces(tokenizer, prompt, PIECE_LENGTH):
            context = [*context, *piece][-CONTEXT:]
            *ids, last = [*unread, *piece]
            for start in range(0, len(ids), PIECE_LENGTH):
                tokens = torch.tensor([ids[start : start + PIECE_LENGTH]], device=model.device)
                state = model(tokens, cache=state, use_cache=True, logits_to_keep=1).cache
            unread = [last]
    if not unread:
        raise TitansError("the prompt is empty, and this tokenizer has no bos token to start from")
    return state, unread, context

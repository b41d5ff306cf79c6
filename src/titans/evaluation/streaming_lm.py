"""Causal language models that read a text of any length and go on greedily: ours, and those of Hugging Face."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from titans.data.tokenizers import check_vocabulary, encode_batch, load_tokenizer
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.generation.ending import end_tokens
from titans.generation.sampling import check_finite
from titans.generation.text import TextWriter

if TYPE_CHECKING:
    from titans.models.write_policy import WritePolicy

_NAMES = ("_name_or_path", "transformers_version", "dtype")  # change no answer, or show in the weights
_SAMPLE = "A text whose tokens tell tokenizers apart: 1234567, naïve, 'twas."


class StreamingLM:
    """A causal language model that reads texts of any length and goes on greedily.

    A Titans model streams the text with its state carried from piece to piece, in constant memory. Other models read
    it in pieces with their key-value cache; those of Hugging Face that keep a recurrent state (as Mamba) read it in
    one pass, as they cannot go on from a state with more than one token.

    Args:
        model: a causal language model, on any device; put into evaluation mode.
        tokenizer: its tokenizer.
        piece_length: tokens of one forward pass; changes speed and memory, not the answer. Default 2048.
        policy: which tokens the memories of a Titans model write. Default: all.

    Attributes:
        name: what to call the model.
        longest: tokens that the model can read, or None for any number.

    Raises:
        TitansError: the tokenizer is larger than the model's vocabulary, or a policy is given for a model that has no
            memory of ours, or the model is of a kind that takes no cache.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, piece_length: int = 2048, policy: WritePolicy | None = None
    ) -> None:
        from titans.models.configuration import TitansConfig

        check_vocabulary(tokenizer, model.config.get_text_config().vocab_size)
        self.model, self.tokenizer, self.policy = model.eval(), tokenizer, policy
        self.ours = isinstance(model.config, TitansConfig)
        accepted = inspect.signature(model.forward).parameters
        if "cache" not in accepted:
            raise TitansError(f"a {model.config.model_type} model takes no cache, so that it cannot be read in pieces")
        if policy is not None and not self.ours:
            raise TitansError(f"write policies are for Titans models, and this is a {model.config.model_type} model")
        self.name = str(getattr(model.config, "_name_or_path", "") or model.config.model_type)
        self.longest = None if self.ours else getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._piece_length = None if not self.ours and getattr(model, "_is_stateful", False) else piece_length
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._start = self._tokens_at_the_start()
        self._ends = end_tokens(model, tokenizer)

    def digest(self) -> str:
        """Name weights, configuration, tokenizer and policy, from a few numbers of each: others answer otherwise."""
        config = {k: v for k, v in self.model.config.to_dict().items() if k not in _NAMES}
        settled = json.dumps(config, sort_keys=True, default=str)  # a gate floor or a window is in no weight
        found = hashlib.sha256(repr((self._start, self._encode(_SAMPLE), self.policy, settled)).encode())
        for name, weight in sorted(self.model.state_dict().items()):
            values = weight.detach().flatten()
            some = values[:: max(1, values.numel() // 1000)].float().cpu()
            found.update(f"{name}{tuple(weight.shape)}".encode() + some.numpy().tobytes())
        return found.hexdigest()[:16]

    def count(self, text: str) -> int:
        """Count the tokens of a text, without special tokens."""
        return len(self._encode(text))

    @property
    def write(self) -> str:
        """What the memories take in: "always", "gated" or "never"."""
        return "always" if self.policy is None else self.policy.write

    def answer(self, prompt: str, max_new_tokens: int, progress: Callable[[float], None] = lambda share: None) -> str:
        """Go on from a text with the likeliest tokens.

        Args:
            prompt: the text; a special token that it happens to spell is ordinary text.
            max_new_tokens: stop after so many tokens, or at a token that ends a text.
            progress: called after each piece with the share of the prompt that has been read. Default: nothing.

        Returns:
            The new text.

        Raises:
            TitansError: the prompt and the answer are longer than the model's positions, the prompt is empty and there
                is no bos token, or the model fails.
        """
        ids = self._start + self._encode(prompt)
        writer = TextWriter(self.tokenizer, ids)
        return "".join(map(writer.add, self.generate(ids, max_new_tokens, progress))) + writer.flush()

    def generate(
        self, ids: list[int], max_new_tokens: int, progress: Callable[[float], None] = lambda share: None
    ) -> Iterator[int]:
        """Go on from tokens with the likeliest ones.

        Args:
            ids: the tokens, all that is read.
            max_new_tokens: stop after so many tokens, or before a token that ends a text.
            progress: called after each piece with the share of the tokens that has been read. Default: nothing.

        Yields:
            The new tokens.

        Raises:
            TitansError: the tokens and the answer are longer than the model's positions, there are none, or the model
                fails.
        """
        self._check_length(len(ids), max_new_tokens)
        logits, state = self._read(ids, progress)
        for left in reversed(range(max_new_tokens)):
            check_finite(logits)
            token = int(logits.argmax())
            if token in self._ends:
                return
            yield token
            if left:  # nothing is predicted after the last token
                logits, state = self._step([token], state)

    def _encode(self, text: str) -> list[int]:
        """In one call: a subword tokenizer cuts a text and its pieces differently."""
        return encode_batch(self.tokenizer, [text])[0]

    def _tokens_at_the_start(self) -> list[int]:
        """What stands before a text: our models are trained with bos, of others the tokenizer knows it."""
        if self.ours:
            return [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        special = set(self.tokenizer.all_special_ids)
        return list(itertools.takewhile(lambda token: token in special, self.tokenizer("a")["input_ids"]))

    def _check_length(self, tokens: int, new: int) -> None:
        if not tokens:
            raise TitansError("the prompt is empty, and this tokenizer has no bos token to start from")
        if self.longest is not None and tokens + new - 1 > self.longest:  # the last new token is not read
            raise TitansError(
                f"the prompt has {tokens:,} tokens and the answer up to {new:,}, but the model reads at most "
                f"{self.longest:,} (max_position_embeddings): give shorter texts"
            )

    def _read(self, ids: list[int], progress: Callable[[float], None]) -> tuple[Tensor, Any]:
        with torch.inference_mode():
            state = None if self.policy is None else self.policy.start(self.model.initial_state(1))
        length = self._piece_length or len(ids)
        for start in range(0, len(ids), length):
            logits, state = self._step(ids[start : start + length], state)
            progress(min(start + length, len(ids)) / len(ids))
        return logits, state

    def _step(self, ids: list[int], state: Any) -> tuple[Tensor, Any]:
        """Read tokens: the logits `[vocab_size]` of the next one, on the CPU, and the state after them."""
        with torch.inference_mode(), refused_as("the model cannot read the text"):
            tokens = torch.tensor([ids], device=self.model.device)
            outputs = self.model(tokens, cache=state, use_cache=True, **self._last_only)
            return outputs.logits[0, -1].float().cpu(), outputs.cache


def load_streaming_lm(name: str, device: str | None = None, write: str | None = None) -> StreamingLM:
    """Load a model and its tokenizer for reading.

    Args:
        name: the folder or hub id of a Titans model or of any causal language model of Hugging Face, in safetensors.
        device: as "cpu" or "cuda:1". Default: the accelerator of this machine, or its CPU.
        write: what the memories of a Titans model take in: "always", "gated" (with the folder's policy) or "never".
            Default: what calibration found best, "always" where there was none.

    Returns:
        The reader.

    Raises:
        TitansError: something cannot be loaded or does not fit, or there is no such device.
    """
    model, tokenizer, policy = load_any_model(name, device, write)
    if policy is not None and policy.write == "always":
        policy = None  # every token is written without one, too, and faster
    reader = StreamingLM(model, tokenizer, policy=policy)
    reader.name = name
    return reader


def load_any_model(
    name: str, device: str | None = None, write: str | None = None
) -> tuple[Any, Any, WritePolicy | None]:
    """Load a model, its tokenizer and the policy of its memories.

    Args:
        name: the folder or hub id of a Titans model or of any causal language model of Hugging Face, in safetensors.
        device: as "cpu" or "cuda:1". Default: the accelerator of this machine, or its CPU.
        write: what the memories of a Titans model take in, see `load_streaming_lm`.

    Returns:
        The three; no policy for a model that is not ours.

    Raises:
        TitansError: something cannot be loaded, or there is no such device.
    """
    from titans.models.configuration import TitansConfig
    from titans.training.pretrained import (
        find_device,
        load_any_config,
        load_causal_model,
        load_model,
        load_write_policy,
    )

    where = find_device(device)
    ours = isinstance(load_any_config(name), TitansConfig)
    policy = load_write_policy(name, write) if ours else None
    if not ours and write not in (None, "always"):
        raise TitansError(f'"{name}" is no Titans model and has no memory that could write "{write}"')
    model: Any = load_model(name) if ours else load_causal_model(name)
    tokenizer = load_tokenizer(name)
    try:
        model = model.to(where)
    except (RuntimeError, AssertionError) as error:
        raise TitansError(f'the model cannot be put on the device "{where}": {error}') from error
    return model, tokenizer, policy

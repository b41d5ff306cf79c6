"""The model that lm-evaluation-harness asks: its own for Hugging Face, with a memory that streams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from titans.error_text import refused_as
from titans.errors import TitansError
from titans.evaluation.streaming_lm import StreamingLM

WINDOW = 2048  # tokens of a window where neither the user nor the model sets them: the harness's own default
UNCUT = 1 << 40  # more tokens than any prompt has


class TitansLM(HFLM):  # type: ignore[misc]
    """The harness's Hugging Face model, which streams generations, follows a write policy and counts what it cuts.

    Args:
        lm: the model, with its tokenizer and its write policy.
        batch_size: sequences of one forward pass. With one, a Titans model reads the prompts of generations in pieces.
        max_length: tokens of a window, and the most that is left of a prompt. None: what the configuration says, or
            else 2,048.

    Attributes:
        cut: the prompts that were cut on the left since `start`.
    """

    def __init__(self, lm: StreamingLM, batch_size: int = 1, max_length: int | None = None) -> None:
        super().__init__(
            pretrained=lm.model, tokenizer=lm.tokenizer, backend="causal", batch_size=batch_size, max_length=max_length
        )
        self._lm, self._streams = lm, batch_size == 1 and lm.ours
        self.start(None)

    def start(self, progress: Callable[[float], None] | None) -> None:
        """Begin with a task, whose progress is told as the share of its requests that are done."""
        self._progress, self.cut, self._done, self._rows = progress, set[str](), 0, 1

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """See `lm_eval.api.model.LM`."""
        self._rows += len(requests) - 1
        if self.max_length < UNCUT:
            for context, rest in (request.args for request in requests):
                tokens = self.tok_encode(context + rest, add_special_tokens=None if context else False)
                if len(tokens) + (not context) > self.max_length + 1:  # the last token is not read
                    self.cut.add(context)
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """See `lm_eval.api.model.LM`."""
        lengths = (len(self.tok_encode(request.args[0])) for request in requests)
        self._rows += sum(math.ceil(length / self.max_length) for length in lengths) - 1
        return super().loglikelihood_rolling(requests, disable_tqdm=True)

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """See `lm_eval.api.model.LM`."""
        self._rows += len(requests) - 1
        return super().generate_until(requests, disable_tqdm=True)

    def tok_batch_encode(self, strings: Any, *args: Any, left_truncate_len: Any = None, **options: Any) -> Any:
        """Encode the prompts of generations, and count those that are cut."""
        if left_truncate_len and self.max_length < UNCUT:
            self.cut |= {text for text in strings if len(self.tok_encode(text)) > left_truncate_len}
        return super().tok_batch_encode(strings, *args, left_truncate_len=left_truncate_len, **options)

    def _model_call(self, inps: Any, *args: Any, **options: Any) -> Any:
        with refused_as("the model cannot read the text"), torch.no_grad():
            if self._lm.policy is None:
                logits = super()._model_call(inps, *args, **options)
            else:
                logits = self.model(inps, cache=self._state(len(inps)), use_cache=False).logits
        if bool(logits.isnan().any()):  # accuracies would count as if the first answer had been chosen
            raise TitansError("the model answers NaN: its weights are damaged, or its training diverged")
        self._show(len(inps))
        return logits

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **options: Any) -> Any:
        if self._streams and not options.get("do_sample"):
            tokens = torch.tensor([self._stream(context[0].tolist(), max_length - context.shape[1], stop)])
        else:
            if self._lm.policy is not None:
                options["cache"] = self._state(len(context))
            tokens = super()._model_generate(context, max_length, stop, **options)
        self._show(len(context))
        return tokens

    def _stream(self, prompt: list[int], new: int, stop: list[str]) -> list[int]:
        """Return a prompt and its continuation up to a stop string, read in pieces with the state carried along."""
        tokens = list(prompt)
        for token in self._lm.generate(prompt, new, lambda share: self._show(0, share * 0.99)):
            tokens.append(token)
            text = self.tok_decode(tokens[len(prompt) :])
            if any(term in text for term in stop if term):
                break
        return tokens

    def _state(self, rows: int) -> Any:
        assert self._lm.policy is not None
        return self._lm.policy.start(self.model.initial_state(rows))

    def _show(self, rows: int, share: float = 0.0) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(min(1.0, (self._done + share) / self._rows))


def make_lm(lm: StreamingLM, batch_size: int, max_length: int | None, rolling: bool) -> TitansLM:
    """Make what the harness asks.

    The harness cuts prompts on the left where they are longer than the model's limit, which it looks up in the
    configuration and takes for 2,048 where there is none. A model without a limit here reads whole prompts, and only
    the windows of whole documents, as of WikiText, have 2,048 tokens.

    Args:
        lm: a causal language model.
        batch_size: sequences of one forward pass.
        max_length: tokens of a window, and the most that is left of a prompt. None: as above.
        rolling: the task reads whole documents in windows.

    Returns:
        A model of the harness.

    Raises:
        TitansError: the tokenizer has neither a bos nor an eos token.
    """
    if lm.tokenizer.bos_token_id is None and lm.tokenizer.eos_token_id is None:
        raise TitansError("the tokenizer has neither a bos nor an eos token, and lm-evaluation-harness needs one")
    config = lm.model.config.get_text_config()
    names = ("n_positions", "max_position_embeddings", "n_ctx")
    if max_length is None and all(getattr(config, name, None) is None for name in names):
        max_length = WINDOW if rolling else UNCUT
    return TitansLM(lm, batch_size, max_length)


def special_tokens(lm: TitansLM) -> str:
    """Say with which special tokens the tokenizer begins and ends a prompt, as the harness has it do.

    Returns:
        Words, such as "prompts after <s>, which the tokenizer adds".
    """
    ids, special = lm.tok_encode("a"), set(lm.tokenizer.all_special_ids)
    before = list(itertools.takewhile(lambda token: token in special, ids))
    after = list(itertools.takewhile(lambda token: token in special, reversed(ids[len(before) :])))[::-1]
    names = [" ".join(lm.tokenizer.convert_ids_to_tokens(tokens)) for tokens in (before, after)]
    added = [f"{where} {name}" for where, name in zip(("after", "before"), names, strict=True) if name]
    return f"prompts {' and '.join(added)}, which the tokenizer adds" if added else "prompts without bos"

"""What lm-evaluation-harness asks its questions to: a model in this process, in its tokens."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from titans.error_text import refused_as
from titans.errors import TitansError
from titans.evaluation.language.harness import quiet
from titans.evaluation.streaming_lm import StreamingLM
from titans.models.configuration import TitansConfig

if TYPE_CHECKING:
    from titans.models.write_policy import WritePolicy

Progress = Callable[[float], None]

WINDOW = 2048  # tokens of a window where neither the user nor the model sets them: the harness's own default
UNCUT = 1 << 40  # more tokens than any prompt has


def make_lm(
    model: Any,
    tokenizer: Any,
    batch_size: int,
    max_length: int | None,
    rolling: bool,
    policy: WritePolicy | None = None,
) -> Any:
    """Make what the harness asks its questions to.

    The harness cuts prompts on the left where they are longer than the model's limit, which it looks up in the
    configuration and takes for 2,048 where there is none. A model without a limit here reads whole prompts, and only
    the windows of whole documents, as of WikiText, have 2,048 tokens.

    Args:
        model: a causal language model, on any device.
        tokenizer: its tokenizer.
        batch_size: sequences of one forward pass.
        max_length: tokens of a window, and the most that is left of a prompt. None: as above.
        rolling: the task reads whole documents in windows.
        policy: which tokens the memories of a Titans model write. Default: all.

    Returns:
        A model of the harness that counts in `cut` the prompts that it cut, and reports its progress to `progress`.

    Raises:
        TitansError: the tokenizer has neither a bos nor an eos token, or a policy is given for another kind of model.
    """
    ours = isinstance(model.config, TitansConfig)
    if policy is not None and not ours:
        raise TitansError(f"write policies are for Titans models, and this is a {model.config.model_type} model")
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise TitansError("the tokenizer has neither a bos nor an eos token, and lm-evaluation-harness needs one")
    if max_length is None and not has_limit(model):
        max_length = WINDOW if rolling else UNCUT
    with quiet():
        lm = _lm_class()(
            pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, max_length=max_length
        )
    lm.policy = policy
    if batch_size == 1 and ours:
        lm.reader = StreamingLM(model, tokenizer, policy=policy)
    return lm


def has_limit(model: Any) -> bool:
    """Tell whether a model's configuration says how much it can read."""
    config = model.config.get_text_config()
    return any(getattr(config, name, None) is not None for name in ("n_positions", "max_position_embeddings", "n_ctx"))


def special_tokens(lm: Any) -> str:
    """Say with which special tokens the tokenizer begins and ends a prompt, as the harness has it do.

    Args:
        lm: from `make_lm`.

    Returns:
        Words, such as "prompts after <s>, which the tokenizer adds".
    """
    ids, special = lm.tok_encode("a"), set(lm.tokenizer.all_special_ids)
    before = list(itertools.takewhile(lambda token: token in special, ids))
    after = list(itertools.takewhile(lambda token: token in special, reversed(ids[len(before) :])))[::-1]
    names = [" ".join(lm.tokenizer.convert_ids_to_tokens(tokens)) for tokens in (before, after)]
    added = [f"{where} {name}" for where, name in zip(("after", "before"), names, strict=True) if name]
    return f"prompts {' and '.join(added)}, which the tokenizer adds" if added else "prompts without bos"


class _Decoded:
    """Writes as the harness does: all new tokens decoded together, special ones left out."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.text = tokenizer, ""
        self.ids: list[int] = []

    def add(self, token: int) -> str:
        """Return all text so far, with that of a further token."""
        self.ids.append(token)
        self.text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        return self.text

    def flush(self) -> str:
        """Return nothing: all has been said."""
        return ""


@functools.cache
def _lm_class() -> Any:
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

    class CountingLM(HFLM):  # type: ignore[misc]
        """The harness's Hugging Face model, with one progress for all and a count of the prompts it cuts."""

        progress: Progress | None = None
        reader: StreamingLM | None = None
        policy: WritePolicy | None = None

        def start(self, progress: Progress | None) -> None:
            """Begin with a task."""
            self.progress = progress
            self.cut: set[tuple[int, str]] = set()

        def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
            self._begin(requests, len(requests))
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
            lengths = (len(self.tok_encode(request.args[0])) for request in requests)
            self._begin((), sum(math.ceil(length / self.max_length) for length in lengths))
            return super().loglikelihood_rolling(requests, disable_tqdm=True)

        def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
            self._begin(requests, len(requests))
            settings = [normalize_gen_kwargs(request.args[1], self.max_gen_toks) for request in requests]
            if self.reader is None or any(one.get("do_sample") for one in settings):
                return super().generate_until(requests, disable_tqdm=True)
            return [
                self._stream(self.reader, request.args[0], one) for request, one in zip(requests, settings, strict=True)
            ]

        def _stream(self, reader: StreamingLM, context: str, settings: Any) -> str:
            """Answer as the harness does, but read in pieces with the state carried along."""
            eos = self.tok_decode([self.eot_token_id], skip_special_tokens=False)
            until = handle_stop_sequences(settings.get("until"), eos=eos)
            new = settings["max_gen_toks"]
            if self.max_length <= new:
                raise TitansError(f"answers of {new} tokens leave no room for a prompt: the limit is {self.max_length}")
            ids, _ = self.tok_batch_encode([context], left_truncate_len=self.max_length - new)
            written = _Decoded(self.tokenizer)
            for text in reader.go_on(ids[0].tolist(), new, written, lambda share: self._show(share * 0.99)):
                if any(term in text for term in until if term):
                    break
            self._advance(1)
            answer: str = postprocess_generated_text(written.text, until, None)
            return answer

        def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = True, **options: Any) -> Any:
            lengths = [len(context) + len(rest) for _, context, rest in requests]
            if self._asked:  # a window of a whole document is never too long
                longer = zip(self._asked, lengths, strict=True)
                self.cut |= {prompt for prompt, length in longer if length > self.max_length + 1}
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **options)

        def tok_batch_encode(self, strings: Any, *args: Any, left_truncate_len: Any = None, **options: Any) -> Any:
            if left_truncate_len:
                long = {text for text in strings if len(self.tok_encode(text)) > left_truncate_len}
                self.cut |= {(document, text) for document, text in self._asked if text in long}
            return super().tok_batch_encode(strings, *args, left_truncate_len=left_truncate_len, **options)

        def _model_call(self, inps: Any, *args: Any, **options: Any) -> Any:
            with refused_as("the model cannot read the text"):
                if self.policy is None:
                    logits = super()._model_call(inps, *args, **options)
                else:
                    with torch.no_grad():
                        logits = self.model(inps, cache=self._fresh(len(inps)), use_cache=False).logits
            if bool(logits.isnan().any()):  # accuracies would count as if the first answer had been chosen
                raise TitansError("the model answers NaN: its weights are damaged, or its training diverged")
            self._advance(len(inps))
            return logits

        def _model_generate(self, context: Any, *args: Any, **options: Any) -> Any:
            if self.policy is not None:
                options["cache"] = self._fresh(len(context))
            tokens = super()._model_generate(context, *args, **options)
            self._advance(len(context))
            return tokens

        def _fresh(self, rows: int) -> Any:
            assert self.policy is not None
            return self.policy.start(self.model.initial_state(rows))

        def _begin(self, requests: Sequence[Any], rows: int) -> None:
            """Count from here: what is asked, by document and prompt, and how many sequences that makes."""
            self._asked = [(request.doc_id, request.args[0]) for request in requests]
            self._done, self._rows = 0, max(rows, 1)

        def _advance(self, rows: int) -> None:
            self._done += rows
            self._show(0.0)

        def _show(self, share: float) -> None:
            if self.progress is not None:
                self.progress(min(1.0, (self._done + share) / self._rows))

    return CountingLM

"""`generate` for models whose cache is a memory: what it may read, and in which pieces."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.utils import GenerateBeamDecoderOnlyOutput, GenerateDecoderOnlyOutput

from titans.models.memory_state import MemoryState


class StreamingGeneration(GenerationMixin):
    """Hugging Face's generation, in which a prompt that comes with a state is what the state has not read.

    The exception is the whole text again, with the state that an earlier `generate` left of it: then what is new is
    read, as of other models. `prefill_chunk_size` has prompts read in pieces.
    """

    @torch.no_grad()
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as `GenerationMixin.generate` does, and have the state know the text that it has read.

        Args:
            *args: as there.
            **kwargs: as there.

        Returns:
            As there.

        Raises:
            ValueError: as there, or the state is of a beam search.
        """
        output = super().generate(*args, **kwargs)
        if isinstance(output, GenerateBeamDecoderOnlyOutput | GenerateDecoderOnlyOutput):
            state: Any = output.cache
            given = kwargs.get("cache", kwargs.get("past_key_values"))
            if isinstance(state, MemoryState) and state is not given:  # without use_cache it has read nothing
                state.of_beams = isinstance(output, GenerateBeamDecoderOnlyOutput)
                state.text = None if state.of_beams else _read_text(state, output.sequences)
        return output

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: MemoryState | None = None,
        is_first_iteration: bool | None = False,
        inputs_embeds: Tensor | None = None,
        known: int = 0,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare a call of `forward`; of a text that comes with a state only what is new.

        Args:
            input_ids: all ids so far, `[B, T]`.
            next_sequence_length: how many of them are to be read; None for all.
            cache: the state.
            is_first_iteration: whether this is the prompt.
            inputs_embeds: the prompt in place of ids, all of which is new.
            known: how many of the ids the state has read, where all are to be read. Default 0.
            **kwargs: as of `GenerationMixin`.

        Returns:
            The arguments of `forward`.
        """
        if known and next_sequence_length is None:
            next_sequence_length = input_ids.shape[1] - known
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length,
            cache=cache,
            is_first_iteration=is_first_iteration,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return inputs

    def _prefill(
        self,
        input_ids: Tensor,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        is_first_iteration: bool = True,
    ) -> Any:
        """Read the prompt: at once, or in pieces of `prefill_chunk_size` tokens, each from the state of the last."""
        size, cache = generation_config.prefill_chunk_size, model_kwargs.get("cache")
        if isinstance(cache, MemoryState) and model_kwargs.get("inputs_embeds") is None:
            model_kwargs["known"] = _known(input_ids, cache)  # also for the steps that follow without use_cache
            if generation_config.num_beams > 1 and not generation_config.use_cache:  # the steps put its rows in order
                model_kwargs["cache"] = cache.for_rows(len(input_ids), len(cache.layers))
        if size is None:
            return super()._prefill(input_ids, generation_config, model_kwargs, is_first_iteration)  # type: ignore[arg-type,misc]
        if not generation_config.use_cache:
            raise ValueError("prefill_chunk_size is of no use with use_cache=False: leave out one of the two")
        inputs = self.prepare_inputs_for_generation(input_ids, is_first_iteration=is_first_iteration, **model_kwargs)
        name = "input_ids" if inputs.get("inputs_embeds") is None else "inputs_embeds"
        prompt, mask, positions = inputs.pop(name), inputs.pop("attention_mask", None), inputs.pop("position_ids", None)
        count = prompt.shape[1]
        mask = None if mask is None else mask[:, mask.shape[1] - count :]
        for start in range(0, count, size):
            here = slice(start, start + size)
            inputs |= {name: prompt[:, here], "return_dict": True}
            inputs["attention_mask"] = None if mask is None else mask[:, here]
            inputs["position_ids"] = None if positions is None else positions[:, here]
            output = self(**inputs)  # type: ignore[operator]
            inputs["cache"] = output.cache
        return output

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse what `generate_batch` and transformers' server are made of.

        Args:
            *args: of no use.
            **kwargs: of no use.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "continuous batching keeps pages of keys and values, which a memory lacks: generate a padded batch, "
            "or use titans serve"
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the first forward pass makes the state

    def _reorder_cache(self, cache: MemoryState, beam_idx: Tensor) -> MemoryState:
        return cache.select(beam_idx)


def _read_text(state: MemoryState, sequences: Tensor) -> Tensor | None:
    """The ids that a state has read, `[B, tokens]`, if `sequences` are all of them and the one generated last."""
    return sequences[:, :-1] if sequences.shape[1] - 1 == state.tokens else None


def _known(ids: Tensor, state: MemoryState) -> int:
    """Tell how many of the ids `[B, T]` of a prompt the state has read.

    Raises:
        ValueError: the state is of a beam search.
    """
    if state.of_beams:
        raise ValueError(
            "this state was left by a beam search, whose last beams need not be the text that it returned: read that "
            "text again, or generate without beams"
        )
    count, text = ids.shape[1], state.text
    if text is not None and len(ids) % len(text) == 0:
        known = min(count, text.shape[1])
        again = torch.equal(ids[:, :known], text[:, :known].repeat_interleave(len(ids) // len(text), 0).to(ids.device))
        if again and count > known:
            return known
        suspicious = (again and known > 1) or count > known
    else:
        suspicious = count > int(torch.as_tensor(state.tokens).max()) > 0
    if suspicious:
        warnings.warn(
            f"the prompt's {count} tokens are all read as new, though they could be the whole text again, of which the "
            "state has read a part: pass only what it has not read, the token generated last and what follows",
            UserWarning,
            stacklevel=2,
        )
    return 0

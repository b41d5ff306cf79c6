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
            if isinstance(state, MemoryState):
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
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare a call of `forward`; of a prompt that comes with a state only what is new.

        Args:
            input_ids: all ids so far, `[B, N]`.
            next_sequence_length: how many of them are to be read; None for all.
            cache: the state.
            is_first_iteration: whether this is the prompt.
            inputs_embeds: the prompt in place of ids, all of which is new.
            **kwargs: as of `GenerationMixin`.

        Returns:
            The arguments of `forward`.

        Raises:
            ValueError: the state is of a beam search.
        """
        if is_first_iteration and isinstance(cache, MemoryState) and inputs_embeds is None:
            next_sequence_length = _unread(input_ids, cache)
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
        size = generation_config.prefill_chunk_size
        if size is None or not generation_config.use_cache:
            return super()._prefill(input_ids, generation_config, model_kwargs, is_first_iteration)  # type: ignore[arg-type,misc]
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


def _unread(ids: Tensor, state: MemoryState) -> int | None:
    """Tell how many of the ids `[B, N]` of a prompt the state has not read; None for all.

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
            return count - known
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
    return None

"""`generate` with the memory state as its cache equals full forward passes."""

import pytest
import torch
from transformers import DynamicCache

from titans import MemoryState

VOCABULARY, NEW = 23, 6
# Window 5, segment 4, chunk 3: shorter, equal, longer; two persistent tokens shift the chunks.
PROMPTS = (1, 5, 11)


def text(batch, count, seed=0):
    return torch.randint(1, VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(seed))


def literal_greedy(model, ids, count):
    """Greedy search by full forward passes, without any cache; and the logits of each step."""
    steps = []
    with torch.no_grad():
        for _ in range(count):
            logits = model(ids, use_cache=False).logits[:, -1]
            steps.append(logits)
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids, torch.stack(steps)


def generate(model, ids, **options):
    return model.generate(ids, **{"max_new_tokens": NEW, "do_sample": False, **options})


@pytest.mark.parametrize("length", PROMPTS)
def test_greedy_equals_full_forward_passes(model, close, length):
    ids = text(2, length)
    expected, logits = literal_greedy(model, ids, NEW)
    out = generate(model, ids, return_dict_in_generate=True, output_logits=True)
    assert torch.equal(out.sequences, expected)
    close(torch.stack(out.logits), logits.to(out.logits[0].dtype), 1e-9)


def test_sampling_is_reproducible_and_equals_sampling_without_cache(make_model, variant):
    model, ids = make_model(variant), text(2, 6)
    found = []
    for use_cache in (True, True, False):
        torch.manual_seed(3)
        found.append(generate(model, ids, do_sample=True, top_k=8, temperature=1.5, use_cache=use_cache))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.manual_seed(4)
    assert not torch.equal(found[0], generate(model, ids, do_sample=True, top_k=8, temperature=1.5))


@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}]
)
def test_beams_with_and_without_cache(make_model, variant, options):
    model, ids = make_model(variant), text(2, 6)
    beams = generate(model, ids, **options)
    assert beams.shape == (2 * options.get("num_return_sequences", 1), 6 + NEW)
    assert torch.equal(beams, generate(model, ids, use_cache=False, **options))


def test_beams_do_reorder_the_state(make_model, variant, monkeypatch):
    """Some beam takes another parent; else the test above could not tell a forgotten reordering."""
    orders, select = [], MemoryState.select

    def spy(state, rows):
        orders.append(rows.tolist())
        return select(state, rows)

    monkeypatch.setattr(MemoryState, "select", spy)
    generate(make_model(variant), text(2, 6), num_beams=4)
    assert any(rows != list(range(8)) for rows in orders if len(rows) == 8)


def test_several_sequences_from_one_prompt(make_model, variant):
    model, ids = make_model(variant), text(2, 6)
    torch.manual_seed(0)
    many = generate(model, ids, do_sample=True, num_return_sequences=3)
    torch.manual_seed(0)
    assert torch.equal(many, generate(model, ids.repeat_interleave(3, 0), do_sample=True))
    assert len({tuple(row) for row in many.tolist()}) > 2


def test_left_padded_batch_equals_single_rows(model):
    lengths = (2, 9)
    rows = [text(1, n, seed=n) for n in lengths]
    ids = torch.cat(
        [torch.cat([torch.zeros(1, 9 - n, dtype=torch.long), r], 1) for n, r in zip(lengths, rows, strict=True)]
    )
    mask = torch.arange(9) >= 9 - torch.tensor(lengths).unsqueeze(1)
    out = generate(model, ids, attention_mask=mask.long(), pad_token_id=0)
    for i, row in enumerate(rows):
        assert torch.equal(out[i, 9:], literal_greedy(model, row, NEW)[0][0, row.shape[1] :])


def test_left_padded_beams_equal_single_rows(make_model, variant):
    model = make_model(variant)
    short, long = text(1, 3), text(1, 7, seed=1)
    ids = torch.cat([torch.cat([torch.zeros(1, 4, dtype=torch.long), short], 1), long])
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :4] = 0
    out = generate(model, ids, attention_mask=mask, num_beams=3, pad_token_id=0)
    assert torch.equal(out[0, 7:], generate(model, short, num_beams=3)[0, 3:])
    assert torch.equal(out[1:], generate(model, long, num_beams=3))


def test_the_state_goes_from_one_generate_into_the_next(model, same):
    """The second call is given only what the state has not read: the last token generated, and what is new."""
    ids, more = text(2, 6), text(2, 3, seed=1)
    first = generate(model, ids, return_dict_in_generate=True, max_new_tokens=5)
    state = first.cache
    assert state.tokens == 6 + 5 - 1
    before = state.clone()
    rest = torch.cat([first.sequences[:, -1:], more], 1)
    second = generate(model, rest, cache=state)
    same(state, before)
    expected, _ = literal_greedy(model, torch.cat([first.sequences, more], 1), NEW)
    assert torch.equal(second[:, -NEW:], expected[:, -NEW:])


def test_a_state_read_in_pieces_starts_generation(make_model, variant):
    """A prompt of any length: read it piece by piece, then generate from the state; beams too."""
    model, ids = make_model(variant), text(2, 24)
    state = None
    with torch.no_grad():
        for piece in ids[:, :-1].split(7, 1):
            state = model(piece, cache=state).cache
    found = generate(model, ids[:, -1:], cache=state)
    assert torch.equal(found[:, -NEW:], literal_greedy(model, ids, NEW)[0][:, -NEW:])
    # An even number of beams: with three, the first beam of each row, the only one that counts at first, would hit its
    # own state even if the two rows were repeated in the wrong order.
    beams = generate(model, ids[:, -1:], cache=state, num_beams=4)
    assert torch.equal(beams[:, -NEW:], generate(model, ids, num_beams=4)[:, -NEW:])


def test_the_whole_text_with_the_state_reads_what_is_new(model):
    """The usual chat loop, over three turns, as of other models."""
    whole, state, options = text(2, 6), None, {"return_dict_in_generate": True, "max_new_tokens": 4}
    for turn in (1, 2, 3):
        found = generate(model, whole, cache=state, **options)
        expected = generate(model, whole, **options)
        assert torch.equal(found.sequences, expected.sequences)
        assert found.cache.tokens == expected.cache.tokens == whole.shape[1] + 3
        whole, state = torch.cat([found.sequences, text(2, 3, seed=turn)], 1), found.cache


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_return_sequences": 3, "do_sample": True}])
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("variant", ["mac", "rmt"])
def test_a_state_is_gone_on_from_without_a_cache(make_model, variant, options, again):
    """Each step reads from the same state: what that has not read, which a padded batch shows."""
    model, ids, new = make_model(variant), text(2, 9), text(2, 5, seed=1)
    mask = torch.ones_like(ids)
    ids[0, :4] = mask[0, :4] = 0
    first = generate(model, ids, attention_mask=mask, return_dict_in_generate=True, pad_token_id=0)
    whole, unread = torch.cat([first.sequences, new], 1), torch.cat([first.sequences[:, -1:], new], 1)
    mask = torch.cat([mask, torch.ones_like(whole[:, 9:])], 1)
    before, found = first.cache.text, []
    for use_cache in (True, False):
        torch.manual_seed(0)
        given = {"inputs": whole, "attention_mask": mask} if again else {"inputs": unread}
        out = model.generate(
            **given, **options, cache=first.cache, use_cache=use_cache, max_new_tokens=NEW, pad_token_id=0
        )
        found.append(out)
    assert torch.equal(*found)
    generate(model, unread, cache=first.cache, use_cache=False, return_dict_in_generate=True)
    assert first.cache.text is before  # it has read nothing


def test_what_is_generated_without_a_cache_does_not_make_a_prompt_the_whole_text(make_model):
    """A prompt that is read as new stays new when, with what follows it, it happens to be the text that was read."""
    model, ids = make_model("mac"), text(1, 6)
    state = model(ids).cache
    state.text = torch.cat([ids[:, :4], generate(model, ids[:, :4], cache=state)[:, 4:6]], 1)
    with pytest.warns(UserWarning, match="4 tokens are all read as new"):
        found = generate(model, ids[:, :4], cache=state, use_cache=False)
    with pytest.warns(UserWarning, match="4 tokens are all read as new"):
        assert torch.equal(found, generate(model, ids[:, :4], cache=state))


def test_pieces_of_a_prompt_without_a_cache_are_refused(make_model):
    model, ids = make_model("mac"), text(1, 6)
    with pytest.raises(ValueError, match="prefill_chunk_size is of no use with use_cache=False"):
        generate(model, ids, cache=model(ids).cache, use_cache=False, prefill_chunk_size=2)


def test_what_could_be_the_whole_text_again_is_not_read_silently(make_model):
    model, ids = make_model("mac"), text(1, 6)
    state = generate(model, ids, return_dict_in_generate=True).cache
    with pytest.warns(UserWarning, match="6 tokens are all read as new, though they could be the whole text"):
        generate(model, ids, cache=state)  # the prompt once more
    with pytest.warns(UserWarning, match="12 tokens are all read as new"):
        generate(model, text(1, 12, seed=1), cache=state)  # another text, or this one in other tokens
    with pytest.warns(UserWarning, match="7 tokens are all read as new"):
        generate(model, text(1, 7), cache=model(ids).cache)  # no text is known
    expected = generate(model, torch.cat([ids, text(1, 5, seed=1)], 1))  # warnings are errors: none here
    assert torch.equal(generate(model, text(1, 5, seed=1), cache=model(ids).cache)[:, 5:], expected[:, 11:])


def test_whole_text_in_several_sequences(make_model):
    model, ids = make_model("mal"), text(2, 6)
    first = generate(model, ids, return_dict_in_generate=True)
    whole = torch.cat([first.sequences, text(2, 2, seed=1)], 1)
    for options in ({"num_beams": 2, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 3}):
        torch.manual_seed(0)
        found = generate(model, whole, cache=first.cache, **options)
        torch.manual_seed(0)
        assert torch.equal(found, generate(model, whole, **options))


@pytest.mark.parametrize("size", [1, 4, 50])
def test_a_prompt_is_read_in_pieces(make_model, variant, size):
    model, ids = make_model(variant), text(2, 11)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    options = {"attention_mask": mask, "pad_token_id": 0, "return_dict_in_generate": True, "output_logits": True}
    expected = generate(model, ids, **options)
    calls = []
    with model.model.embed_tokens.register_forward_pre_hook(lambda layer, inputs: calls.append(inputs[0].shape[1])):
        found = generate(model, ids, prefill_chunk_size=size, **options)
    assert calls == [min(size, 11 - start) for start in range(0, 11, size)] + [1] * (NEW - 1)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.logits, expected.logits)
    more = torch.cat([found.sequences[:, -1:], text(2, 8, seed=1)], 1)
    rest = [generate(model, more, cache=found.cache, prefill_chunk_size=n, pad_token_id=0) for n in (size, None)]
    assert torch.equal(*rest)


def test_a_prompt_of_embeddings_is_read_in_pieces(make_model):
    model, ids = make_model("mac"), text(2, 9)
    embeddings = model.get_input_embeddings()(ids).detach()
    found = generate(model, None, inputs_embeds=embeddings, prefill_chunk_size=4)
    assert torch.equal(found, generate(model, ids)[:, 9:])


def test_the_state_of_a_beam_search_is_refused(make_model):
    model, ids = make_model("mac"), text(1, 6)
    state = generate(model, ids, num_beams=4, return_dict_in_generate=True).cache
    for beams in (1, 4):
        with pytest.raises(ValueError, match="this state was left by a beam search"):
            generate(model, ids[:, -1:], cache=state, num_beams=beams)
    with pytest.raises(ValueError, match=r"holds 4 rows and the batch 1.*after beam search"):
        model(ids, cache=state)


def test_hidden_states_of_each_step(make_model, close):
    model, ids = make_model("rmt"), text(2, 6)
    options = {"return_dict_in_generate": True, "output_hidden_states": True}
    out = generate(model, ids, **options)
    expected = model(out.sequences[:, :-1], output_hidden_states=True).hidden_states
    steps = tuple(torch.cat(parts, 1) for parts in zip(*out.hidden_states, strict=True))
    close(steps, expected, 1e-9)
    with pytest.raises(ValueError, match="output_attentions=True cannot be followed"):
        generate(model, ids, output_attentions=True, return_dict_in_generate=True)


def test_rows_of_states_can_be_mixed(make_model, variant, close):
    """Rows of a state can be selected and put together, as a server does with its sessions."""
    model = make_model(variant)
    with torch.no_grad():
        a = model(text(2, 6)).cache
        b = model(text(2, 9, seed=1)).cache
        rows = torch.tensor([True, False])
        mixed, more = a.where(rows, b), text(2, 6, seed=2)
        found = model(more, cache=mixed)
        close(found.logits[:1], model(more[:1], cache=a.select(torch.tensor([0]))).logits, 1e-11)
        close(found.logits[1:], model(more[1:], cache=b.select(torch.tensor([1]))).logits, 1e-11)
        again = model(more[:, :1], cache=found.cache).cache
        assert again.nbytes >= a.nbytes or variant == "rmt"  # its segment is over, and keys and values dropped
        assert torch.equal(generate(model, more, cache=mixed)[0, 6:],
                           generate(model, more[:1], cache=a.select(torch.tensor([0])))[0, 6:])  # fmt: skip


def test_eos_ends_a_row_without_disturbing_the_others(make_model, variant):
    model, ids = make_model(variant), text(2, 6)
    expected = literal_greedy(model, ids, NEW)[0][:, 6:]
    eos = int(expected[0, 2])
    out = generate(model, ids, eos_token_id=eos, pad_token_id=0)[:, 6:]
    for row in range(2):
        stop = (expected[row] == eos).nonzero()
        stop = int(stop[0]) + 1 if len(stop) else NEW
        assert torch.equal(out[row, :stop], expected[row, :stop])
        assert (out[row, stop:] == 0).all()


def test_what_a_memory_cannot_do_is_refused(make_model):
    model, ids = make_model("mac"), text(1, 5)
    state = model(ids).cache
    with pytest.raises(ValueError, match="cannot be cropped"):
        state.crop(3)
    with pytest.raises(ValueError, match="assisted"):
        generate(model, ids, assistant_model=make_model("lmm"))
    with pytest.raises(ValueError, match="continuous batching keeps pages of keys and values"):
        model.generate_batch(ids.tolist())
    with pytest.raises(ValueError, match="the state is a DynamicCache: expected a MemoryState"):
        generate(model, ids, cache=DynamicCache())

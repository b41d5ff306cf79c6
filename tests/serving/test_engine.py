"""The engine gives every request what it would get alone."""

import queue
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.generation.stream import generate_text
from titans.serving.engine import Engine
from titans.serving.protocol import Delta, EngineFailure, EngineRequest, EngineResult, SamplingParams


class Asked:
    """A request and what came of it."""

    def __init__(self, model, prompt, state=None, **options):
        self.events = queue.Queue()
        with torch.no_grad():
            state = model.initial_state(1) if state is None else state
        keep, tenant = options.pop("keep", True), options.pop("tenant", "")
        params = SamplingParams(**{"max_new_tokens": 6, "temperature": 0, **options})
        self.request = EngineRequest(list(prompt), state, params, keep, self.events.put, tenant)

    def result(self):
        text, trace = "", []
        while isinstance(event := self.events.get(timeout=60), Delta):
            text += event.text
            trace += event.trace
        return text, trace, event


@pytest.fixture(scope="session")
def run(tokenizer):
    """Run requests together: `run(model, requests, **options)`; they are all waiting before the engine starts."""

    def run(model, asked, **options):
        engine = Engine(model, tokenizer, **options)
        for one in asked:
            engine.submit(one.request)
        engine.start()
        results = [one.result() for one in asked]
        engine.close()
        return results

    return run


PROMPTS = [b"a", b"some longer prompt, of several pieces", b"another", b"tokens", b"x" * 30]


def test_a_batch_gives_each_what_it_gets_alone(any_model, run, close):
    together = run(any_model, [Asked(any_model, p) for p in PROMPTS], piece=5)
    for prompt, (text, _, done) in zip(PROMPTS, together, strict=True):
        alone, _, expected = run(any_model, [Asked(any_model, prompt)])[0]
        assert text == alone
        assert (done.read, done.said, done.reason) == (expected.read, expected.said, expected.reason)
        assert done.state.tokens == len(prompt) + done.said
        close(list(done.state.tensors()), list(expected.state.tensors()), 1e-4)


def test_greedy_text_is_that_of_generate(any_model, run, tokenizer):
    text, _, _ = run(any_model, [Asked(any_model, [256, *b"hello there"], max_new_tokens=9)])[0]
    parts = []
    generate_text(any_model, tokenizer, ["hello there"], parts.append, max_new_tokens=9, temperature=0)
    assert text == "".join(parts)


@settings(max_examples=8)
@given(data=st.data())
def test_a_memory_cut_anywhere_is_one_memory(model, run, data):
    text = data.draw(st.binary(min_size=2, max_size=20))
    cut = data.draw(st.integers(1, len(text) - 1))
    others = [Asked(model, b"noise" * n) for n in range(1, data.draw(st.integers(1, 4)))]
    _, _, first = run(model, [Asked(model, text[:cut], max_new_tokens=1), *others])[0]
    said = first.read - cut
    assert said == 1
    second, _, _ = run(model, [Asked(model, text[cut:], state=first.state), *others])[0]
    token = int(model(torch.tensor([list(text[:cut])])).logits[0, -1].argmax())
    whole, _, _ = run(model, [Asked(model, [*text[:cut], token, *text[cut:]])])[0]
    assert second == whole


def test_more_requests_than_places_are_all_answered(model, run):
    together = run(model, [Asked(model, b"prompt %d" % i) for i in range(7)], max_batch=2)
    for i, (text, _, _) in enumerate(together):
        assert text == run(model, [Asked(model, b"prompt %d" % i)])[0][0]


def test_a_seed_repeats_and_rows_draw_for_themselves(model, run):
    def texts(*seeds):
        return [
            r[0] for r in run(model, [Asked(model, b"same", temperature=2, max_new_tokens=20, seed=s) for s in seeds])
        ]

    first, second, third = texts(1, 2, 1)
    assert first == third != second
    assert texts(2) == [second]


def test_the_text_ends_at_a_stop_string_and_the_memory_knows_it(model, run):
    full, _, _ = run(model, [Asked(model, b"hello", max_new_tokens=20)])[0]
    stop = full[3:5]
    text, _, done = run(model, [Asked(model, b"hello", max_new_tokens=20, stop=[stop])])[0]
    assert text == full[: full.index(stop)]
    assert done.reason == "stop"
    assert done.state.tokens == 5 + done.said


def test_what_is_not_kept_is_not_read(model, run):
    _, _, done = run(model, [Asked(model, b"hello", keep=False)])[0]
    assert (done.read, done.said, done.reason) == (5 + 5, 6, "length")


def test_a_bad_state_harms_nobody_else(model, run):
    with torch.no_grad():
        other = model.initial_state(1).map(lambda x: x[..., :-1] if x.dim() > 2 else x)
    results = run(model, [Asked(model, b"hello"), Asked(model, b"hello", state=other), Asked(model, b"hello")])
    assert results[0][0] == results[2][0] == run(model, [Asked(model, b"hello")])[0][0]
    assert isinstance(results[1][2], EngineFailure)
    assert "another configuration" in str(results[1][2].error)


def test_cancelling_frees_the_place(model, tokenizer):
    engine = Engine(model, tokenizer, max_batch=1)
    endless, next_one = Asked(model, b"hello", max_new_tokens=10**9), Asked(model, b"hello")
    engine.start()
    engine.submit(endless.request)
    engine.submit(next_one.request)
    assert isinstance(endless.events.get(timeout=60), Delta)
    endless.request.cancelled = True
    _, _, done = endless.result()
    assert isinstance(done, EngineResult)
    assert done.reason == "cancelled"
    assert done.state.tokens == done.read
    assert next_one.result()[2].reason == "length"
    engine.close()


def test_cancelled_in_its_prompt_leaves_no_state(model, run):
    asked = Asked(model, b"x" * 50)
    asked.request.cancelled = True
    assert run(model, [asked], piece=10)[0][2].state is None


def test_closing_finishes_what_was_submitted(model, tokenizer):
    engine = Engine(model, tokenizer)
    asked = [Asked(model, b"hello", max_new_tokens=30) for _ in range(3)]
    engine.start()
    for one in asked:
        engine.submit(one.request)
    threading.Thread(target=engine.close).start()
    assert [one.result()[2].said for one in asked] == [30, 30, 30]
    engine.thread.join(10)
    with pytest.raises(RuntimeError, match="closing"):
        engine.submit(asked[0].request)

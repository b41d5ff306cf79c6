"""Whose turn it is: long prompts and floods of requests hold up nobody else. Time is counted here, not taken."""

import asyncio
from collections import Counter

import pytest

from tests.serving.test_engine import Asked
from titans.models.write_policy import WritePolicy
from titans.serving.engine import Engine
from titans.serving.scheduling import FairQueue, PrefillBudget

FIXED, EACH = 0.01, 0.002  # seconds of a forward pass, and of each token in it


class Timed:
    """An engine whose forward passes take the seconds that they are said to take."""

    def __init__(self, model, tokenizer, each=EACH, **options):
        self.now, self.each, self.steps = 0.0, each, []
        self.engine = Engine(model, tokenizer, on_step=self.step, clock=lambda: self.now, **options)
        self.engine.pace.answered(FIXED + each)  # somebody was answered before

    def step(self, rows, tokens):
        self.now += FIXED + self.each * tokens
        self.steps.append((rows, tokens))

    def run(self, *asked):
        """Return the texts and when each ended; all are waiting before the engine starts."""
        ends = {}
        for one in asked:
            tell = one.request.emit
            one.request.emit = lambda event, one=one, tell=tell: (ends.update({one: self.now}), tell(event))
            self.engine.submit(one.request)
        self.engine.start()
        texts = [one.result()[0] for one in asked]
        self.engine.close()
        return texts, [ends[one] for one in asked]


@pytest.fixture
def timed(model, tokenizer):
    return lambda **options: Timed(model, tokenizer, **options)


def long(model, length=600, **options):
    return Asked(model, b"x" * length, max_new_tokens=1, **options)


def chats(model):
    return [Asked(model, b"hello %d" % i, max_new_tokens=20) for i in range(3)]


def test_short_answers_take_about_twice_as_long_beside_a_long_prompt(model, timed):
    alone, ends_alone = timed().run(*chats(model))
    (_, *beside), (end_of_long, *ends) = timed().run(long(model), *chats(model))
    assert beside == alone
    assert max(ends) < 2.5 * max(ends_alone)  # in portions of 512 tokens: 16 times
    _, (end_alone,) = timed().run(long(model))
    assert end_of_long < end_alone + 3 * max(ends_alone)


def test_a_newcomer_waits_for_a_moment_also_where_nobody_is_answered(model, timed):
    server = timed(each=0.001)
    server.run(long(model, 400))
    assert 16 < max(tokens for _, tokens in server.steps) <= 50


def test_alone_a_prompt_is_read_in_large_pieces(model, timed):
    server = timed(each=1e-5)
    server.run(long(model, 1500))
    assert [tokens for _, tokens in server.steps[:5]] == [16, 78, 361, 512, 512]


def test_many_long_prompts_share_the_time_of_one(model, timed):
    """Also those that are written in other ways, each of which has passes of its own."""
    _, ends_alone = timed().run(*chats(model))
    never = WritePolicy("never").start(model.initial_state(1))
    prompts = [long(model, 300, state=state) for state in (None, None, never, never)]
    _, ends = timed().run(*prompts, *chats(model))
    assert max(ends[4:]) < 3 * max(ends_alone)
    assert max(ends[:4]) - min(ends[:4]) < 0.2 * max(ends[:4])


@pytest.mark.parametrize(("fixed", "each"), [(0.001, 0.0001), (0.01, 0.01), (0.2, 0.001), (0.04, 0.00001)])
def test_portions_fit_the_time_whatever_a_pass_costs(fixed, each):
    pace, now, answers = PrefillBudget(512), 0.0, 0.0
    for _ in range(2000):
        pace.answered(fixed + each)
        now, answers = now + fixed + each, answers + fixed + each
        if pace.may_read:
            tokens = pace.portion("always", 1, 1)
            seconds = fixed + each * tokens
            now += seconds
            pace.read("always", tokens, seconds)
    assert seconds <= 1.3 * max(0.05, 4 * (fixed + each), fixed + 16 * each)
    assert seconds >= min(0.03, fixed + each * 512)  # and no smaller than need be
    assert 0.45 < answers / now < 0.7  # a portion is waited off in whole steps
    pace.answered(0)
    assert pace.may_read  # nothing is owed to nobody


def test_a_flood_of_one_tenant_takes_no_turn_of_another(model):
    waiting, at_work = FairQueue(), Counter()
    for i in range(30):
        waiting.add(Asked(model, b"x", tenant="flood", seed=i).request)
    for i in range(2):
        waiting.add(Asked(model, b"x", tenant="quiet", seed=i).request)
    assert len(waiting) == 32
    served = []
    for _ in range(6):
        request = waiting.take(at_work)
        at_work[request.tenant] += 1
        served.append((request.tenant, request.params.seed))
    assert served == [("flood", 0), ("quiet", 0), ("flood", 1), ("quiet", 1), ("flood", 2), ("flood", 3)]


def test_turns_go_round_among_tenants_with_as_many_at_work():
    waiting = FairQueue()
    for name in "aaabbc":
        waiting.add(type("Request", (), {"tenant": name}))
    assert [waiting.take(Counter()).tenant for _ in range(6)] == ["a", "b", "c", "a", "b", "a"]
    assert len(waiting) == 0


def test_the_tenant_that_obeys_is_served_as_often_as_the_one_that_floods(make_client):
    """One with eight clients that never wait, another that sends its next request when it has its answer."""
    keys = {"key-of-flood-0123456": "flood", "key-of-quiet-0123456": "quiet"}
    client = make_client(keys=keys, max_batch=2, max_queue=2)
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0}
    count, done = Counter(), asyncio.Event()

    async def talk(key, times):
        for _ in range(times):
            if done.is_set():
                return
            headers = {"Authorization": f"Bearer {key}"}
            response = await client.http.post("/v1/completions", json=body, headers=headers)
            count[key, response.status_code] += 1
            await asyncio.sleep(0.005)
        done.set()

    flood, quiet = keys

    async def together():
        await asyncio.gather(*(talk(flood, 10_000) for _ in range(8)), talk(quiet, 5))

    client.loop.run_until_complete(together())
    assert count[quiet, 200] == 5
    assert count[quiet, 429] == 0
    assert count[flood, 429] > 0
    assert 2 <= count[flood, 200] <= 20

import re

import pytest
import torch

from titans.data.packing import IGNORED
from titans.data.synthetic.fact_recall import RecallEpisodes

TEXT = torch.tensor(list(b"plain filler text, lower case only, again and again. " * 40))


def decode(ids):
    return bytes(ids.tolist()).decode()


def test_training_episodes_state_each_fact_first_and_label_only_later_statements():
    ids, labels = RecallEpisodes(TEXT, seed=0).batch(8, 200)
    for row, row_labels in zip(ids, labels, strict=True):
        known = {}
        answers = 0
        for match in re.finditer("#([A-Z])([a-z])", decode(row)):
            key, value = match.groups()
            label = int(row_labels[match.end() - 1])
            if key in known:
                assert value == known[key]
                assert label == ord(value)
                answers += 1
            else:
                assert label == IGNORED
            known[key] = value
        assert len(known) <= 8
        assert answers == int((row_labels != IGNORED).sum())
        assert answers > 20


@pytest.mark.parametrize("distance", [0, 1, 300])
def test_the_test_asks_for_one_of_its_facts_at_the_stated_distance(distance):
    prompts, answers = RecallEpisodes(TEXT, seed=1, facts=5).test(16, distance)
    for prompt, answer in zip(prompts, answers, strict=True):
        text = decode(prompt)
        facts = dict(re.findall("#([A-Z])([a-z])", text))
        assert len(facts) == 5
        assert facts[text[-1]] == chr(answer)
        assert len(text) == 3 * 5 + distance + 2


def test_the_seed_decides_everything():
    first, second, other = (RecallEpisodes(TEXT, seed=s).batch(4, 64)[0] for s in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_every_episode_draws_its_own_facts():
    prompts, answers = RecallEpisodes(TEXT, seed=2).test(200, 0)
    facts = [frozenset(re.findall("#([A-Z])([a-z])", decode(prompt))) for prompt in prompts]
    assert len(set(facts)) == len(facts)
    assert len(set(answers.tolist())) == 26  # any value can be the answer

import re

import pytest
import torch

from titans.data.packing import IGNORED
from titans.data.synthetic.fact_recall import FactRecall
from titans.data.synthetic.task import Size
from titans.errors import TitansError

TEXT = torch.tensor(list(b"plain filler text, lower case only, again and again. " * 40), dtype=torch.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def decode(ids):
    return bytes(ids.tolist()).decode()


def test_training_states_each_fact_first_and_asks_only_at_later_statements():
    ids, labels = FactRecall(TEXT).part("train").batch(8, Size(200), seeded())
    assert ids.shape == labels.shape == (8, 200)
    for row, row_labels in zip(ids, labels, strict=True):
        known = {}
        answers = 0
        for match in re.finditer("#([A-Z])([a-z])", decode(row)):
            key, value = match.groups()
            label = int(row_labels[match.end() - 2])  # what follows the key
            if key in known:
                assert value == known[key]
                assert label == ord(value)
                answers += 1
            else:
                assert label == IGNORED
            known[key] = value
        assert len(known) <= 8
        assert answers <= int((row_labels != IGNORED).sum()) <= answers + 1  # a cut may leave the answer out
        assert answers > 20


@pytest.mark.parametrize("distance", [0, 1, 300])
def test_the_test_asks_for_one_of_its_facts_at_the_stated_distance(distance):
    task = FactRecall(TEXT, facts=5).part("test")
    ids, labels = task.batch(16, task.size(distance), seeded(1))
    assert (labels[:, :-1] == IGNORED).all()
    for row, answer in zip(ids, labels[:, -1], strict=True):
        text = decode(row)
        facts = dict(re.findall("#([A-Z])([a-z])", text))
        assert len(facts) == 5
        assert facts[text[-1]] == chr(answer)
        assert len(text) == 3 * 5 + distance + 2


def test_the_generator_decides_everything():
    task = FactRecall(TEXT).part("train")
    first, second, other = (task.batch(4, Size(64), seeded(s))[0] for s in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_every_sequence_draws_its_own_facts():
    task = FactRecall(TEXT)
    ids, labels = task.batch(200, task.size(0), seeded(2))
    facts = [frozenset(re.findall("#([A-Z])([a-z])", decode(row))) for row in ids]
    assert len(set(facts)) == len(facts)
    assert len(set(labels[:, -1].tolist())) == 26  # any value can be the answer


@pytest.mark.parametrize("length", [25, 26 + len(TEXT) + 1])
def test_a_length_that_does_not_work_is_refused(length):
    FactRecall(TEXT).check(Size(26))
    FactRecall(TEXT).check(Size(26 + len(TEXT)))
    with pytest.raises(TitansError, match=rf"{length}: expected from 26 bytes, for facts and question, to "):
        FactRecall(TEXT).check(Size(length))

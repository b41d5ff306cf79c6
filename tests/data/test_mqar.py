"""Every rule of the recall tasks, sequence by sequence."""

import pytest
import torch

from titans.data.packing import IGNORED
from titans.data.synthetic.mqar import MQAR, ForgettingMQAR, draw_places
from titans.data.synthetic.needle import Needle
from titans.data.synthetic.registry import make_task
from titans.data.synthetic.task import Size, draw_distinct, parse_sizes
from titans.errors import TitansError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def asked_in(ids, labels):
    """Position, key and answer of each question, row by row."""
    for row, answers in zip(ids.tolist(), labels.tolist(), strict=True):
        yield row, [(t, row[t], answer) for t, answer in enumerate(answers) if answer != IGNORED]


@pytest.mark.parametrize("filler", ["random", "zero"])
@pytest.mark.parametrize(("length", "pairs"), [(64, 4), (256, 64), (16, 4), (17, 4)])
def test_mqar(length, pairs, filler):
    ids, labels = MQAR(filler=filler).batch(50, Size(length, pairs), seeded())
    assert ids.shape == labels.shape == (50, length)
    assert ids.dtype == labels.dtype == torch.int64
    for row, asked in asked_in(ids, labels):
        keys, values = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert 1 <= min(keys) <= max(keys) <= 4095 < 4096 <= min(values) <= max(values) <= 8191
        assert sorted(key for _, key, _ in asked) == sorted(keys)  # every query once
        known = dict(zip(keys, values, strict=True))
        assert all(known[key] == answer for _, key, answer in asked)
        assert all(t >= 2 * pairs and t % 2 == 0 for t, _, _ in asked)
        rest = set(range(2 * pairs, length)) - {t for t, _, _ in asked}
        assert all(row[t] == 0 for t in rest) == (filler == "zero" or not rest)


def test_random_filler_is_uniform_over_the_vocabulary():
    ids, labels = MQAR(vocabulary=16).batch(4000, Size(60, 2), seeded())
    filler = ids[:, 4:][labels[:, 4:] == IGNORED]
    assert (filler.bincount(minlength=16) / len(filler)).tolist() == pytest.approx([1 / 16] * 16, abs=0.003)


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_gaps_follow_the_power_law(power):
    expected = torch.arange(1, 31).double() ** (power - 1)
    expected /= expected.sum()
    # 30 places after one pair
    _, labels = MQAR(vocabulary=8, power=power).batch(40_000, Size(62, 1), seeded())
    place = ((labels != IGNORED).int().argmax(1) - 2) // 2
    share = place.bincount(minlength=30) / 40_000
    assert (share - expected).abs().max() < 4 * (expected.max() / 40_000).sqrt()


def test_places_are_drawn_one_after_the_other_without_replacement():
    places = draw_places(100_000, 2, 3, 0.01, seeded())
    p = torch.arange(1, 4).double() ** -0.99
    p /= p.sum()
    for first in range(3):
        for second in range(3):
            share = float(((places[:, 0] == first) & (places[:, 1] == second)).double().mean())
            expected = 0 if first == second else float(p[first] * p[second] / (1 - p[first]))
            assert share == pytest.approx(expected, abs=0.006)


def test_distinct_draws_are_uniform_in_every_place():
    drawn = draw_distinct(30_000, 3, 4, seeded())
    assert all(len(set(row)) == 3 for row in drawn[:500].tolist())
    for place in drawn.T:
        assert (place.bincount() / 30_000).tolist() == pytest.approx([0.25] * 4, abs=0.012)


@pytest.mark.parametrize(("rewritten", "updates"), [(0.5, 4), (1.0, 8), (0.01, 1)])
def test_forgetting_mqar_the_last_value_counts(rewritten, updates):
    task = ForgettingMQAR(vocabulary=64, rewritten=rewritten)
    ids, labels = task.batch(200, Size(64, 8), seeded())
    for row, asked in asked_in(ids, labels):
        stated = [(row[2 * i], row[2 * i + 1]) for i in range(8 + updates)]
        assert len({key for key, _ in stated[:8]}) == 8
        again = [key for key, _ in stated[8:]]
        assert len(set(again)) == updates
        assert set(again) <= {key for key, _ in stated[:8]}
        assert len({value for _, value in stated}) == 8 + updates  # so a new value is never an old one
        last = dict(stated)
        assert sorted(key for _, key, _ in asked) == sorted(last)
        assert all(last[key] == answer and t >= 2 * (8 + updates) for t, key, answer in asked)


def test_rewritten_keys_are_any():
    ids, _ = ForgettingMQAR(vocabulary=16, rewritten=0.25).batch(8000, Size(32, 4), seeded())
    which = (ids[:, :8:2] == ids[:, 8:9]).int().argmax(1)
    assert (which.bincount() / 8000).tolist() == pytest.approx([0.25] * 4, abs=0.02)


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("length", [20, 100])
def test_needle(part, length):
    ids, labels = Needle(vocabulary=64).part(part).batch(200, Size(length, 5), seeded())
    asked_for = set()
    for row, asked in asked_in(ids, labels):
        questions = 5 if part == "train" else 1
        assert [t for t, _, _ in asked] == list(range(length - questions, length))
        context = row[: length - questions]
        stated = {token: context[t + 1] for t, token in enumerate(context) if 1 <= token <= 15}
        assert len(stated) == 5
        assert all(16 <= value <= 31 for value in stated.values())
        assert len(set(stated.values())) == 5
        assert sum(token >= 32 for token in context) == len(context) - 10
        assert all(stated[key] == answer for _, key, answer in asked)
        asked_for.add(list(stated).index(asked[0][1]))
    assert asked_for == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("task", "options"), [("mqar", {}), ("forgetting-mqar", {}), ("needle", {})])
def test_the_seed_decides_everything(task, options):
    first, second, other = (make_task(task).batch(4, Size(64, 5), seeded(s))[0] for s in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_chance():
    assert MQAR().chance == 1 / 4096
    assert Needle().chance == 1 / 2048


def test_sizes_as_people_write_them():
    assert parse_sizes(["64/4", 32]) == (Size(64, 4), Size(32))
    assert [str(size) for size in parse_sizes(["3-5", "8/2"])] == ["3", "4", "5", "8/2"]
    for bad in ("0", "4/0", "5-3", "x", "64/", "-3", "1-2-3", ""):
        with pytest.raises(TitansError, match="is no size"):
            parse_sizes([bad])
    with pytest.raises(TitansError, match="no sizes"):
        parse_sizes([])


@pytest.mark.parametrize(
    ("task", "size", "sentence"),
    [
        ("mqar", Size(64), "write 64/4"),
        ("mqar", Size(14, 4), "take 16 tokens"),
        ("mqar", Size(99_999, 5000), "only 4,095 keys"),
        ("forgetting-mqar", Size(19, 4), "take 20 tokens"),  # 6 pairs stated, 4 asked
        ("needle", Size(64, 4), "at least 4 distractors"),
        ("parity", Size(64, 4), "write 64, not 64/4"),
    ],
)
def test_sizes_that_do_not_work(task, size, sentence):
    with pytest.raises(TitansError, match=sentence):
        make_task(task).check(size)


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        ("mqarr", {}, 'did you mean "mqar"'),
        ("zzz", {}, "expected one of mqar"),
        ("mqar", {"modulus": 3}, "no option 'modulus': expected one of vocabulary, filler, power"),
        ("mqar", {"vocabulary": 9}, "expected an even number"),
        ("mqar", {"vocabulary": "many"}, "do not work"),
        ("mqar", {"filler": "text"}, "random, zero"),
        ("needle", {"vocabulary": 10}, "multiple of 4"),
        ("forgetting-mqar", {"rewritten": 0}, "more than 0"),
        ("walk", {"modulus": 4}, "expected an odd one"),
        ("modular-addition", {"modulus": 1}, "at least 2"),
        ("parity", {"task": "s5"}, "no option 'task'"),
    ],
)
def test_options_that_do_not_work(task, options, sentence):
    with pytest.raises(TitansError, match=sentence):
        make_task(task, options)

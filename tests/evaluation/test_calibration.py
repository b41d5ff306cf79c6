"""Thresholds are percentiles of what the memories meet under themselves; the decay is that of the lowest perplexity."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch

from titans import TitansError, WritePolicy, watch
from titans.data import Document, byte_tokenizer
from titans.evaluation import perplexity
from titans.evaluation.calibration import calibrate, halves
from titans.evaluation.thresholds import ROUNDS, TOLERANCE, ThresholdSearch, gated_policy, smooth_surprise

BYTES = byte_tokenizer()


def corpus(*sizes):
    """Documents of random words, so many bytes each."""
    generator = np.random.default_rng(0)
    words = ["memory", "surprise", "gate", "token", "a", "of", "the"]
    texts = [" ".join(generator.choice(words, size))[:size] for size in sizes]
    return [Document(str(i), lambda text=text: iter((text,))) for i, text in enumerate(texts)]


def test_halves():
    first, second = halves(BYTES, corpus(300, 500, 400), 450)
    assert [len(x) for x in first] == [301, 149]  # with the bos token
    assert [len(x) for x in second] == [352, 98]
    whole = torch.cat([first[1], second[0]])
    assert whole.tolist() == [256, *corpus(300, 500)[1].text().encode()]
    assert [len(x) for x in halves(BYTES, corpus(3000), 300)[0]] == [300]
    with pytest.raises(TitansError, match="the data holds 101 tokens: calibration needs at least 512"):
        halves(BYTES, corpus(100), 300)


def test_policy_of_given_surprise():
    """Against the rule written out, over two documents of which one holds an outlier."""
    norms = [np.tile([1.0, 2.0, 3.0], 20), np.array([2.0, 100.0, 3.0, 4.0])]
    policy = gated_policy([norms], [ThresholdSearch(0.3)])
    everything = np.concatenate(norms)
    assert policy.mean == pytest.approx([everything.mean()])
    assert policy.deviation == pytest.approx([everything.std()])
    values = []
    for document in norms:
        s = everything.mean()
        for g in document:
            if g != 100.0:
                s = 0.9 * s + 0.1 * g
                values.append(s)
    of_all = 1 - 0.3 * len(everything) / len(values)  # 30 % of all tokens, of which one is dropped
    assert policy.threshold == pytest.approx([np.quantile(values, of_all)])
    assert np.concatenate(smooth_surprise(policy, [norms])[0]) == pytest.approx(values)


@pytest.mark.parametrize("growth", [-0.5, 0.0, 0.5, 1.0])
def test_search_settles_though_thresholds_change_what_is_seen(growth):
    """The higher the threshold, the less is written, and the more surprises."""
    surprise, search, threshold = np.linspace(0, 1, 1001), ThresholdSearch(0.3), 0.0
    for _ in range(ROUNDS):
        threshold = search.choose(surprise * (1 + growth * threshold), len(surprise))
        written = float((surprise * (1 + growth * threshold) > threshold).mean())
        search.learn(threshold, written)
        if abs(written - 0.3) <= TOLERANCE:
            break
    assert abs(written - 0.3) <= TOLERANCE


@pytest.mark.parametrize("variant", [pytest.param("lmm", marks=pytest.mark.slow), "mac"])
def test_calibrates(make_model, tmp_path, variant):
    model, told = make_model(variant).train(), []
    texts = corpus(250, 300, 400)
    found = calibrate(model, BYTES, texts, tokens=400, progress=lambda done, doing: told.append((done, doing)))
    assert model.training
    assert found.tokens == (400, 400)
    assert told[0][0] == 0.0
    assert all(a <= b for (a, _), (b, _) in itertools.pairwise(told))
    assert told[-1][0] <= 1.0
    assert abs(found.rounds[-1] - 0.3) <= TOLERANCE or len(found.rounds) == ROUNDS
    assert [r.name for r in found.readings][:2] == ["always", "never"]
    assert [r.written for r in found.readings][:2] == [1.0, 0.0]
    gated = found.readings[2:]
    assert found.policy.decay == (1e-5, 3e-5, 5e-5)[min(range(3), key=lambda i: gated[i].perplexity)]
    lowest = min(found.readings, key=lambda reading: reading.perplexity)
    assert found.best == lowest.name.split(",")[0]
    for reading in gated:
        assert reading.written + reading.skipped + reading.dropped == pytest.approx(1)
        assert math.isfinite(reading.perplexity)

    # the share of the round that counts, against the same stream watched
    model.eval()
    policy = dataclasses.replace(found.policy, decay=1e-5)
    shares = []
    for text in halves(BYTES, texts, 400)[0]:
        with watch(model) as trace, torch.no_grad():
            model(text[None], cache=policy.start(model.initial_state(1)))
        shares += [t.written for t in trace.tokens(0)]
    assert sum(shares) / len(shares) == pytest.approx(min(found.rounds, key=lambda x: abs(x - 0.3)), abs=1e-6)

    found.policy.save(tmp_path)
    assert WritePolicy.load(tmp_path) == found.policy
    found.save(tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert saved["policy"]["threshold"] == list(found.policy.threshold)
    assert (tmp_path / "out" / "surprise.png").read_bytes().startswith(b"\x89PNG")


def test_refuses_a_model_without_memory(make_model):
    with pytest.raises(TitansError, match="variant swa has no memory layer: there is nothing to gate"):
        calibrate(make_model("swa"), BYTES, corpus(2000))


@pytest.mark.parametrize("piece_length", [7, 2048])
def test_perplexity_under_a_policy(make_model, piece_length):
    model, texts = make_model("lmm"), corpus(60, 45)
    plain = perplexity(model, BYTES, texts, piece_length=piece_length)
    always = perplexity(model, BYTES, texts, piece_length=piece_length, policy=WritePolicy("always"))
    never = perplexity(model, BYTES, texts, piece_length=piece_length, policy=WritePolicy("never"))
    assert plain.writing is None
    assert dataclasses.replace(always, writing=None) == plain
    assert (always.writing.written, never.writing.skipped) == (105 * 2, 105 * 2)
    assert never.loss != pytest.approx(plain.loss, rel=1e-6)

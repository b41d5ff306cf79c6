import dataclasses
import json
import re

import pytest
import torch

from titans.data.corpora import Document
from titans.demo import report
from titans.demo.experiment import (
    HELD_OUT,
    WINDOW,
    Plan,
    configurations,
    parameters,
    read_corpus,
    train,
)
from titans.demo.measure import DISTANCES, measure
from titans.errors import TitansError
from titans.evaluation.fact_recall import RecallResult
from titans.evaluation.intervals import wilson
from titans.models.modeling import TitansForCausalLM

TINY = Plan(steps=3, seconds=60, lengths=(32, 64), text_bytes=64, recall_bytes=128, questions=4, test_bytes=512)


def corpus(size):
    text = "Some words, and then some more.\n" * (size // 32 + 1)
    return iter([Document("one", lambda: iter([text[:size]]))])


def test_models_have_equal_parameters_and_windows():
    mac, *others = configurations().values()
    assert [c.variant for c in (mac, *others)] == ["mac", "lmm", "swa"]
    for other in others:
        assert mac.segment_length == other.sliding_window == WINDOW
        assert parameters(other) == pytest.approx(parameters(mac), rel=0.01)


def test_held_out_text_is_the_end_of_the_corpus():
    text, held_out = read_corpus(corpus(100_000))
    whole = torch.cat([text, held_out])
    assert len(held_out) == int(100_000 * HELD_OUT)
    assert bytes(whole.tolist()) == next(corpus(100_000)).text().encode()


def test_too_small_a_corpus_is_refused():
    with pytest.raises(TitansError, match=r"holds 100 bytes of text: the demo needs at least [\d,]+"):
        read_corpus(corpus(100))


def test_time_ends_training_early():
    text, _ = read_corpus(corpus(100_000))
    model = TitansForCausalLM(configurations()["attention only"])
    plan = dataclasses.replace(TINY, steps=10_000, seconds=0.5)
    assert 0 < train(model, text, plan, lambda done, point: None).steps < 10_000


@pytest.fixture(scope="module")
def results():
    text, held_out = read_corpus(corpus(150_000))
    made = []
    for name, config in configurations().items():
        seen = []
        torch.manual_seed(0)
        model = TitansForCausalLM(config)
        training = train(model, text, TINY, lambda done, point, seen=seen: seen.append(done))
        assert seen == sorted(seen)
        assert (seen[-1], len(seen)) == (1, TINY.steps + 1)
        assert not model.training
        made.append(measure(name, model, training, held_out, TINY, lambda doing: None))
    return made


def test_report_needs_no_other_file_and_states_what_was_measured(results, tmp_path):
    page = report.write(tmp_path / "new" / "folder", results, {"corpus": "<script>"})
    text = page.read_text()
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    for name in ("loss", "positions", "recall"):
        assert (page.parent / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    numbers = json.loads((page.parent / "results.json").read_text())
    for measured in results:
        mine = numbers[measured.name]
        assert mine["parameters"] == measured.parameters
        assert [r["distance"] for r in mine["recall"]] == list(DISTANCES)
        assert [r["accuracy"] for r in mine["recall"]] == [r.correct / 4 for r in measured.recall]
        assert f"{measured.text.bits_per_byte:.3f}" in text
        assert f"{measured.state_bytes:,}" in text


def test_verdict_says_what_was_measured_also_when_memory_does_not_help(results):
    def with_numbers(measured, correct, bits):
        recalls = [RecallResult(r.distance, 100, correct, *wilson(correct, 100)) for r in measured.recall]
        text = dataclasses.replace(measured.text, bits_per_byte=bits)
        return dataclasses.replace(measured, text=text, recall=recalls)

    mac, lmm, attention = results
    said = report.verdict([with_numbers(mac, 1, 3.0), with_numbers(lmm, 90, 2.25), with_numbers(attention, 5, 2.5)])
    assert "1% over 16 bytes (chance), 1% over 64 bytes (chance)" in said[0]
    assert "0.500 more than attention only" in said[1]
    assert "90% over 16 bytes, 90% over 64 bytes" in said[2]
    assert "0.250 less than attention only" in said[3]
    assert "5% over 1,024 bytes (chance 4%)" in said[4]

import dataclasses
import json
import re

import pytest
import torch

from titans.data.corpora import Document
from titans.data.synthetic.text_pieces import TextPieces
from titans.demo import report
from titans.demo.experiment import VOCABULARY, WINDOW, Plan, model_fields, train
from titans.demo.measure import DISTANCES, measure
from titans.evaluation.intervals import wilson
from titans.evaluation.model_zoo import count, make_model
from titans.training.objective import Objective

TINY = Plan(steps=3, seconds=60, lengths=(32, 64), text_bytes=64, recall_bytes=128, questions=4, test_bytes=512)


def text(size):
    content = "Some words, and then some more.\n" * (size // 32 + 1)
    return TextPieces.read([Document("one", lambda: iter([content[:size]]))])


def test_models_have_equal_parameters_and_windows():
    mac, *others = model_fields().values()
    assert [fields["variant"] for fields in (mac, *others)] == ["mac", "lmm", "swa"]
    for other in others:
        assert mac["segment_length"] == other["sliding_window"] == WINDOW
        assert count(other, VOCABULARY) == pytest.approx(count(mac, VOCABULARY), rel=0.01)


def test_time_ends_training_early():
    model = make_model(model_fields()["attention only"], VOCABULARY)
    plan = dataclasses.replace(TINY, steps=10_000, seconds=0.5)
    assert 0 < train(model, text(100_000), plan, lambda done, point: None).steps < 10_000


def test_writing_can_have_a_price_and_sequences_be_cut():
    """The price changes what is learned, and no loss; pieces change no loss at first."""
    objectives = (Objective(), Objective(write_cost=3.0), Objective(piece_length=16))
    models = [make_model(model_fields()["Titans LMM"], VOCABULARY) for _ in objectives]
    curves = [
        train(model, text(100_000), dataclasses.replace(TINY, objective=objective), lambda done, point: None).curve
        for model, objective in zip(models, objectives, strict=True)
    ]
    plain, priced, pieces = curves
    assert plain[0] == priced[0]
    assert pieces[0].text_bits == pytest.approx(plain[0].text_bits, rel=1e-5)
    assert pieces[0].recall_loss == pytest.approx(plain[0].recall_loss, rel=1e-5)
    weights = [model.lm_head.weight for model in models]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.fixture(scope="module")
def results():
    corpus = text(150_000)
    made = []
    for name, fields in model_fields().items():
        seen = []
        model = make_model(fields, VOCABULARY)
        training = train(model, corpus.part("train"), TINY, lambda done, point, seen=seen: seen.append(done))
        assert seen == sorted(seen)
        assert (seen[-1], len(seen)) == (1, TINY.steps)
        assert not model.training
        made.append(measure(name, model, training, corpus.part("test"), TINY, lambda doing: None))
    return made


def test_report_needs_no_other_file_and_states_what_was_measured(results, tmp_path):
    page = report.write(tmp_path / "new" / "folder", results, {"corpus": "<script>"})
    shown = page.read_text()
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown
    assert not re.search(r'(src|href)="(?!data:)', shown)
    for name in ("loss", "positions", "recall"):
        assert (page.parent / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    numbers = json.loads((page.parent / "results.json").read_text())
    for measured in results:
        mine = numbers[measured.name]
        assert mine["parameters"] == measured.parameters
        assert [r["distance"] for r in mine["recall"]] == list(DISTANCES)
        assert [r["accuracy"] for r in mine["recall"]] == [r.correct / 4 for r in measured.recall.values()]
        assert f"{measured.text.bits_per_byte:.3f}" in shown
        assert f"{measured.state_bytes:,}" in shown


def test_verdict_says_what_was_measured_also_when_memory_does_not_help(results):
    def with_numbers(measured, correct, bits):
        low, high = wilson(correct, 100)
        numbers = {"asked": 100, "correct": correct, "low": low, "high": high}
        recall = {distance: dataclasses.replace(score, **numbers) for distance, score in measured.recall.items()}
        text = dataclasses.replace(measured.text, bits_per_byte=bits)
        return dataclasses.replace(measured, text=text, recall=recall)

    mac, lmm, attention = results
    said = report.verdict([with_numbers(mac, 1, 3.0), with_numbers(lmm, 90, 2.25), with_numbers(attention, 5, 2.5)])
    assert "1% over 16 bytes (chance), 1% over 64 bytes (chance)" in said[0]
    assert "0.500 more than attention only" in said[1]
    assert "90% over 16 bytes, 90% over 64 bytes" in said[2]
    assert "0.250 less than attention only" in said[3]
    assert "5% over 1,024 bytes (chance 4%)" in said[4]

"""`titans evaluate babilong` prints and writes what the library measures, and refuses in one sentence."""

import json

import pytest
import torch

from titans.data import byte_tokenizer
from titans.evaluation.babilong import run_babilong
from titans.evaluation.babilong_questions import Questions
from titans.evaluation.streaming_lm import load_streaming_lm


@pytest.fixture
def books(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("Of the days of that year there was little to be told. " * 100)
    return tmp_path / "books"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=259, max_position_embeddings=2048, initializer_range=0.5, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


# a model of ours that is as small as this one reads long texts slowly
@pytest.mark.parametrize(
    ("kind", "tasks", "lengths", "shots"),
    [("model_folder", ("qa4",), ("0k",), None), ("llama", ("qa4", "qa6"), ("0k", "1k"), 1)],
    ids=["titans", "llama"],
)
def test_numbers_are_those_of_the_library(titans, logged, request, tmp_path, books, kind, tasks, lengths, shots):
    folder, out = request.getfixturevalue(kind), tmp_path / "out"
    options = ("--tasks", ",".join(tasks), "--lengths", ",".join(lengths), "--background", books, "--samples", 9)
    options += ("--limit", 2, *(("--bare",) if shots is None else ("--shots", shots)))
    result = titans("evaluate", "babilong", folder, *options, "--seed", 3, "--device", "cpu", "--out", out)
    saved = json.loads((out / "babilong.json").read_text())
    questions = Questions(tasks, lengths, None, str(books), shots, shots is None, samples=2, seed=3)
    expected = run_babilong(load_streaming_lm(str(folder), "cpu"), questions)
    for score, written in zip(expected.scores, saved["scores"], strict=True):
        assert {**written, "accuracy": None} == {**vars(score), "accuracy": None}
        assert f"{score.prompt_tokens:,.0f}" in result.stdout
    assert questions.protocol in result.stdout
    assert logged(result) == [f"{task} at {length}" for task in tasks for length in lengths]
    assert "made-up stories" in questions.protocol
    answers = (out / "results.jsonl").read_text().splitlines()
    assert len(answers) == 2 * len(tasks) * len(lengths)
    titans("evaluate", "babilong", folder, *options, "--seed", 3, "--device", "cpu", "--out", out)
    assert (out / "results.jsonl").read_text().splitlines() == answers
    assert (out / "babilong.png").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--tasks", "qa0"), 'there is no task "qa0"'),
        (("--lengths", "1K, 1m"), "need background text"),
        (("--lengths", "1k", "--background", "/no/where"), '"/no/where" does not exist'),
        (("--tasks", "QA1, qa0"), 'there is no task "qa0"'),
        (("--babi", "/no/where"), 'there is no folder "/no/where"'),
        (("--shots", "5"), "5 examples are asked for"),
        (("--device", "quantum"), 'there is no device "quantum"'),
        (("--write", "sometimes"), "sometimes"),
    ],
)
def test_what_is_refused(titans, model_folder, options, sentence):
    result = titans("evaluate", "babilong", model_folder, *options, status=2)
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_model(titans, tmp_path):
    assert "there is no model folder" in titans("evaluate", "babilong", tmp_path / "none", status=2).stderr

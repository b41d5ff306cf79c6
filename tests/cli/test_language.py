"""`titans evaluate lm` from end to end, offline."""

import json
import sys

import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of two tasks."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}, {"goal": "d", "sol1": "e", "sol2": "f", "label": 1}]
    (folder / "piqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "lambada_test.jsonl").write_text('{"text": "the one word"}\n{"text": "the other word"}\n')
    return folder


def test_tasks_from_local_files(titans, logged, model_folder, data, tmp_path):
    pytest.importorskip("lm_eval")
    options = ("--data", data, "--limit", 2, "--batch-size", 2, "--device", "cpu", "--out", tmp_path)
    first = titans("evaluate", "lm", model_folder, "--tasks", "piqa", *options).stdout
    assert "piqa_local" in first
    assert "2 of 2" in first
    result = titans("evaluate", "lm", model_folder, "--tasks", "piqa, lambada_openai", *options)
    assert logged(result) == ["lambada_openai_local"]
    both = result.stdout
    assert "perplexity" in both
    assert "protocol: lm-evaluation-harness" in both
    assert "deviations: none" in both
    kept = json.loads((tmp_path / "language.json").read_text())
    assert [task["task"] for task in kept["tasks"]] == ["piqa_local", "lambada_openai_local"]
    assert (tmp_path / "language.png").stat().st_size > 1000
    written = titans("evaluate", "lm", model_folder, "--tasks", "piqa", *options, "--write", "never", status=2)
    assert "other settings (write" in written.stderr
    other = titans("evaluate", "lm", model_folder, "--tasks", "piqa", *options, "--seed", 1, status=2)
    assert "other settings (seed" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "piqa", "--data", "nowhere"], "there is no folder nowhere"),
        (["--tasks", "piqa", "--device", "nonsense"], 'there is no device "nonsense"'),
        (["--tasks", "boolq", "--data", "{data}"], "boolq.jsonl is no data of the task boolq"),
        (["--tasks", ",", "--data", "{data}"], "give each once, and one at least"),
    ],
)
def test_bad_input_is_one_sentence(titans, model_folder, data, tmp_path, arguments, message):
    pytest.importorskip("lm_eval")
    (tmp_path / "boolq.jsonl").write_text('{"passage": "p", "label": 1}\n')
    arguments = [str(tmp_path) if "boolq" in arguments and word == "{data}" else word for word in arguments]
    arguments = [str(data) if word == "{data}" else word for word in arguments]
    result = titans("evaluate", "lm", model_folder, *arguments, status=2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_a_network_one_sentence_says_so(titans, model_folder, monkeypatch):
    pytest.importorskip("lm_eval")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    result = titans("evaluate", "lm", model_folder, "--tasks", "social_iqa", status=2)
    assert "cannot load the data of social_iqa from the hub" in result.stderr
    assert "--data" in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_the_extra_one_sentence_says_so(titans, model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    result = titans("evaluate", "lm", model_folder, status=2)
    assert 'pip install "titans-lm[eval]"' in result.stderr

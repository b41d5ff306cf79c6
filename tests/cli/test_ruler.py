"""`titans evaluate ruler` from end to end, and what it refuses."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from titans import TitansConfig, TitansForCausalLM
from titans.data import byte_tokenizer

pytest.importorskip("wonderwords", reason="wonderwords is not installed")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("books") / "book.txt"
    path.write_text("It was late. He went home. " * 50)
    return path


@pytest.fixture(scope="module")
def fast(tmp_path_factory, byte_sizes):
    """A model that reads hundreds of bytes in a moment."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("fast")
    sizes = {**byte_sizes, "num_hidden_layers": 1, "memory": {"chunk_size": 64}, "initializer_range": 0.5}
    TitansForCausalLM(TitansConfig(variant="lmm", **sizes)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_measures_and_goes_on(titans, logged, fast, book, tmp_path):
    options = (
        "--lengths",
        "650,700",
        "--tasks",
        "pk,n",
        "--limit",
        1,
        "--device",
        "cpu",
        "--haystack",
        book,
        "--out",
        tmp_path,
    )
    result = titans("evaluate", "ruler", fast, *options)
    printed = result.stdout
    assert logged(result) == [f"{task}, {length} tokens" for task in ("pk", "n") for length in (650, 700)]
    assert printed.count("protocol: RULER (pk, n, w") == 1
    assert "deviations: n in the given text in place of RULER's essays" in printed
    assert "1 sample, not 500" in printed
    written = json.loads((tmp_path / "ruler.json").read_text())
    assert [(cell["task"], cell["length"]) for cell in written["cells"]] == [
        (task, length) for task in ("pk", "n") for length in (650, 700)
    ]
    log = (tmp_path / "results.jsonl").read_text()
    assert titans("evaluate", "ruler", fast, *options).stdout == printed
    assert (tmp_path / "results.jsonl").read_text() == log
    refused = titans("evaluate", "ruler", fast, *options, "--seed", 1, status=2)
    assert "other settings (seed" in refused.output.replace("\n", " ")


def test_reads_with_a_model_of_hugging_face(titans, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=259, max_position_embeddings=700, initializer_range=0.5, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    command = ("evaluate", "ruler", tmp_path, "--tasks", "pk", "--limit", 2, "--lengths")
    assert "0.0%" in titans(*command, 700).stdout
    assert "at most 700 tokens" in titans(*command, 701, status=2).output.replace("\n", " ")
    assert "go up to 2,097,152" in titans(*command, "1K, 2M", status=2).output.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tasks", "pk,qa"), 'no RULER task "qa"'),
        (("--tasks", "n"), "books or essays"),
        (("--tasks", "pk", "--lengths", "2x"), 'lengths are "2x"'),
        (("--tasks", "pk", "--out", "{file}"), "file.txt is a file: expected a folder"),
        (("--tasks", "pk", "--out", "{file}/deeper/still"), "file.txt is a file: expected a folder"),
        (("--tasks", "pk", "--lengths", "100"), "at least"),
        (("--tasks", "n", "--haystack", "no/such/folder"), '"no/such/folder" does not exist'),
        (("--tasks", "pk", "--device", "warp"), 'no device "warp"'),
        (("--tasks", "pk", "--write", "gated"), "no write policy"),
    ],
)
def test_mistakes_are_told_in_one_sentence(titans, model_folder, tmp_path, options, message):
    (tmp_path / "file.txt").touch()
    options = [word.format(file=tmp_path / "file.txt") for word in options]
    output = titans("evaluate", "ruler", model_folder, *options, status=2).output
    assert message in output
    assert output.count("\n") == 1


def test_a_missing_model(titans, tmp_path):
    assert "holds no model" in titans("evaluate", "ruler", tmp_path, "--tasks", "pk", status=2).output


def test_the_old_name_says_the_new_one(titans, model_folder):
    output = titans("evaluate", "needle", model_folder, "--tasks", "pk", "--out", "report", status=2).output
    assert "titans evaluate needle is now titans evaluate ruler" in output.replace("\n", " ")

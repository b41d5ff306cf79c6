"""`info` counts from shapes what the loaded model holds; `evaluate` measures what the library measures."""

import json
import re
from collections import Counter

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from titans import TitansForCausalLM
from titans.cli.info import describe
from titans.data import byte_tokenizer, documents, load_tokenizer
from titans.evaluation import perplexity
from titans.training.pretrained import load_config, load_model


def parameters_by_name(model):
    kinds = Counter()
    for name, parameter in model.named_parameters():
        part = re.sub(r"model\.layers\.\d+\.", "", name)
        kind = "norms and gates"
        for pattern, of_pattern in {
            r"model\.embed": "embedding",
            r"lm_head": "output head",
            r".*\.attention\.": "attention",
            r".*\.(memory|retrieval|retrieval_norm|retrieval_proj)\b": "memory",
            r"(mlp|feed_forward)\.": "feed-forward",
        }.items():
            if re.match(pattern, part):
                kind = of_pattern
                break
        kinds[kind] += parameter.numel()
    return kinds


def test_info_agrees_with_the_loaded_model(titans, model_folder):
    model = load_model(str(model_folder))
    described = describe(load_config(str(model_folder)))
    state = model.initial_state(1)
    assert sum(described["parameters"].values()) == model.num_parameters()
    assert described["state"] == [sum(part.nbytes for part in layer) for layer in state.layers]
    assert sum(described["state"]) == state.nbytes
    assert described["parameters"] == parameters_by_name(model)
    printed = titans("info", model_folder).stdout
    assert re.search(rf"parameters +{model.num_parameters():,}\n", printed)
    assert re.search(rf"state +{state.nbytes:,} bytes", printed)
    assert "its segment of 8 tokens, and 2 persistent ones" in printed
    assert re.search(r"memory chunk +4 tokens", printed)


@pytest.mark.parametrize(
    "variant", ["lmm", "mag", "mal", "swa", "retnet", "gla", "deltanet", "gated-deltanet", "mamba", "mamba2"]
)
def test_info_knows_all_variants(titans, model_folder, tmp_path, variant):
    config = load_config(str(model_folder))
    config.variant = variant
    config.save_pretrained(tmp_path)
    printed = titans("info", tmp_path).stdout
    assert f"{variant}, 2 layers of width 16" in printed
    assert ("no memory" in printed) == (variant == "swa")
    assert ("there is no attention" in printed) == (variant not in ("mag", "mal", "swa"))
    assert "  memory" in printed or variant == "swa"
    assert f"{TitansForCausalLM(config).initial_state(1).nbytes:,} bytes a stream" in printed


@pytest.mark.parametrize(("name", "expected"), [
    ("transformer-tiny", ["everything that was read", "no memory", "32 bytes at the start of a stream",
                          "2,048 bytes more, without end"]),
    ("rmt-tiny", ["its segment of 64 tokens, and 16 memory tokens", "4,128 bytes at the start",
                  "2,048 bytes more, up to the end of a segment of 64", "memory tokens +4,096 bytes"]),
    ("samba-tiny", ["attention sees +64 tokens\n", "bytes a stream, however long it is"]),
    ("titans-mac-tiny", ["parameters +297,240", "bytes a stream, however long it is"]),
])  # fmt: skip
def test_info_of_presets(titans, name, expected):
    from titans.models.flops import flops_per_token
    from titans.models.presets import from_preset

    printed = titans("info", "--preset", name).stdout
    model = from_preset(name)
    for pattern in expected:
        assert re.search(pattern, printed), pattern
    assert f"{model.num_parameters():,}\n" in printed
    assert f"{model.initial_state(1).nbytes:,} bytes" in printed
    assert re.search(rf"FLOPs a token +{flops_per_token(model.config, 4096):,}, the mean of a stream of 4,096", printed)


def test_info_wants_one_model(titans, model_folder):
    for words in ((), (model_folder, "--preset", "mamba-tiny")):
        assert "give either a MODEL or --preset NAME" in titans("info", *words, status=2).stderr
    assert "did you mean mamba-tiny" in titans("info", "--preset", "mambo-tiny", status=2).stderr


def test_info_needs_no_weights(titans, model_folder, tmp_path):
    (tmp_path / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    assert "parameters" in titans("info", tmp_path).stdout


def test_perplexity(titans, model_folder, tmp_path):
    (tmp_path / "a.txt").write_text("some text to predict")
    (tmp_path / "b.txt").write_text("more")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    printed = titans("evaluate", "perplexity", model_folder, *files, "--out", tmp_path / "out")
    name = str(model_folder)
    expected = perplexity(load_model(name), load_tokenizer(name), documents(files))
    assert f"bits per byte  {expected.bits_per_byte:.4f}" in printed.stdout
    assert json.loads((tmp_path / "out" / "perplexity.json").read_text())["tokens"] == 24
    assert (tmp_path / "out" / "perplexity.png").exists()


def test_perplexity_of_a_model_of_hugging_face(titans, tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=259, max_position_embeddings=8, **sizes))
    model.save_pretrained(tmp_path / "llama")
    byte_tokenizer().save_pretrained(tmp_path / "llama")
    (tmp_path / "a.txt").write_text("some text to predict")
    printed = titans("evaluate", "perplexity", tmp_path / "llama", tmp_path / "a.txt", "--window", 6).stdout
    expected = perplexity(model, byte_tokenizer(), documents([tmp_path / "a.txt"]), window=6)
    assert f"bits per byte  {expected.bits_per_byte:.4f}" in printed
    assert printed.endswith(f"{expected.protocol}\n")
    refused = titans("evaluate", "perplexity", tmp_path / "llama", tmp_path / "a.txt", "--write", "never", status=2)
    assert 'has no memory that could write "never"' in refused.stderr


def test_bad_data(titans, model_folder, tmp_path):
    assert "does not exist" in titans("evaluate", "perplexity", model_folder, "gone.txt", status=2).stderr
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    assert "not UTF-8" in titans("evaluate", "perplexity", model_folder, tmp_path / "bad.txt", status=2).stderr


@pytest.mark.parametrize("command", ["", "train", "generate", "info", "calibrate", "evaluate", "evaluate perplexity"])
def test_help_teaches(titans, command):
    printed = titans(*command.split(), "--help").stdout
    assert f"titans {command}" in printed

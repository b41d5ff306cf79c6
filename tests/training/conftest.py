"""A tiny experiment that trains in a second."""

import copy
import dataclasses
import shutil

import pytest

from titans.training.recipe import parse_recipe
from titans.training.run import train

CONTENT = {
    "model": {
        "variant": "mac",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "segment_length": 16,
        "sliding_window": 16,
        "memory": {"chunk_size": 16},
        "num_persistent_tokens": 2,
    },
    "data": {"sequence_length": 12},
    "training": {
        "max_steps": 8,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_steps": 3,
        "report_to": "none",
        "disable_tqdm": True,
    },
}


@pytest.fixture(scope="session")
def shared_corpus(tmp_path_factory):
    """Documents of several lengths: one piece, two pieces, many pieces."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, text in {
        "a": "the memory learns at test time, " * 3,
        "b": "short",
        "c": "a surprising token is remembered",
        "d": "tiny",
        "e": "and the forget gate lets go of what is old",
    }.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def _make(corpus, output_dir, **overrides):
    content = copy.deepcopy(CONTENT)
    content["data"]["train"] = str(corpus)
    content["training"]["output_dir"] = str(output_dir)
    for key, value in overrides.items():
        section, _, name = key.partition("__")
        content[section][name] = value
    return parse_recipe(content, default_output_dir="unused")


@pytest.fixture
def make_recipe(shared_corpus, tmp_path):
    """Make the experiment in a folder of the given name; `section__key` overrides."""

    def make(output="out", **overrides):
        return _make(shared_corpus, tmp_path / output, **overrides)

    return make


@pytest.fixture(scope="session")
def finished(shared_corpus, tmp_path_factory):
    """The experiment, run without interruption. Not to be changed."""
    return train(_make(shared_corpus, tmp_path_factory.mktemp("finished")), report=lambda line: None)


@pytest.fixture
def whole(finished, tmp_path):
    """A copy of the finished run, in the folder "whole"."""
    shutil.copytree(finished.folder, tmp_path / "whole")
    return dataclasses.replace(finished, folder=tmp_path / "whole")

"""`titans memories`: what an operator sees of a store, and does with it."""

import copy

import pytest
import torch

from titans import TitansConfig, TitansForCausalLM
from titans.data import byte_tokenizer
from titans.persistence import MemoryStore
from titans.training.pretrained import load_model


@pytest.fixture(scope="module")
def models(model_folder):
    """The model that is served, and what it was before it was trained further."""
    model = load_model(str(model_folder))
    before = copy.deepcopy(model)
    with torch.no_grad():
        before.model.norm.weight.add_(1)
    return model, before


@pytest.fixture
def place(models, tmp_path):
    """A store of one memory of the model, two of the one before, and a damaged one."""
    model, before = models
    MemoryStore(tmp_path / "memories", model).put("t", "ann:own", model.initial_state(1).detach(), expected=0)
    old = MemoryStore(tmp_path / "memories", before)
    for tenant, name in (("t", "ann:old"), ("u", "old")):
        old.put(tenant, name, before.initial_state(1).detach(), expected=0)
    broken = tmp_path / "memories" / "u=0" / "broken=0"
    broken.mkdir()
    (broken / "000000000001.safetensors").write_bytes(b"no state file")
    return tmp_path / "memories"


def test_list(titans, model_folder, place):
    lines = titans("memories", "list", model_folder, "--memories", place).stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["t ann:old", "t ann:own", "u broken", "u old"]
    assert lines[-1] == "memories: 4, of another model: 2, damaged: 1"
    assert [line.endswith("of another model") for line in lines[:-1]] == [True, False, False, True]
    assert "version 1, 0 tokens, " in lines[1]
    assert "no state file" in lines[2]
    lines = titans("memories", "list", model_folder, "--memories", place, "--tenant", "t").stdout.splitlines()
    assert lines[-1] == "memories: 2, of another model: 1, damaged: 0"


def test_adopt(titans, models, model_folder, place):
    said = titans("memories", "migrate", model_folder, "--memories", place, "--adopt", "--tenant", "u").stdout
    assert said == "adopted: 1 memories of another model\n"
    said = titans("memories", "migrate", model_folder, "--memories", place, "--adopt").stdout
    assert said == "adopted: 1 memories of another model\n"
    store = MemoryStore(place, models[0])
    assert store.count().foreign == 0
    assert [store.info("t", name).version for name in ("ann:old", "ann:own")] == [2, 1]


def test_what_does_not_fit_is_left_and_said(titans, tiny_other, place):
    result = titans("memories", "migrate", tiny_other, "--memories", place, "--adopt", "--tenant", "t", status=2)
    assert result.stdout == "adopted: 0 memories of another model\n"
    assert "load the model that made it, or start a new memory" in result.stderr
    assert "error: 2 memories of another model were left as they are" in result.stderr


@pytest.fixture(scope="module")
def tiny_other(tmp_path_factory, byte_sizes):
    """The folder of a model of another shape."""
    folder = tmp_path_factory.mktemp("other")
    TitansForCausalLM(TitansConfig(variant="lmm", **{**byte_sizes, "memory": {"depth": 1}})).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_delete(titans, models, model_folder, place):
    said = titans("memories", "migrate", model_folder, "--memories", place, "--delete").stdout
    assert said == "deleted: 2 memories of another model\n"
    store = MemoryStore(place, models[0])
    assert [store.names(tenant) for tenant in "tu"] == [["ann:own"], ["broken"]]


def test_backup_and_restore(titans, models, place, tmp_path):
    result = titans("memories", "backup", place, tmp_path / "copy", status=2)
    assert "left out: the memory 'broken' of 'u': this is no state file" in result.stderr
    assert result.stdout.startswith("memories: 3, ")
    said = titans("memories", "restore", tmp_path / "copy", tmp_path / "new").stdout
    assert said.startswith("memories: 3, ")
    assert MemoryStore(tmp_path / "new", models[0]).names("t") == ["ann:old", "ann:own"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["list", "MODEL", "--memories", "nowhere"], "there is no folder nowhere"),
        (["list", "nothing", "--memories", "PLACE"], 'no model folder "nothing"'),
        (["migrate", "MODEL", "--memories", "PLACE"], "either --adopt or --delete"),
        (["migrate", "MODEL", "--memories", "PLACE", "--adopt", "--delete"], "either --adopt or --delete"),
        (["migrate", "MODEL", "--memories", "PLACE", "--adopt", "--tenant", "a/b"], "'a/b'"),
        (["backup", "nowhere", "copy"], "there is no folder nowhere"),
        (["backup", "PLACE", "FULL"], "holds something already"),
        (["backup", "PLACE", "PLACE/sub"], "give a folder outside of it"),
        (["restore", "PLACE", "PLACE"], "give a folder outside of it"),
        (["backup", "FULL", "copy"], "holds other things than memories, such as file.txt"),
        (["list", "MODEL", "--memories", "FULL"], "holds other things than memories, such as file.txt"),
    ],
)
def test_what_cannot_be_done(titans, model_folder, place, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file.txt").touch()
    stand_ins = {"MODEL": model_folder, "PLACE": place, "PLACE/sub": place / "sub", "FULL": tmp_path / "full"}
    result = titans("memories", *(stand_ins.get(word, word) for word in words), status=2)
    assert sentence in result.stderr
    assert not (tmp_path / "nowhere").exists()

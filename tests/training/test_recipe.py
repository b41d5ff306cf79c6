"""A recipe is read as people write it, and what is wrong in it is named."""

from pathlib import Path

import pytest

from titans.data import HubSource
from titans.errors import TitansError
from titans.training import load_recipe

RECIPE = """
model: {hidden_size: 32, num_attention_heads: 2}
data: {train: texts/}
training: {learning_rate: 4e-4, max_steps: 10}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    return file


def test_defaults_and_numbers(path):
    recipe = load_recipe(path)
    assert recipe.training == {"output_dir": "runs/mine", "learning_rate": 4e-4, "max_steps": 10}
    assert recipe.model == {"hidden_size": 32, "num_attention_heads": 2}
    assert recipe.tokenizer is None
    assert recipe.data.train == ("texts/",)
    assert (recipe.data.sequence_length, recipe.data.carry_state) == (512, True)


def test_overrides(path):
    recipe = load_recipe(
        path,
        [
            "training.max_steps=7",
            "training.learning_rate=1e-3",
            "training.lr_scheduler_kwargs.min_lr=1e-5",
            "training.save_strategy=no",
            "training.run_name=2024-02-30",
            "training.seed=010",
            "model=some/folder",
            "tokenizer=other/one",
            "data.carry_state=false",
            "data.train=[a.txt, {hub: owner/name, name: small}]",
            "data.evaluation={hub: owner/name, split: test}",
        ],
    )
    assert recipe.training["max_steps"] == 7
    assert recipe.training["learning_rate"] == 1e-3
    assert recipe.training["save_strategy"] == "no"
    assert (recipe.training["run_name"], recipe.training["seed"]) == ("2024-02-30", 10)
    assert recipe.training["lr_scheduler_kwargs"] == {"min_lr": 1e-5}
    assert (recipe.model, recipe.tokenizer, recipe.data.carry_state) == ("some/folder", "other/one", False)
    assert recipe.data.train == ("a.txt", HubSource("owner/name", "small"))
    assert recipe.data.evaluation == (HubSource("owner/name", split="test"),)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("traning.max_steps=1", r'unknown key "traning" in the recipe: did you mean "training"\?'),
        ("training.learning_rte=1", r'unknown key "training.learning_rte".* did you mean "training.learning_rate"\?'),
        ("model.hiden_size=1", r'unknown key "model.hiden_size".* did you mean "model.hidden_size"\?'),
        ("data.sequence_lenght=1", r'unknown key "data.sequence_lenght".* did you mean "data.sequence_length"\?'),
        ("data.train={hub: a/b, splt: x}", r'unknown key "data.train.splt".* did you mean "data.train.split"\?'),
        ("data.xyz=1", r'unknown key "data.xyz" in the recipe: expected one of: carry_state, evaluation'),
        ("training.max_steps=ten", r"training.max_steps is 'ten' \(str\), expected int"),
        ("training.max_steps=true", r"training.max_steps is True \(bool\), expected int"),
        ("model.tie_word_embeddings=3", r"model.tie_word_embeddings is 3 \(int\), expected bool"),
        ("data.sequence_length=0", r"data.sequence_length is 0, expected at least 1"),
        ("data.carry_state=maybe", r"data.carry_state is 'maybe' \(str\), expected bool"),
        ("data.train=", r"data.train is empty"),
        ("data.train=3", r"data.train is 3, expected a path"),
        ("data.train=[{a: b}]", r"data.train holds \{'a': 'b'\}"),
        ("tokenizer=3", r"tokenizer is 3 \(int\), expected str"),
        ("data=3", r"data is 3 \(int\), expected"),
        ("model=3", r"model is 3 \(int\), expected"),
        ("max_steps", r'"max_steps" is no override: expected key=value'),
        ("=3", r'"=3" is no override'),
        ("training.max_steps=[", r'the value of "training.max_steps=\[" is not YAML'),
        ("training.run_name=" + "[" * 3000, r'the value of "training.run_name=\[{60}\[*…" is not YAML: its brackets'),
        ("training.seed=" + "9" * 5000, r"line 1: a number has 5,000 digits"),
        ("training.seed=1:30", r"training.seed is '1:30' \(str\), expected int"),
        ("training.seed=1e3", r"training.seed is 1000.0 \(float\), expected int"),
        ("training.bf16=yes", r"training.bf16 is 'yes' \(str\), expected bool"),
        ("training.learning_rate=.nan", r"training.learning_rate is nan \(float\), expected float"),
        ("training.learning_rate=.inf", r"training.learning_rate is inf \(float\), expected float"),
        ("training.weight_decay=-.inf", r"training.weight_decay is -inf \(float\), expected float"),
        ("training.max_steps.a=1", r'"training.max_steps" is a value, not a section'),
    ],
)
def test_bad_overrides_are_one_sentence(path, override, message):
    with pytest.raises(TitansError, match=message):
        load_recipe(path, [override])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: [", "is not YAML"),
        ("", "holds no sections"),
        ("just text", "holds no sections"),
        ("data: {train: x}", 'the recipe has no "model" section'),
        ("model: {}", 'the recipe has no "data" section'),
        ("model: {}\ndata: {}", 'no "data.train"'),
        (b"model: \xff", "is not UTF-8"),
        ("model: {}\ndata: {train: x}\nmodel: {}", r'bad\.yaml, line 3: the key "model" stands twice'),
        ("model: " + "[" * 3000, "brackets are nested too deeply"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, content, message):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TitansError, match=message):
        load_recipe(file)


def test_missing_file():
    with pytest.raises(TitansError, match=r"cannot read the recipe nowhere\.yaml: No such file"):
        load_recipe(Path("nowhere.yaml"))


def test_empty_sections_are_absent_sections(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("model: {}\ndata: {train: x}\ntokenizer:\ntraining:\n")
    assert load_recipe(file).training == {"output_dir": "runs/r"}
    assert load_recipe(file, ["training.max_steps=3"]).training == {"max_steps": 3, "output_dir": "runs/r"}
    assert load_recipe(file, ["training.output_dir=null"]).training == {"output_dir": "runs/r"}

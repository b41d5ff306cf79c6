"""The recipes that come with the package are readable, and as large as their names say."""

from pathlib import Path

import pytest
import torch

from titans import TitansConfig, TitansForCausalLM
from titans.training import load_recipe
from titans.training.run import training_arguments

RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = {"170m": (12, 768), "340m": (24, 1024), "400m": (24, 1024), "760m": (24, 1536)}


def test_every_recipe_is_known():
    assert {path.stem for path in RECIPES.glob("*.yaml")} == {"tiny-cpu", "compare-mqar-tiny", *PAPER}


@pytest.mark.parametrize("name", PAPER)
def test_size_is_that_of_the_name(name):
    recipe = load_recipe(RECIPES / f"{name}.yaml")
    config = TitansConfig(**recipe.model)
    with torch.device("meta"):
        model = TitansForCausalLM(config)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(int(name[:-1]) * 1e6, rel=0.05)
    assert (config.num_hidden_layers, config.hidden_size) == PAPER[name]
    assert (config.memory.chunk_size, config.segment_length, config.sliding_window) == (16, 512, 2048)
    assert (config.num_persistent_tokens, config.vocab_size) == (128, 32_000)


@pytest.mark.parametrize("name", PAPER)
def test_training_is_that_of_the_paper(name, tmp_path):
    recipe = load_recipe(RECIPES / f"{name}.yaml", [f"training.output_dir={tmp_path}", "training.use_cpu=true"])
    args = training_arguments(recipe)
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * recipe.data.sequence_length
    assert (recipe.data.sequence_length, batch) == (4096, 1 << 19)
    assert (args.learning_rate, args.weight_decay, args.lr_scheduler_type.value) == (4e-4, 0.1, "cosine")
    assert args.max_steps * batch == pytest.approx(recipe.data.max_tokens, rel=1e-3)


def test_tiny_recipe_runs(tmp_path, monkeypatch):
    from titans.training.run import train

    monkeypatch.chdir(RECIPES.parent)
    overrides = ["max_steps=1", f"output_dir={tmp_path}", "disable_tqdm=true", "report_to=none", "use_cpu=true"]
    recipe = load_recipe(RECIPES / "tiny-cpu.yaml", [f"training.{override}" for override in overrides])
    result = train(recipe, report=lambda line: None)
    assert result.steps == 1
    assert result.losses == {}  # logged every 10 steps
    assert set(result.evaluations) == {1}

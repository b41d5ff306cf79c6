"""What the pages say stays true: their Python runs, their links lead somewhere, their commands parse."""

import importlib.util
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer

import titans
from titans.cli import app
from titans.layers.registry import MIXERS
from titans.training import load_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

LONG = ("integration.md",)  # trains with what other libraries put around models
UNPINNED = ("torchao",)  # transformers imports it with every model where it is there, and it logs what it cannot load


def blocks(page, language):
    """The fenced blocks of a language, each with the number of lines above its first."""
    text = page.read_text(encoding="utf-8")
    return [(match[2], text[: match.start(2)].count("\n")) for match in FENCE.finditer(text) if match[1] == language]


def commands(page):
    """The arguments of each `titans` command in the page's shell blocks, torchrun's included."""
    for code, _ in blocks(page, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["titans"]:
                yield words[1:]
            elif "titans.cli" in words:
                yield words[words.index("titans.cli") + 1 :]


@pytest.mark.filterwarnings(
    "ignore:.*is deprecated and will be removed in v6:FutureWarning",  # TRL's and PEFT's own
    "ignore:'pin_memory' argument is set as true:UserWarning",
    "ignore:.*treespec, LeafSpec.*:FutureWarning",  # Lightning's use of torch
    "ignore:.*should not be instantiated:DeprecationWarning",  # torch.compile's and torch.export's
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
@pytest.mark.parametrize("page", [
    pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in LONG else [])
    for page in PAGES if blocks(page, "python")
])  # fmt: skip
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace, missing = {}, set()
    for code, above in blocks(page, "python"):
        if absent := {name for name in UNPINNED if f"from {name}" in code and importlib.util.find_spec(name) is None}:
            missing |= absent
            continue
        exec(compile("\n" * above + code, page, "exec"), namespace)  # failures name the line of the page
    if missing:
        pytest.skip(f"all ran but what needs {', '.join(missing)}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in target]
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_pages_that_the_code_cites_exist():
    cited = re.compile(r"docs/[\w/-]+\.md")
    for folder in ("src", "tests", "benchmarks", "experiments", "recipes", "deploy", "examples"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".yaml", ".yml", ".cpp", ".h", ".ipynb", ".service", ".toml", ".html"):
                for page in cited.findall(path.read_text(encoding="utf-8")):
                    assert (ROOT / page).exists(), f"{path.relative_to(ROOT)} cites {page}"


def test_sections_that_are_cited_exist():
    sections = re.findall(r"^## (\d+)\.", (ROOT / "docs/semantics.md").read_text(encoding="utf-8"), re.MULTILINE)
    for folder in ("src", "tests", "benchmarks", "experiments", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for cited in re.findall(
                r"semantics\.md, sections? (\d)(?: (?:to|and) (\d))?", path.read_text(encoding="utf-8")
            ):
                assert {*filter(None, cited)} <= {*sections}, f"{path.relative_to(ROOT)} cites section {cited}"


def test_the_reference_names_what_titans_exports():
    index = (ROOT / "docs/reference/index.md").read_text(encoding="utf-8")
    assert not [name for name in titans.__all__ if name not in index and name != "__version__"]


def test_the_page_of_models_names_every_mixer():
    text = (ROOT / "docs/guide/models.md").read_text(encoding="utf-8")
    ours = [name for name, make in MIXERS.items() if make.func.__self__.__module__.startswith("titans.")]
    assert "memory" in ours
    assert not [name for name in ours if f"`{name}`" not in text]


@pytest.mark.parametrize("page", sorted((ROOT / "docs/reference").glob("*.md")), ids=lambda page: page.name)
def test_the_reference_names_what_there_is(page):
    named = re.findall(
        r"^::: (\S+)(?:\n    options:\n      members: \[(.+)\])?", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    for place, members in named:
        home = pkgutil.resolve_name(place)
        assert not [name for name in members.split(", ") if name and not hasattr(home, name)], place


@pytest.mark.parametrize("words", [words for page in PAGES for words in commands(page)], ids=shlex.join)
def test_commands_parse(words):
    command, name = typer.main.get_command(app), "titans"
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    values = command.make_context(name, list(words)).params  # refuses what the command does not know; runs nothing
    if name == "train":
        load_recipe(ROOT / values["recipe"], values["overrides"] or ())

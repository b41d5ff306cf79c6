"""Tests look at what the package shows, never into its private members."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Of libraries, where there is no public way: torch's pytrees and what compiles, transformers' record of a model's
# origin, the waiting of OpenAI's client; and what named tuples call so though it is public.
THEIRS = {"_pytree", "_dynamo", "_inductor", "_subclasses", "_name_or_path", "_base_client", "_replace", "_asdict"}
MODULES = {"torch._subclasses.fake_tensor", "torch._inductor.cpp_builder", "neuralforecast.common._base_model"}
PATCHES = ("setattr", "delattr", "getattr", "hasattr")


def private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def reached(node):
    """What private name of something else a piece of code names, or None."""
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        return None if own or not private(node.attr) or node.attr in THEIRS else node.attr
    if isinstance(node, ast.ImportFrom):
        names = [node.module or "", *(alias.name for alias in node.names)]
        return next((name for name in names if private(name) and name not in THEIRS | MODULES), None)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if called in PATCHES:
            return next((text for text in texts if private(text) and text.isprintable() and " " not in text), None)
    return None


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_private_member_is_reached(path):
    found = [(node.lineno, name) for node in ast.walk(ast.parse(path.read_text())) if (name := reached(node))]
    assert not found, f"use what is public, or make it public where it deserves a name: {found}"


@pytest.mark.parametrize("code", [
    "model._tokens(x)",
    "from titans.forecasting._pandas import to_datetime",
    "from titans.ops.native import _call",
    "monkeypatch.setattr(NATIVE, '_call', counted)",
    "monkeypatch.setattr('titans.cli._loading.load', f)",
])  # fmt: skip
def test_what_is_found(code):
    assert any(reached(node) for node in ast.walk(ast.parse(code)))

"""What imports what: no circles among modules, and arrows that point down only, imports inside functions included."""

import ast
import graphlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# From the bottom up: a package imports from those below it and from itself.
PACKAGES = ("errors", "extras", "error_text", "io", "ops", "layers", "models", "html_page", "plots", "data",
            "persistence", "generation", "training", "forecasting", "evaluation", "serving", "demo", "cli")  # fmt: skip
CORE = PACKAGES[: PACKAGES.index("training") + 1]
# The door: it knows the home of each public name, and imports it when the name is first used.
DOOR = ("titans", "titans._registration")
COPIED = "titans.models.modeling_titans"  # into the folder of every saved model, where it imports the door


def modules():
    """Every module's name and tree."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imported(name):
    """The modules of ours that a module imports, wherever in its text."""
    found = set()
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by a relative name"
            found |= {
                full if (full := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {other for other in found if other in MODULES}


def package(name):
    return name.split(".")[1]


INSIDE = [name for name in MODULES if name not in DOOR]


def test_every_package_has_its_place():
    assert {package(name) for name in INSIDE} == set(PACKAGES)


def test_no_circles():
    graphlib.TopologicalSorter({name: imported(name) for name in INSIDE if name != COPIED}).prepare()


@pytest.mark.parametrize("name", INSIDE)
def test_arrows_point_down(name):
    place = PACKAGES.index(package(name))
    doors = {COPIED: {"titans"}}.get(name, set())
    for other in imported(name) - doors:
        assert other != "titans", f"{name} imports titans itself: import the module that has what it needs"
        assert PACKAGES.index(package(other)) <= place, f"{name} imports {other}"


def test_core_imports_no_application():
    """Follows from the order above; said here for whoever changes it."""
    assert set(PACKAGES) - set(CORE) == {"forecasting", "evaluation", "serving", "demo", "cli"}
    reached, todo = set(), [name for name in INSIDE if package(name) in CORE and name != COPIED]
    while todo:
        if (name := todo.pop()) not in reached:
            reached.add(name)
            todo += imported(name)
    assert {package(name) for name in reached} <= set(CORE)

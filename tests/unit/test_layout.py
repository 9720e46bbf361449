"""The layout of the package: imports go down only, and small modules."""

import ast
from pathlib import Path

import pytest

import keras_unison

pytestmark = pytest.mark.once

PACKAGE = Path(keras_unison.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# From the top down; names on one line may import each other.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"legacy"},
    {"strategy"},
    {"data_parallel"},
    {"global_view"},
    {"engines"},
    {"batches"},
    {"hardware"},
    {"_keras", "keras_config"},
    {"_backend"},
    {"errors", "_versions"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def part(module: Path) -> str:
    """The top-level folder or module that a file belongs to."""
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(module: Path) -> set[str]:
    """The parts of keras_unison that a module imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            steps = name.split(".")
            if steps[0] == "keras_unison" and len(steps) > 1:
                found.add(steps[1])
    return found


def identity(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


@pytest.mark.parametrize("module", MODULES, ids=identity)
def test_imports_go_down_only(module):
    if module == PACKAGE / "__init__.py":
        return
    own = RANK[part(module)]
    for name in imported(module) & set(RANK):
        assert RANK[name] >= own, (
            f"{identity(module)} imports {name}, which is above it"
        )


# Any engine that divides layer calls itself uses these.
DIVISION = [module for module in MODULES if module.parent.name == "division"]


@pytest.mark.parametrize("module", DIVISION, ids=identity)
def test_what_divides_a_call_knows_no_backend(module):
    text = module.read_text()
    for word in ("tensorflow", "torch", "jax"):
        assert f"import {word}" not in text
        assert f"engines.{word}" not in text


def test_there_is_something_that_divides_calls():
    assert DIVISION


@pytest.mark.parametrize("module", MODULES, ids=identity)
def test_modules_are_small(module):
    assert len(module.read_text().splitlines()) <= 350


@pytest.mark.parametrize("module", MODULES, ids=identity)
def test_functions_are_short(module):
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 60, f"{identity(module)}: {node.name} has {lines} lines"


@pytest.mark.parametrize("module", MODULES, ids=identity)
def test_keras_internals_are_touched_in_one_folder_only(module):
    if part(module) == "_keras":
        return
    text = module.read_text()
    for word in ("keras.src", "_jax_state", "_symbolic_build", "keras._tf_keras"):
        assert word not in text, f"{identity(module)} touches {word}"


@pytest.mark.parametrize("module", MODULES, ids=identity)
def test_the_backend_is_asked_for_in_one_place_only(module):
    if module == PACKAGE / "_backend.py":
        return
    assert "keras.backend.backend()" not in module.read_text()


def test_only_our_logger_is_used():
    for module in MODULES:
        text = module.read_text()
        assert "logging.basicConfig" not in text
        assert "getLogger()" not in text
        calls = [
            node.func
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call)
        ]
        printing = [f for f in calls if isinstance(f, ast.Name) and f.id == "print"]
        assert not printing, identity(module)

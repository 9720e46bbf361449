"""The documentation says what the code does, and its examples run."""

import re

import pytest

from keras_unison._versions import TESTED
from tests.process.scripts import ROOT, output_of, run_python

pytestmark = pytest.mark.process

WITH_EXAMPLES = [
    "DataParallel",
    "MirroredStrategy",
    "devices",
    "multi_gpu_model",
    "simulate",
    "step",
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_example_of_a_public_name_runs(name):
    code = f"""
import doctest, keras_unison
found = getattr(keras_unison, {name!r})
assert doctest.DocTestFinder(recurse=False).find(found)[0].examples
doctest.run_docstring_examples(found, {{}}, name={name!r})
"""
    assert output_of(run_python(code)) == ""


def test_the_readme_shows_the_table_of_tested_versions():
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", readme(), re.M)
    for package, lowest, newest in rows:
        assert TESTED[package].lowest == lowest
        assert TESTED[package].newest == newest
    assert [row[0] for row in rows] == ["keras", "jax"]


def test_every_link_of_the_documentation_leads_somewhere():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_linked_from_the_readme():
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in readme()


def readme() -> str:
    return (ROOT / "README.md").read_text()

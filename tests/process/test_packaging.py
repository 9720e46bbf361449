"""The wheel and the source distribution, built and checked."""

import subprocess
import sys
import tarfile
import zipfile

import pytest

import keras_unison
from tests.process.scripts import ROOT

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run("build", "--outdir", folder, ROOT)
    run("twine", "check", "--strict", *folder.iterdir())
    return folder


def run(*command):
    found = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    version = keras_unison.__version__
    assert tops == {"keras_unison", f"keras_unison-{version}.dist-info"}
    assert "keras_unison/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    sources = {
        str(path.relative_to(ROOT)) for path in (ROOT / "keras_unison").rglob("*.py")
    }
    assert sources <= set(names)


def test_the_source_distribution_holds_what_the_tests_need(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    for wanted in ("tests/conftest.py", "examples/cifar10_cnn.py", "Makefile"):
        assert any(name.endswith(wanted) for name in names)

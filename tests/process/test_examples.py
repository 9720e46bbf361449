"""The examples run as a user runs them."""

import os
import re
import subprocess
import sys

import pytest

from tests.process.scripts import ROOT, on_both

pytestmark = pytest.mark.process


@pytest.mark.timeout(400)
@on_both
def test_the_main_example_trains_and_equals_one_device(backend, tmp_path):
    """With a home without CIFAR-10 and, in most test machines, without network."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KERAS_", "UNISON_", "JAX_", "NPROC"))
    }
    found = subprocess.run(
        [sys.executable, "examples/cifar10_cnn.py"],
        cwd=ROOT,
        env={**environment, "KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=390,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    text = found.stdout
    assert f" on {backend}\n" in text
    assert "cpu:1" in text
    assert "Epoch 1/" in text
    assert re.search(r"Samples per second: [\d,]+ in all, [\d,]+ per replica", text)
    assert "2 devices against one, first 5 steps" in text
    assert "Equal to one device." in text
    accuracy, data = re.search(r"Validation accuracy: ([\d.]+) on (.*)", text).groups()
    assert float(accuracy) >= (0.40 if data == "CIFAR-10" else 0.90)

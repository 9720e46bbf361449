"""A DataParallel that does nothing fails the suite."""

import os
import re
import subprocess
import sys

import pytest

from tests.process.scripts import ROOT, on_both

pytestmark = pytest.mark.process


@pytest.mark.timeout(600)
@on_both
def test_the_equivalence_suite_fails_when_data_parallel_is_the_identity(backend):
    files = [
        "tests/equivalence/test_batch_sizes.py",
        "tests/equivalence/test_models.py",
    ]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "two"]
        + files,
        cwd=ROOT,
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "UNISON_TESTS_WITH_IDENTITY": "1",
        },
        capture_output=True,
        text=True,
        timeout=590,
    )
    closing = found.stdout.splitlines()[-1]
    assert found.returncode == 1, found.stdout
    assert re.match(r"\d+ failed", closing), closing
    assert "passed" not in closing, closing

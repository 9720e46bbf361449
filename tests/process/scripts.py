"""Running Python code in a fresh process, with bounded time."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS_TENSORFLOW = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)
# For tests that choose the backend of the processes that they start.
on_both = pytest.mark.parametrize(
    "backend", ["jax", pytest.param("tensorflow", marks=NEEDS_TENSORFLOW)]
)


def run_python(
    code: str, *, timeout: float = 120, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` as a script; variables of ours are unset unless given."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KERAS_", "UNISON_", "XLA_", "JAX_", "NPROC"))
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**inherited, "KERAS_BACKEND": "jax", **environment},
    )


def output_of(found: subprocess.CompletedProcess[str]) -> str:
    """What a script printed, once it is known to have succeeded."""
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout

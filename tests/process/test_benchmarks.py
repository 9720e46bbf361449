"""The benchmark and the check of accelerators run, and the check can fail."""

import json
import os
import subprocess
import sys

import pytest

from tests.gpu_check import BACKENDS, CHECKS
from tests.process.scripts import ROOT, output_of, run_python

pytestmark = pytest.mark.process

NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}


def run_file(*arguments, **environment):
    """Runs a program of the project; no device is simulated unless asked for."""
    inherited = dict(os.environ)
    inherited.pop("KERAS_UNISON_SIMULATE", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=290,
    )


@pytest.mark.parametrize(
    ("backend", "other"), [("jax", "distribution"), ("tensorflow", "mirrored")]
)
def test_one_process_times_all_variants_of_a_backend(backend, other):
    found = run_file(
        "benchmarks/data_parallel.py",
        *("--child", f"plain,{other},unison", "--model", "cnn"),
        *("--devices", "2", "--rounds", "1", "--steps", "3"),
        KERAS_BACKEND=backend,
        KERAS_UNISON_SIMULATE="2",
    )
    measured = json.loads(output_of(found).splitlines()[-1])
    assert [len(times) for times in measured["times"]] == [1, 1, 1]
    assert all(seconds > 0 for (seconds,) in measured["times"])
    assert len(measured["first"]) == 3
    assert measured["peak_gib"] > 0.1


@pytest.mark.soak
def test_the_table_has_a_row_for_each_comparison():
    arguments = ("--backend", "tensorflow", "--models", "cnn", "--rounds", "2")
    found = run_file("benchmarks/data_parallel.py", *arguments)
    rows = [line for line in output_of(found).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert {row.count("|") for row in rows} == {8}


def test_the_gpu_check_passes_on_two_simulated_devices():
    found = run_file("-m", "tests.gpu_check", "--simulate", "2")
    text = output_of(found)
    assert f"{len(BACKENDS) * len(CHECKS)} OK, 0 FAIL, 0 SKIP" in text
    for backend in BACKENDS:
        for check in CHECKS:
            assert f"OK    {backend}: {check} on cpu:0, cpu:1: differs by " in text


def test_the_gpu_check_says_what_it_skips_without_an_accelerator():
    found = run_file("-m", "tests.gpu_check", **NO_GPUS)
    text = output_of(found)
    assert f"0 OK, 0 FAIL, {len(BACKENDS) * len(CHECKS)} SKIP" in text
    assert "Nothing could be checked." in text
    assert "Not checked, because tensorflow sees no accelerator, only cpu:0:" in text


NOTHING = "lambda model: model"
INEXACT = "lambda m: (m.set_weights([w + 1e-3 for w in m.get_weights()]), real(m))[1]"


@pytest.mark.parametrize(
    ("backend", "wrong", "why"),
    [
        ("jax", NOTHING, "the steps ran on 1 devices"),
        ("tensorflow", NOTHING, ", 0]"),
        ("tensorflow", INEXACT, "returned/accuracy"),
    ],
    ids=["nothing_on_jax", "nothing_on_tensorflow", "inexact"],
)
def test_the_gpu_check_fails_where_data_parallel_is(backend, wrong, why):
    code = f"""
import keras_unison as ku
real = ku.DataParallel
ku.DataParallel = {wrong}
from tests import gpu_check
del gpu_check.CHECKS["the article's CNN"], gpu_check.CHECKS["a transformer"]
gpu_check.child("{backend}")
"""
    text = output_of(
        run_python(code, cwd=ROOT, KERAS_BACKEND=backend, KERAS_UNISON_SIMULATE="2")
    )
    verdicts = [line for line in text.splitlines() if line.count("\t") == 2]
    assert [line.split("\t")[0] for line in verdicts] == ["FAIL"]
    assert why in verdicts[0]


def test_a_check_that_fails_makes_the_exit_code_one(tmp_path):
    """A backend that cannot start: its process breaks off before any check."""
    (tmp_path / "jax.py").write_text("raise ImportError('broken')")
    found = run_file("-m", "tests.gpu_check", PYTHONPATH=str(tmp_path), **NO_GPUS)
    assert found.returncode == 1
    assert "FAIL  jax: broke off after 0 of 3 checks, exit code 1" in found.stdout
    assert "ImportError: broken" in found.stdout

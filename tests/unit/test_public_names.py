"""The public names and signatures, so that they cannot change unseen."""

import importlib
import inspect
import subprocess
import sys

import pytest

import keras_unison as ku

pytestmark = pytest.mark.once

SIGNATURES = {
    "DataParallel": "(model, devices=None, *, sync_batch_norm=True, "
    "exact_draws=True, shard=None, data='global')",
    "MirroredStrategy": "(devices=None)",
    "devices": "()",
    "load_keras2_model": "(path, *, compile=True)",
    "load_keras2_weights": "(model, path)",
    "multi_gpu_model": "(model, gpus=None, cpu_merge=True, cpu_relocation=False)",
    "simulate": "(n)",
    "step": "(fn)",
}
ERRORS = {
    "BatchError": ValueError,
    "ConfigError": ValueError,
    "DeviceError": ValueError,
    "HelperError": RuntimeError,
    "LegacyFileError": ValueError,
    "ModelError": ValueError,
    "PlacementError": RuntimeError,
    "SimulationError": RuntimeError,
    "UnsupportedError": NotImplementedError,
}
OTHERS = {"Device", "UnisonError", "UnisonWarning", "__version__"}


def parameters(function) -> str:
    """The names, kinds and defaults of a function's parameters."""
    found = inspect.signature(function).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found]
    return str(inspect.Signature(plain))


def test_the_public_names_are_these():
    assert set(ku.__all__) == {*SIGNATURES, *ERRORS, *OTHERS}
    assert dir(ku) == sorted(ku.__all__)
    for name in ku.__all__:
        assert getattr(ku, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(ku, "TensorParallel")


def test_the_signatures_are_these():
    found = {name: parameters(getattr(ku, name)) for name in SIGNATURES}
    assert found == SIGNATURES


def test_each_error_is_also_the_builtin_that_a_keras_user_expects():
    for name, builtin in ERRORS.items():
        error = getattr(ku, name)
        assert issubclass(error, ku.UnisonError)
        assert issubclass(error, builtin)
    assert issubclass(ku.UnisonWarning, UserWarning)


def test_every_public_name_is_documented():
    for name in SIGNATURES:
        text = inspect.getdoc(getattr(ku, name))
        assert text.splitlines()[0].endswith((".", ":"))
        if parameters(getattr(ku, name)) != "()":
            assert "Args:" in text
        assert "Example:" in text


def test_importing_prints_nothing_and_starts_no_backend():
    code = (
        "import sys, keras_unison; "
        "loaded = {'keras', 'jax', 'tensorflow', 'torch', 'ray', 'numpy'}; "
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path)},
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_version_is_that_of_the_distribution():
    metadata = importlib.import_module("importlib.metadata")
    assert metadata.version("keras-unison") == ku.__version__

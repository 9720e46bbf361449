"""Every test process sees three simulated devices on JAX, unless it says otherwise."""

import os
import signal
import zlib

# A shell starts what it puts into the background with Ctrl-C ignored, for Python and
# the programs it starts alike.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("KERAS_BACKEND", "jax")
if os.environ["KERAS_BACKEND"] != "torch":
    os.environ.setdefault("KERAS_UNISON_SIMULATE", "3")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Most of the time goes into compiling tiny programs. This spares LLVM's passes over
# them; what XLA does before, partitioning included, stays as it is.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

from collections.abc import Iterator  # noqa: E402

import pytest  # noqa: E402

import keras_unison  # noqa: E402

if os.environ.get("UNISON_TESTS_WITH_IDENTITY"):
    # tests/process/test_identity_fails.py: a DataParallel that does nothing.
    keras_unison.DataParallel = lambda model, *args, **kwargs: model


@pytest.fixture(params=[2, 3], ids=["two_devices", "three_devices"])
def devices(request: pytest.FixtureRequest) -> int:
    """The number of devices that a test divides its work over."""
    return request.param


# All of these run on each number of devices whenever the suite runs.
_ON_EACH_NUMBER = ("test_batch_sizes.py", "test_row_mixing.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Half of the tests run on two devices and half on three.

    The other number is left to the long runs: it doubles the time of the suite.
    """
    for item in items:
        callspec = getattr(item, "callspec", None)
        number = callspec.params.get("devices") if callspec is not None else None
        if callspec is None or number is None or item.path.name in _ON_EACH_NUMBER:
            continue
        rest = [id_ for id_ in callspec._idlist if not id_.endswith("_devices")]
        name = f"{item.path.name} {getattr(item, 'originalname', '')} {rest}"
        if number != 2 + zlib.crc32(name.encode()) % 2:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def no_graphs_of_plain_models_remain() -> Iterator[None]:
    """TensorFlow keeps what plain Keras models have traced, for ever.

    That would be gigabytes in the course of the suite.
    """
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        yield
        return
    from keras_unison.engines.tensorflow.differentiable import (
        forget_gradients,
        registered_gradients,
    )

    before = set(registered_gradients())
    yield
    forget_gradients([name for name in registered_gradients() if name not in before])

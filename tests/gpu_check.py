"""Whether this machine's accelerators give the numbers of one of them.

    make gpu-check                               # what the accelerators allow
    make gpu-check ARGS="--simulate 2"           # the same on simulated devices

Each backend that has an engine runs in a process of its own: a few models train on
one device and on all of them, with an uneven last batch, and history, weights and
optimizer are compared by the harness of the equivalence tests. What is not known
from there is what only accelerators show: their kernels, their compilers, copies
between them, and where the weights lie.

A line is printed for each check, and at the end what was skipped and why. The exit
code is 1 if a check failed. A backend adds a row to `BACKENDS`, a check one to
`CHECKS`.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Seconds for all backends together.
LIMIT = 280
OK, FAIL, SKIP = "OK", "FAIL", "SKIP"

BATCH = 48
# Two whole batches, and one that no number of devices from 2 to 10 divides.
ROWS = 2 * BATCH + 11
TOLERANCE = 1e-4
# Full precision of float32: TensorFloat-32 has three digits only.
ENVIRONMENT = {
    "NVIDIA_TF32_OVERRIDE": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


# --- backends ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What the checks need to know of a backend.

    Attributes:
        start: Called first; returns what is said about the devices, if anything.
        watching: A context that counts what each device computes within it.
        home: The kind of device that an array lies on.
    """

    start: Callable[[], str]
    watching: Callable[[], Any]
    home: Callable[[Any], str]


@dataclass(slots=True)
class Watched:
    """How many of the large operations each device ran in a context."""

    operations: list[int] = field(default_factory=list)


@contextmanager
def _watching_jax() -> Iterator[Watched]:
    """Every device of a partitioned program runs all of its operations."""
    from tests.equivalence.programs.jax import programs

    watched = Watched()
    with programs() as seen:
        yield watched
    watched.operations = [1] * max(program.partitions for program in seen.programs)


@contextmanager
def _watching_tensorflow() -> Iterator[Watched]:
    """Counts in the graphs that were executed, cut by device."""
    from tensorflow.python.eager import context

    import keras_unison as ku

    watched = Watched()
    context.enable_run_metadata()
    try:
        # What ran before.
        context.export_run_metadata()
        yield watched
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs = [g for f in metadata.function_graphs for g in f.partition_graphs]
    counts = Counter(
        node.device.rpartition("/")[2]
        for graph in graphs
        for node in graph.node
        if _is_large(node)
    )
    watched.operations = [
        counts[device.description.strip("/")] for device in ku.devices()
    ]


def _is_large(node: Any) -> bool:
    """A matrix product, a convolution, or a part of a step that XLA compiles."""
    return (
        any(kind in node.op for kind in ("MatMul", "Conv2D"))
        or node.attr["_XlaMustCompile"].b
    )


def _start_tensorflow() -> str:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    gpus = tf.config.list_physical_devices("GPU")
    if os.environ.get("KERAS_UNISON_SIMULATE") or len(gpus) != 1:
        return ""
    part = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
    tf.config.set_logical_device_configuration(gpus[0], [part, part])
    return "there is one, which TensorFlow shows as two"


BACKENDS = {
    "jax": Backend(
        start=str,
        watching=_watching_jax,
        home=lambda array: next(iter(array.devices())).platform,
    ),
    "tensorflow": Backend(
        start=_start_tensorflow,
        watching=_watching_tensorflow,
        home=lambda array: array.device.rpartition("device:")[2].split(":")[0].lower(),
    ),
}


# --- checks -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A model that trains on one device and on all of them.

    Attributes:
        build: Makes the model.
        data: Name of its data in `benchmarks/data_parallel.py`.
        draws: Whether it draws random numbers, which belong to their rows.
    """

    build: Callable[[], Any]
    data: str
    draws: bool = False


def _cnn() -> Any:
    from benchmarks.data_parallel import build

    return build("cnn")[0]


def _normalized() -> Any:
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(8, 3, strides=2),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.SpatialDropout2D(0.2),
            layers.Flatten(),
            layers.Dense(16),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    )


def _transformer() -> Any:
    from benchmarks.data_parallel import transformer

    return transformer(width=32, blocks=1)


CHECKS = {
    "the article's CNN": Check(build=_cnn, data="cnn"),
    "BatchNormalization, Dropout": Check(build=_normalized, data="cnn", draws=True),
    "a transformer": Check(build=_transformer, data="transformer"),
}


def run_check(check: Check, backend: Backend) -> str:
    """Trains on one device and on all; returns what was found.

    Raises:
        AssertionError: The numbers differ, or the devices did not work.
    """
    import keras_unison as ku
    from benchmarks.data_parallel import make_data
    from tests.equivalence import harness

    devices = ku.devices()
    x, y = make_data(check.data, ROWS)
    trained = []

    def build() -> Any:
        import keras

        model = check.build()
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def train(model: Any, order: Callable[[Any], Any] = lambda rows: rows) -> Any:
        trained.append(model)
        options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(order(x), order(y), **options)

    def train_again(model: Any) -> Any:
        """The same with its sums in another order, where that changes no draws."""
        if check.draws:
            return train(model)
        return train(model, lambda rows: harness.reversed_batches(rows, BATCH))

    one = harness.run(build, train)
    floor = harness.largest_difference(one, harness.run(build, train_again))
    with backend.watching() as watched:
        many = harness.run(build, train, _on_all)
    allowed = max(TOLERANCE, harness.FLOORS * floor)
    harness.compare(one, many, allowed)
    shares = watched.operations
    assert len(shares) == len(devices), f"the steps ran on {len(shares)} devices"
    assert 0 < min(shares) == max(shares), f"large operations by device: {shares}"
    homes = {backend.home(value) for value in _floats(trained[-1])}
    assert homes == {devices[0].kind}, f"weights lie on {sorted(homes)}"
    difference = harness.largest_difference(one, many)
    return f"differs by {difference:.1e}, allowed {allowed:.1e}"


def _on_all(model: Any) -> Any:
    import keras_unison as ku
    from keras_unison.engines import engine

    if len(ku.devices()) > 1:
        return ku.DataParallel(model)
    # DataParallel leaves a model on the first device plain: ask the engine itself.
    engine().prepare(model, [0], exact_draws=True)
    return model


def _floats(model: Any) -> list[Any]:
    import keras

    variables = [*model.variables, *model.optimizer.variables]
    return [v.value for v in variables if keras.backend.is_float_dtype(v.dtype)]


# --- one backend, in its own process ----------------------------------------


def child(name: str) -> None:
    """Runs the checks of a backend and prints a verdict for each."""
    backend = BACKENDS[name]
    said = backend.start()
    import keras_unison as ku

    devices = ku.devices()
    names = ", ".join(device.name for device in devices)
    simulated = bool(os.environ.get("KERAS_UNISON_SIMULATE"))
    if devices[0].kind == "cpu" and not simulated:
        for check in CHECKS:
            tell(SKIP, check, f"{name} sees no accelerator, only {names}")
        return
    if len(devices) == 1:
        said = f"there is one, {names}, which computed everything in one replica"
    if said:
        tell(SKIP, "several accelerators", said)
    for title, check in CHECKS.items():
        tell(*_verdict(title, check, backend, names))


def _verdict(title: str, check: Check, backend: Backend, names: str) -> tuple[str, ...]:
    place = f"{title} on {names}"
    try:
        return OK, place, run_check(check, backend)
    except Exception as error:  # noqa: BLE001 - the other checks still run
        traceback.print_exc()
        return FAIL, place, f"{type(error).__name__}: {error}".splitlines()[0]


def tell(*words: str) -> None:
    """Prints a verdict, which the parent tells from other output by its tabs."""
    print("\t".join(words), flush=True)


# --- all of them ------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """The verdicts so far."""

    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    skipped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, verdict: str, what: str, why: str) -> None:
        """Counts and prints one verdict."""
        self.counts[verdict] += 1
        if verdict == SKIP:
            self.skipped[why].append(what)
        print(f"{verdict:<5} {what}: {why}", flush=True)

    def summary(self) -> None:
        """Prints how many there were of each, and what was skipped."""
        counts = [f"{self.counts[verdict]} {verdict}" for verdict in (OK, FAIL, SKIP)]
        print(f"\n{', '.join(counts)}")
        if not self.counts[OK] and not self.counts[FAIL]:
            print("Nothing could be checked.")
        for why, what in self.skipped.items():
            print(f"Not checked, because {why}:")
            print("".join(f"  {each}\n" for each in what), end="")


def run_backend(name: str, simulate: int | None, limit: float, tally: Tally) -> None:
    """Runs the checks of a backend in a process of its own."""
    if importlib.util.find_spec(name) is None:
        tally.add(SKIP, name, f"{name} is not installed")
        return
    environment = {**os.environ, **ENVIRONMENT, "KERAS_BACKEND": name}
    environment.pop("KERAS_UNISON_SIMULATE", None)
    if simulate:
        environment["KERAS_UNISON_SIMULATE"] = str(simulate)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu_check", "--child", name],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(limit, process.kill)
    timer.start()
    verdicts, other = [], []
    with process:
        for line in process.stdout or ():
            words = line.rstrip("\n").split("\t")
            if len(words) == 3 and words[0] in (OK, FAIL, SKIP):
                tally.add(words[0], f"{name}: {words[1]}", words[2])
                verdicts.append(words[0])
            else:
                other.append(line)
    too_slow = not timer.is_alive()
    timer.cancel()
    if process.returncode:
        how = f"took more than {limit:.0f} s" if too_slow else "broke off"
        done = f"after {verdicts.count(OK)} of {len(CHECKS)} checks"
        verdicts.append(FAIL)
        tally.add(FAIL, name, f"{how} {done}, exit code {process.returncode}")
    if FAIL in verdicts:
        print("".join(other[-30:]), end="")


def main() -> int:
    """Runs all checks; returns the exit code."""
    from keras_unison.engines import BUILT

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", type=int, help="run on so many CPU devices")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return 0
    tally = Tally()
    deadline = time.monotonic() + LIMIT
    for number, name in enumerate(BUILT):
        limit = (deadline - time.monotonic()) / (len(BUILT) - number)
        run_backend(name, arguments.simulate, limit, tally)
    tally.summary()
    return 1 if tally.counts[FAIL] else 0


if __name__ == "__main__":
    sys.exit(main())

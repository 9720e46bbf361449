"""Data parallel training against plain Keras and what the backend offers, as ratios.

    python benchmarks/data_parallel.py                          # JAX, about 8 minutes
    python benchmarks/data_parallel.py --backend tensorflow     # about 12 minutes
    python benchmarks/data_parallel.py --models cnn --rounds 3

Each comparison runs in one process, which trains the variants in turn and in
changing order, so that whatever else the machine does meets all of them. They are
built anew for each round, since where a model happens to lie in memory can change
its speed by half. A variant stands twice in its comparison: the ratio of the two is
the noise. Peak memory and the first step are those of processes that train one
variant only. The first step is what an epoch of one step takes longer than the same
once more: tracing, compiling, and all else that is done once.

Simulated devices share the cores of the machine, so that a ratio says what the
method costs, and nothing about the speed of real devices. TensorFlow has one pool
of threads for all of them: a plain model beside two simulated devices runs on the
first, with all of the machine's cores, so that "plain on the same cores" is fair.
"""

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from importlib.metadata import packages_distributions, version
from pathlib import Path

MODELS = ("cnn", "mlp", "transformer")
# Steps of an epoch. MirroredStrategy begins each with a tenth of a second of its own,
# which many steps share in real training.
STEPS = {"jax": 5, "tensorflow": 20}

# By backend: number of devices and the two variants of each comparison.
COMPARISONS = {
    "jax": {
        "one device: plain Keras / wrapped": (1, "plain", "unison"),
        "two devices: keras.distribution / wrapped": (2, "distribution", "unison"),
    },
    "tensorflow": {
        "one device: plain Keras / wrapped": (1, "plain", "unison"),
        "two devices: tf.distribute.MirroredStrategy / wrapped": (
            2,
            "mirrored",
            "unison",
        ),
        "two devices against plain Keras on the same cores: plain / wrapped": (
            2,
            "plain",
            "unison",
        ),
    },
}
COLUMNS = (
    "comparison",
    "model",
    "ms a step",
    "ratio (quartiles)",
    "noise",
    "first step, s",
    "peak GiB",
)


# --- what is trained --------------------------------------------------------


def build(name):
    """The model, its batch size and its loss."""
    import keras
    from keras import layers

    if name == "cnn":
        model = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(10, activation="softmax"),
            ]
        )
        return model, 128, "sparse_categorical_crossentropy"
    if name == "mlp":
        model = keras.Sequential(
            [
                keras.Input((2048,)),
                layers.Dense(2048, activation="relu"),
                layers.Dense(2048, activation="relu"),
                layers.Dense(2048),
            ]
        )
        return model, 64, "mse"
    return transformer(), 64, "sparse_categorical_crossentropy"


def transformer(tokens=64, vocabulary=1000, width=128, blocks=2):
    """A small encoder that classifies sequences of tokens."""
    import keras
    from keras import layers

    inputs = keras.Input((tokens,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(4, width // 4)(x, x)
        x = layers.LayerNormalization()(x + attended)
        hidden = layers.Dense(4 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(hidden))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def make_data(name, rows):
    """Random data: speed does not depend on it."""
    import numpy as np

    generator = np.random.default_rng(0)
    if name == "cnn":
        x = generator.random((rows, 32, 32, 3), dtype="float32")
    elif name == "mlp":
        x = generator.random((rows, 2048), dtype="float32")
        return x, generator.random((rows, 2048), dtype="float32")
    else:
        x = generator.integers(0, 1000, (rows, 64))
    return x, generator.integers(0, 10, rows)


# --- one variant ------------------------------------------------------------


def scope(kind, devices):
    """What a variant is built, compiled and trained in."""
    if kind == "distribution":
        import keras

        import keras_unison as ku

        names = [device.name for device in ku.devices()[:devices]]
        return keras.distribution.DataParallel(devices=names).scope
    if kind == "mirrored":
        import tensorflow as tf

        names = [f"CPU:{index}" for index in range(devices)]
        return tf.distribute.MirroredStrategy(names).scope
    return nullcontext


class Variant:
    """A model that trains in one way, ready to be timed."""

    def __init__(self, kind, name, devices, steps):
        import keras

        import keras_unison as ku

        self.scope = scope(kind, devices)
        with self.scope():
            keras.utils.set_random_seed(0)
            self.model, self.batch_size, loss = build(name)
            if kind == "unison":
                ku.DataParallel(self.model, devices=devices)
            self.model.compile("adam", loss)
        self.x, self.y = make_data(name, steps * self.batch_size)
        self.first = self.seconds(1) - self.seconds(1)
        self.seconds(steps)

    def seconds(self, steps):
        """Trains for an epoch of so many steps; returns how long it took."""
        rows = steps * self.batch_size
        x, y = self.x[:rows], self.y[:rows]
        with self.scope():
            began = time.perf_counter()
            self.model.fit(x, y, batch_size=self.batch_size, shuffle=False, verbose=0)
            return time.perf_counter() - began


def child(arguments):
    """What one process does: prints the times and its peak memory as JSON."""
    built = (arguments.model, arguments.devices, arguments.steps)
    kinds = arguments.child.split(",")
    times, first = [[] for _ in kinds], [[] for _ in kinds]
    for number in range(arguments.rounds):
        order = list(range(len(kinds)))
        for index in order[number % len(order) :] + order[: number % len(order)]:
            variant = Variant(kinds[index], *built)
            first[index].append(variant.first)
            times[index].append(variant.seconds(arguments.steps))
            del variant
            gc.collect()
    # Linux counts it in kilobytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(json.dumps({"times": times, "first": first, "peak_gib": peak}))


# --- all of them ------------------------------------------------------------


def run(backend, kinds, model, devices, rounds):
    """Runs variants in a process of their own."""
    environment = dict(os.environ, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="2")
    environment.pop("KERAS_UNISON_SIMULATE", None)
    if devices > 1:
        environment["KERAS_UNISON_SIMULATE"] = str(devices)
    command = [sys.executable, __file__, "--child", ",".join(kinds)]
    command += ["--model", model, "--devices", str(devices)]
    command += ["--rounds", str(rounds), "--steps", str(STEPS[backend])]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1800
    )
    if found.returncode:
        raise SystemExit(found.stderr)
    return json.loads(found.stdout.splitlines()[-1])


def ratios(reference, other):
    """Median and quartiles of reference / other, pair by pair."""
    pairs = sorted(a / b for a, b in zip(reference, other, strict=True))
    low, _, high = statistics.quantiles(pairs, n=4)
    return statistics.median(pairs), low, high


def report(backend, models, rounds):
    """Prints the table."""
    python = platform.python_version()
    installed = version(packages_distributions()[backend][0])
    print(f"Keras {version('keras')}, {backend} {installed}, Python {python}")
    print(f"{processor()}, {os.cpu_count()} cores")
    print(f"{rounds} rounds of {STEPS[backend]} steps\n")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for title, (devices, *kinds) in COMPARISONS[backend].items():
        for model in models:
            cells = measure(backend, kinds, model, devices, rounds)
            print(f"| {' | '.join((title, model, *cells))} |", flush=True)


def measure(backend, kinds, model, devices, rounds):
    """The numbers of one row of the table, as text."""
    one, other = kinds
    found = run(backend, (one, one, other), model, devices, rounds)
    reference, again, wrapped = found["times"]
    alone = [run(backend, [kind], model, devices, 1) for kind in kinds]
    epochs = [statistics.median(times) for times in (reference, wrapped)]
    ratio, low, high = ratios(reference, wrapped)
    noise, noise_low, noise_high = ratios(reference, again)
    return (
        " / ".join(f"{1000 * epoch / STEPS[backend]:.0f}" for epoch in epochs),
        f"**{ratio:.2f}** ({low:.2f} to {high:.2f})",
        f"{noise:.2f} ({noise_low:.2f} to {noise_high:.2f})",
        " / ".join(f"{each['first'][0][0]:.1f}" for each in alone),
        " / ".join(f"{each['peak_gib']:.2f}" for each in alone),
    )


def processor():
    """The name of the processor, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main():
    """Measures, or does what one process of a measurement does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=COMPARISONS, default="jax")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=11, help="pairs, at least 9")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
    else:
        report(arguments.backend, arguments.models, arguments.rounds)


if __name__ == "__main__":
    main()

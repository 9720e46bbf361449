"""Data parallel training against plain Keras and keras.distribution, as ratios.

    python benchmarks/data_parallel.py              # everything, about 8 minutes
    python benchmarks/data_parallel.py --models cnn --rounds 3

Each comparison runs in one process, which trains the variants in turn and in
changing order, so that whatever else the machine does meets all of them. A
variant stands twice in its comparison: the ratio of the two is the noise. Peak
memory is that of processes that train one variant only. Simulated devices share
the cores of the machine, so that a ratio says what the method costs, and nothing
about the speed of real devices.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

MODELS = ("cnn", "mlp", "transformer")
STEPS = 5

# Variants of each comparison; the first is what the others are compared with,
# the second is the same again.
COMPARISONS = {
    "one device: plain Keras / wrapped": (1, ("plain", "plain", "unison")),
    "two devices: keras.distribution / wrapped": (
        2,
        ("distribution", "distribution", "unison"),
    ),
}


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


class Variant:
    """A model that trains in one way, ready to be timed."""

    def __init__(self, kind, name, devices):
        import keras

        import keras_unison as ku

        self.distribution = None
        if kind == "distribution":
            names = [device.name for device in ku.devices()[:devices]]
            self.distribution = keras.distribution.DataParallel(devices=names)
        keras.distribution.set_distribution(self.distribution)
        keras.utils.set_random_seed(0)
        self.model, batch_size, loss = build(name)
        self.batch_size = batch_size
        if kind == "unison":
            ku.DataParallel(self.model, devices=devices)
        self.model.compile("adam", loss)
        self.x, self.y = make_data(name, STEPS * batch_size)
        keras.distribution.set_distribution(None)
        self.seconds()

    def seconds(self):
        """Trains for some steps; returns seconds per step."""
        import keras

        keras.distribution.set_distribution(self.distribution)
        began = time.perf_counter()
        self.model.fit(
            self.x, self.y, batch_size=self.batch_size, shuffle=False, verbose=0
        )
        passed = time.perf_counter() - began
        keras.distribution.set_distribution(None)
        return passed / STEPS


def child(arguments):
    """What one process does: prints the times and its peak memory as JSON."""
    kinds = arguments.child.split(",")
    variants = [Variant(kind, arguments.model, arguments.devices) for kind in kinds]
    times = [[] for _ in variants]
    for number in range(arguments.rounds):
        order = list(range(len(variants)))
        for index in order[number % len(order) :] + order[: number % len(order)]:
            times[index].append(variants[index].seconds())
    # Linux counts it in kilobytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(json.dumps({"times": times, "peak_gib": peak}))


# --- all of them ------------------------------------------------------------


def run(kinds, model, devices, rounds):
    """Runs variants in a process of their own."""
    environment = dict(os.environ, KERAS_BACKEND="jax", TF_CPP_MIN_LOG_LEVEL="2")
    environment.pop("KERAS_UNISON_SIMULATE", None)
    if devices > 1:
        environment["KERAS_UNISON_SIMULATE"] = str(devices)
    command = [sys.executable, __file__, "--child", ",".join(kinds)]
    command += ["--model", model, "--devices", str(devices), "--rounds", str(rounds)]
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


def report(models, rounds):
    """Prints the table."""
    python = platform.python_version()
    print(f"Keras {version('keras')}, JAX {version('jax')}, Python {python}")
    print(f"{processor()}, {os.cpu_count()} cores, {rounds} rounds of {STEPS} steps\n")
    print("| comparison | model | ms a step | ratio (quartiles) | noise | peak GiB |")
    print("|---|---|---|---|---|---|")
    for title, (devices, kinds) in COMPARISONS.items():
        for model in models:
            found = run(kinds, model, devices, rounds)
            reference, again, other = found["times"]
            ratio, low, high = ratios(reference, other)
            noise, noise_low, noise_high = ratios(reference, again)
            one, many = statistics.median(reference), statistics.median(other)
            peaks = [run([k], model, devices, 1)["peak_gib"] for k in kinds[1:]]
            print(
                f"| {title} | {model} | {1000 * one:.0f} / {1000 * many:.0f} "
                f"| **{ratio:.2f}** ({low:.2f} to {high:.2f}) "
                f"| {noise:.2f} ({noise_low:.2f} to {noise_high:.2f}) "
                f"| {peaks[0]:.2f} / {peaks[1]:.2f} |",
                flush=True,
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
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=11, help="pairs, at least 9")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
    else:
        report(arguments.models, arguments.rounds)


if __name__ == "__main__":
    main()

"""The article's CNN on real images, on all devices.

    python examples/cifar10_cnn.py            # 10,000 images, a few epochs
    python examples/cifar10_cnn.py --full     # the article's run: all images, 10 epochs

Where there is no accelerator, two devices are simulated on the CPU. Without a
network, scikit-learn's handwritten digits stand in for CIFAR-10.
"""

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import keras_unison as ku

console = Console(highlight=False)

NETWORK_SECONDS = 15
CHECKED_STEPS = 5


def main() -> int:
    """Trains, measures and compares; returns the exit code."""
    arguments = parse_arguments()
    use_all_devices(arguments.simulate)
    import keras

    devices = ku.devices()
    console.print(f"Keras {keras.__version__} on {keras.backend.backend()}")
    for device in devices:
        simulated = " (simulated)" if device.simulated else ""
        console.print(f"  {device.name}: {device.description}{simulated}")

    data = load_images(full=arguments.full)
    batch_size = 128 * len(devices)
    steps_per_epoch = -(-len(data.x_train) // batch_size)
    epochs = arguments.epochs or -(-data.steps // steps_per_epoch)
    if arguments.full:
        epochs = 10

    keras.utils.set_random_seed(0)
    model = ku.DataParallel(create_model(data.shape), devices=len(devices))
    compile_model(model)
    clock = EpochClock()
    history = model.fit(
        data.x_train,
        data.y_train,
        epochs=epochs,
        batch_size=batch_size,
        validation_data=(data.x_test, data.y_test),
        callbacks=[clock.callback()],
        verbose=2 if not sys.stdout.isatty() else 1,
    )
    report_speed(clock, len(data.x_train), len(devices))
    equal = report_check(data, batch_size, len(devices))
    reached = history.history["val_accuracy"][-1]
    console.print(f"Validation accuracy: {reached:.3f} on {data.name}")
    return 0 if equal else 1


def parse_arguments() -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all images, 10 epochs")
    parser.add_argument("--epochs", type=int, help="number of epochs")
    parser.add_argument(
        "--simulate", type=int, metavar="N", help="N simulated devices on the CPU"
    )
    return parser.parse_args()


def use_all_devices(simulated: int | None) -> None:
    """Simulates devices where asked for, or where there is no accelerator.

    Another process looks: a backend that has started cannot change its devices.
    """
    if simulated is None:
        look = "import keras_unison as ku; print(*{d.kind for d in ku.devices()})"
        found = subprocess.run(
            [sys.executable, "-c", look], capture_output=True, text=True, check=True
        )
        if found.stdout.split() != ["cpu"]:
            return
        console.print("No accelerator found: simulating 2 devices on the CPU.")
        simulated = 2
    ku.simulate(simulated)


# --- the article's model ----------------------------------------------------


def create_model(shape):
    """The convolutional network of the article."""
    from keras.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D
    from keras.models import Model

    inputs = Input(shape=shape)
    x = Conv2D(32, (3, 3), activation="relu")(inputs)
    x = MaxPooling2D((2, 2))(x)
    x = Conv2D(64, (3, 3), activation="relu")(x)
    x = MaxPooling2D((2, 2))(x)
    x = Flatten()(x)
    x = Dense(64, activation="relu")(x)
    outputs = Dense(10, activation="softmax")(x)
    return Model(inputs=inputs, outputs=outputs)


def compile_model(model, optimizer="adam"):
    """The article's loss and metric."""
    model.compile(
        optimizer=optimizer,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


# --- data -------------------------------------------------------------------


class Images:
    """Images scaled to 0..1 and their labels."""

    def __init__(self, name, train, test, steps):
        self.name = name
        self.x_train, self.y_train = train
        self.x_test, self.y_test = test
        self.steps = steps

    @property
    def shape(self):
        return self.x_train.shape[1:]


def load_images(*, full):
    """CIFAR-10 where it can be had, else handwritten digits."""
    cifar = try_cifar10()
    if cifar is None:
        console.print(
            "CIFAR-10 cannot be downloaded here: training on scikit-learn's 1,797 "
            "handwritten digits, scaled to 32x32x3."
        )
        return digits()
    (x_train, y_train), (x_test, y_test) = cifar
    train, test = (50_000, 10_000) if full else (10_000, 2_000)
    return Images(
        "CIFAR-10",
        (x_train[:train].astype("float32") / 255, y_train[:train]),
        (x_test[:test].astype("float32") / 255, y_test[:test]),
        steps=280,
    )


def try_cifar10():
    """CIFAR-10, or None: one attempt, given up after 15 seconds of silence."""
    import keras

    result = []

    def load():
        try:
            result.append(keras.datasets.cifar10.load_data())
        except Exception as error:  # noqa: BLE001 - any failure means no data
            result.append(error)

    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_SECONDS)
    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    loader.join(NETWORK_SECONDS)
    size = downloaded_bytes()
    while loader.is_alive() and size:
        # Something arrives: wait for as long as it goes on.
        loader.join(NETWORK_SECONDS)
        size, before = downloaded_bytes(), size
        if size == before:
            break
    socket.setdefaulttimeout(previous)
    if loader.is_alive() or isinstance(result[0], Exception):
        return None
    return result[0]


def downloaded_bytes():
    """Bytes of CIFAR-10 in Keras's cache so far."""
    home = os.environ.get("KERAS_HOME") or Path("~", ".keras").expanduser()
    cache = Path(home) / "datasets"
    return sum(f.stat().st_size for f in cache.rglob("cifar-10*") if f.is_file())


def digits():
    """Scikit-learn's 8x8 digits as 32x32 pictures in three channels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = np.kron(found.images / 16.0, np.ones((4, 4)))
    x = np.repeat(x[..., None], 3, axis=-1).astype("float32")
    # The last ones are by other writers: mix them, as CIFAR-10 is mixed.
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], found.target[order]
    return Images(
        "handwritten digits", (x[:1_437], y[:1_437]), (x[1_437:], y[1_437:]), steps=120
    )


# --- what it prints at the end ----------------------------------------------


class EpochClock:
    """Seconds of each epoch's training steps, validation left out."""

    def __init__(self):
        self.seconds = []

    def callback(self):
        """A Keras callback that feeds this clock."""
        import keras

        def begin(epoch, logs=None):
            self.started = time.perf_counter()
            self.last = self.started

        def end_of_batch(batch, logs=None):
            self.last = time.perf_counter()

        def end(epoch, logs=None):
            self.seconds.append(self.last - self.started)

        return keras.callbacks.LambdaCallback(
            on_epoch_begin=begin, on_train_batch_end=end_of_batch, on_epoch_end=end
        )


def report_speed(clock, images, devices):
    """Prints samples per second, without the first epoch where there are more."""
    seconds = clock.seconds[1:] or clock.seconds
    total = images * len(seconds) / sum(seconds)
    note = "" if clock.seconds[1:] else ", compilation included"
    console.print(
        f"Samples per second: {total:,.0f} in all, {total / devices:,.0f} per "
        f"replica ({devices} replicas{note})"
    )


def report_check(data, batch_size, devices):
    """Trains the same first steps on one device and on all; prints differences.

    The rounding floor is the difference between two runs on one device of which
    one has the rows of each batch in reverse, so that it sums in another order.
    """
    import keras

    rows = min(CHECKED_STEPS * batch_size, len(data.x_train))
    x, y = data.x_train[:rows], data.y_train[:rows]
    reverse = np.concatenate(
        [
            np.arange(start, min(start + batch_size, rows))[::-1]
            for start in range(0, rows, batch_size)
        ]
    )
    keras.utils.set_random_seed(1)
    first = create_model(data.shape)
    weights = first.get_weights()

    def run(order, count):
        model = create_model(data.shape)
        model.set_weights(weights)
        compile_model(ku.DataParallel(model, devices=count), optimizer="sgd")
        history = model.fit(
            x[order], y[order], batch_size=batch_size, shuffle=False, verbose=0
        )
        return model.get_weights(), history.history

    plain = run(np.arange(rows), 1)
    floor = differences(plain, run(reverse, 1))
    found = differences(plain, run(np.arange(rows), devices))
    steps = -(-rows // batch_size)
    table = Table(title=f"{devices} devices against one, first {steps} steps")
    for column in ("largest difference of", "found", "rounding floor"):
        table.add_column(column)
    for name in found:
        table.add_row(name, f"{found[name]:.1e}", f"{floor[name]:.1e}")
    console.print(table)
    equal = all(found[name] <= max(1e-5, 4 * floor[name]) for name in found)
    console.print("Equal to one device." if equal else "NOT equal to one device.")
    return equal


def differences(one, other):
    """Largest differences of weights and of history between two runs."""
    weights = max(np.abs(a - b).max() for a, b in zip(one[0], other[0], strict=True))
    history = max(
        np.abs(np.subtract(one[1][key], other[1][key])).max() for key in one[1]
    )
    return {"weights": float(weights), "history": float(history)}


if __name__ == "__main__":
    sys.exit(main())

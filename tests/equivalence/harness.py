"""N devices against one: the same run, compared value by value.

Keras itself is the oracle: each check trains a plain Keras model and the same
model made parallel, from the same weights, seeds and data, and compares all
that a user can see. It also proves from the programs that ran that the work was
divided, since a wrapper that does nothing would pass any comparison.
"""

import importlib
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

import keras_unison as ku
from tests.equivalence.programs import Seen

Model = Any
Values = dict[str, np.ndarray]

TOLERANCE = 1e-5
# A difference may be this many times what summing in another order makes.
FLOORS = 4

BACKEND = keras.backend.backend()
ON_JAX = BACKEND == "jax"
ON_TENSORFLOW = BACKEND == "tensorflow"

# `programs()` collects the steps that run within it, in the backend's own way.
programs = importlib.import_module(f"tests.equivalence.programs.{BACKEND}").programs


def assert_divided(
    seen: Seen,
    *,
    devices: int,
    rows: Iterable[int],
    per_row: int = 1,
    coupled: bool = False,
    all_steps: bool = False,
) -> None:
    """Requires that batches of these rows were computed in parts.

    Args:
        seen: What was compiled.
        devices: Number of devices.
        rows: Rows of batches that must have been divided.
        per_row: Positions per row where a layer flattens rows and time.
        coupled: The model itself multiplies all rows with each other, so that
            some operands hold all of them.
        all_steps: Each kind of step that was compiled must have divided them,
            not only one.
    """
    divided = [p for p in seen.programs if p.partitions == devices]
    assert divided, f"no step ran on {devices} devices: {seen.programs}"
    kinds = {p.name for p in divided}
    for count, kind in itertools.product(rows, kinds if all_steps else [""]):
        part = math.ceil(count / devices)
        wanted = {part, part * per_row}
        whole = set() if coupled else {count, count * per_row}
        holding = [
            p
            for p in divided
            if p.name.startswith(kind) and p.lengths & wanted and not p.lengths & whole
        ]
        assert holding, (
            f"no step {kind} computed {part} of {count} rows on each of {devices} "
            f"devices: {divided}"
        )


def check(
    build: Callable[[], Model],
    use: Callable[[Model], Any],
    *,
    devices: int,
    rows: Iterable[int],
    per_row: int = 1,
    coupled: bool = False,
    all_steps: bool = False,
    tolerance: float = TOLERANCE,
    floor: Callable[[Model], Any] | None = None,
    wrap: Callable[[Model, int], Model] | None = None,
) -> Seen:
    """Requires that `devices` devices give what one plain Keras device gives.

    Args:
        build: Makes the model, compiled where `use` needs it.
        use: Trains, evaluates or predicts, and returns what the user would see
            (any tree of numbers and arrays; a History counts as its values).
        devices: Number of devices.
        rows: Rows of batches that must have been divided. Choose numbers that
            are no other length of the model.
        per_row: See `assert_divided`.
        coupled: See `assert_divided`.
        all_steps: See `assert_divided`.
        tolerance: Largest difference allowed, absolute and relative.
        floor: `use` with its sums in another order: the difference it makes on
            one plain device, times `FLOORS`, is allowed where that is larger.
        wrap: How the model is made parallel; `DataParallel` by default.

    Returns:
        The steps that the parallel run compiled.
    """
    make_parallel = wrap or (lambda model, count: ku.DataParallel(model, count))
    plain = run(build, use)
    with programs() as seen:
        parallel = run(build, use, lambda model: make_parallel(model, devices))
    allowed = tolerance
    if floor is not None:
        allowed = max(tolerance, FLOORS * largest_difference(plain, run(build, floor)))
    compare(plain, parallel, allowed)
    assert_divided(
        seen,
        devices=devices,
        rows=rows,
        per_row=per_row,
        coupled=coupled,
        all_steps=all_steps,
    )
    return seen


def run(
    build: Callable[[], Model],
    use: Callable[[Model], Any],
    wrap: Callable[[Model], Model] = lambda model: model,
) -> Values:
    """One run from fixed seeds; returns everything that can be compared."""
    keras.utils.set_random_seed(7)
    model = wrap(build())
    keras.utils.set_random_seed(8)
    returned = use(model)
    return values_of(model, returned)


def values_of(model: Model, returned: Any) -> Values:
    """What was returned, and all variables of the model and its optimizer."""
    values = flat(returned, "returned")
    for number, variable in enumerate(model.variables):
        values[f"variable {number} {variable.name}"] = as_array(variable)
    optimizer = getattr(model, "optimizer", None)
    for number, variable in enumerate(getattr(optimizer, "variables", [])):
        # Not its name: that holds the model's, which Keras counts up.
        values[f"optimizer {number}"] = as_array(variable)
    return values


def flat(tree: Any, name: str) -> Values:
    """The numbers in a tree, by their place in it."""
    if isinstance(tree, keras.callbacks.History):
        tree = tree.history
    if isinstance(tree, dict):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        items = [(str(index), value) for index, value in enumerate(tree)]
    elif tree is None:
        return {}
    else:
        return {name: as_array(tree)}
    found: Values = {}
    for key, value in items:
        found |= flat(value, f"{name}/{key}")
    return found


def as_array(value: Any) -> np.ndarray:
    """A number, array or variable in double precision."""
    held = getattr(value, "value", value)
    return np.asarray(value if callable(held) else held, dtype="float64")


def compare(one: Values, many: Values, tolerance: float) -> None:
    """Requires the same names, shapes and numbers."""
    assert list(one) == list(many)
    wrong = []
    for name, expected in one.items():
        found = many[name]
        assert expected.shape == found.shape, name
        if not np.allclose(found, expected, rtol=tolerance, atol=tolerance):
            wrong.append(f"{name}: by {np.abs(found - expected).max():.3g}")
    assert not wrong, "\n".join(wrong)


def largest_difference(one: Values, other: Values) -> float:
    """The largest absolute difference between two runs."""
    return max(
        (
            float(np.abs(one[name] - other[name]).max())
            for name in one
            if one[name].size
        ),
        default=0.0,
    )


# --- models and data that many tests share ----------------------------------


def data(rows: int = 99, features: int = 8, classes: int = 5) -> tuple[Any, Any]:
    """Random features and labels; fewer rows are the first of more."""
    x = np.random.default_rng(3).normal(size=(rows, features)).astype("float32")
    y = np.random.default_rng(4).integers(0, classes, size=rows)
    return x, y


def dense_model(**compiled: Any) -> Model:
    """Two dense layers, compiled with SGD and cross-entropy unless told otherwise."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(13, activation="tanh", name="d1"),
            keras.layers.Dense(5, activation="softmax", name="d2"),
        ]
    )
    settings: dict[str, Any] = {
        "optimizer": keras.optimizers.SGD(0.1),
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }
    model.compile(**{**settings, **compiled})
    return model


def reversed_batches(array: Any, batch_size: int) -> Any:
    """The array with the rows of each batch in reverse: sums in another order."""
    return np.concatenate(
        [
            array[start : start + batch_size][::-1]
            for start in range(0, len(array), batch_size)
        ]
    )

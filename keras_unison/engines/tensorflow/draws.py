"""Random draws inside a replica: its rows of what one device draws.

keras.random draws a value for each place of an array. Each replica draws for the
whole batch and keeps its own rows: numbers of TensorFlow's stateless generators
depend on the seed and the place alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from keras_unison import _keras
from keras_unison.engines.tensorflow.batch import gather_values, own_part, pad
from keras_unison.engines.tensorflow.places import look
from keras_unison.engines.tensorflow.replicas import Replica, current_replica

Draw = Callable[..., Any]
# Far enough apart that no replica meets the seeds of another.
_SEED_STRIDE = 7_368_787

_shift: ContextVar[Any] = ContextVar("keras_unison_draws", default=None)


def hook_draws() -> None:
    """Lets replicas draw by the functions of this module."""
    shaped = (
        "normal",
        "uniform",
        "truncated_normal",
        "randint",
        "gamma",
        "beta",
        "binomial",
    )
    _keras.hook_random(
        dict.fromkeys(shaped, _by_shape)
        | {
            "dropout": _dropout,
            "categorical": _categorical,
            "shuffle": _shuffle,
        },
        _own_seed,
    )


def _exact() -> Replica | None:
    """The replica, where it has to make the draws of one device."""
    replica = current_replica()
    return replica if replica is not None and replica.call.exact_draws else None


@contextmanager
def other_draws(shift: Any) -> Iterator[None]:
    """Within this context all draws are others, by a number, which 0 leaves."""
    token = _shift.set(shift)
    try:
        yield
    finally:
        _shift.reset(token)


def _own_seed(original: Draw, seed: Any) -> Any:
    drawn = original(seed)
    shift = _shift.get()
    if shift is not None:
        drawn += tf.cast(tf.stack([0, shift * _SEED_STRIDE]), drawn.dtype)
    replica = current_replica()
    if replica is None or replica.call.exact_draws or replica.index == 0:
        return drawn
    return drawn + tf.constant([_SEED_STRIDE * replica.index, 0], drawn.dtype)


def _by_shape(original: Draw, shape: Any, *args: Any, **kwargs: Any) -> Any:
    replica = _exact()
    rows = _Rows.of(replica, _first(shape)) if replica is not None else None
    if rows is None:
        return original(shape, *args, **kwargs)
    # Bounds may be tensors with rows of their own.
    args = tuple(rows.widen(value, shape) for value in args)
    kwargs = {
        name: value if name in ("dtype", "seed") else rows.widen(value, shape)
        for name, value in kwargs.items()
    }
    return rows.own(original(rows.whole(shape), *args, **kwargs))


def _dropout(
    original: Draw, inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None
) -> Any:
    replica = _exact()
    if replica is None or rate in (0.0, 1.0):
        return original(inputs, rate, noise_shape=noise_shape, seed=seed)
    length = tf.shape(inputs)[0] if noise_shape is None else noise_shape[0]
    if length is None:
        length = tf.shape(inputs)[0]
    by_user = noise_shape is not None and isinstance(noise_shape[0], int)
    rows = _Rows.of(replica, None if by_user else length)
    if rows is None:
        return original(inputs, rate, noise_shape=noise_shape, seed=seed)
    shape = tf.shape(inputs) if noise_shape is None else noise_shape
    shape = [
        tf.shape(inputs)[i] if n is None else n for i, n in enumerate(_list(shape))
    ]
    noise = original(tf.ones(rows.whole(shape), inputs.dtype), rate, seed=seed)
    factor = rows.own(noise)
    kept = tf.where(factor != 0, inputs * factor, tf.zeros([], inputs.dtype))
    kept.set_shape(inputs.shape)
    return kept


def _categorical(original: Draw, logits: Any, *args: Any, **kwargs: Any) -> Any:
    replica = _exact()
    rows = _Rows.of(replica, tf.shape(logits)[0]) if replica is not None else None
    if rows is None:
        return original(logits, *args, **kwargs)
    return rows.own(original(rows.padded(logits), *args, **kwargs))


def _shuffle(original: Draw, x: Any, axis: int = 0, seed: Any = None) -> Any:
    replica = _exact()
    rows = None
    if replica is not None and axis in (0, -x.shape.rank):
        rows = _Rows.of(replica, tf.shape(x)[0])
    if replica is None or rows is None or not isinstance(rows.times, int):
        return original(x, axis, seed)
    return rows.own(original(gather_values(replica, x, rows.times), axis, seed))


class _Rows:
    """A first axis of a draw that is rows, or rows times something."""

    def __init__(self, replica: Replica, times: Any) -> None:
        self.replica = replica
        self.times = times

    @staticmethod
    def of(replica: Replica, length: Any) -> "_Rows | None":
        """The rows that an axis of this length holds; None if it holds none.

        A draw without axes has no length, and is one for the whole batch.
        """
        key = replica.path[-1] if replica.path else None
        number = replica.draws.get(key, 0)
        replica.draws[key] = number + 1
        place = (*(key or ()), "draw", number)
        look(replica, place, 0 if length is None else length)
        if length is None or replica.call.looks:
            return None
        times = replica.call.plan.multiples.get(place)
        if times is None:
            times = _times(length, replica)
        # A number of times that is known only in the step is not 0 here.
        return None if isinstance(times, int) and times == 0 else _Rows(replica, times)

    def whole(self, shape: Any) -> list[Any]:
        """The shape with the rows of the whole batch."""
        return [self.replica.call.rows * self.times, *_list(shape)[1:]]

    def own(self, whole: Any) -> Any:
        """The replica's rows."""
        return own_part(self.replica, whole, self.times)

    def padded(self, part: Any) -> Any:
        """The parameters of a distribution for the whole batch.

        Those of other replicas' rows are 1, which is allowed for all of them.
        """
        return pad(self.replica, part, self.times, value=1)

    def widen(self, value: Any, shape: Any) -> Any:
        """A parameter for the whole batch, where it has a value for each row."""
        if not isinstance(value, tf.Tensor) or value.shape.rank != len(_list(shape)):
            return value
        if value.shape.rank == 0 or value.shape[0] == 1:
            return value
        return self.padded(value)


def _times(length: Any, replica: Replica) -> Any:
    """How many times the own rows, where the call was not looked at before."""
    own = replica.call.own_rows(replica.index)
    if not isinstance(length, int):
        # Without rows of its own a replica draws nothing.
        return length // tf.maximum(own, 1)
    fixed = replica.call.own_fixed(replica.index)
    if not fixed:
        return 0
    return length // fixed if length % fixed == 0 else 0


def _first(shape: Any) -> Any:
    parts = _list(shape)
    return parts[0] if parts else None


def _list(shape: Any) -> list[Any]:
    """A shape as a list: it may be a tensor."""
    if isinstance(shape, tf.Tensor):
        unstacked: list[Any] = tf.unstack(shape)
        return unstacked
    return list(shape)

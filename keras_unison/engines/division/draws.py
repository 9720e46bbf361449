"""Random draws inside a replica: its rows of what one device draws.

keras.random draws a value for each place of an array. Each replica draws for the
whole batch and keeps its own rows: what is drawn depends on the seed and the shape.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keras import ops

from keras_unison import _keras
from keras_unison.engines.division.places import look
from keras_unison.engines.division.replica import Replica, current_replica, within

Draw = Callable[..., Any]
# Far enough apart that no replica, and no other draw, meets the seeds of another.
_SEED_STRIDE = 7_368_787
_SHIFT_STRIDE = 32_452_843

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
        drawn = drawn + ops.cast(shift * _SHIFT_STRIDE, drawn.dtype)
    replica = current_replica()
    if replica is None or replica.call.exact_draws or replica.index == 0:
        return drawn
    own = ops.cast(ops.stack([_SEED_STRIDE * replica.index, 0]), drawn.dtype)
    return drawn + own


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
    return rows.own(rows.drawn(original, rows.whole(shape), *args, **kwargs))


def _dropout(
    original: Draw, inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None
) -> Any:
    replica = _exact()
    if replica is None or rate in (0.0, 1.0):
        return original(inputs, rate, noise_shape=noise_shape, seed=seed)
    own = replica.call.shape(inputs)
    length = own[0] if noise_shape is None else noise_shape[0]
    by_user = noise_shape is not None and _is_chosen(replica, noise_shape[0])
    rows = _Rows.of(replica, None if by_user else own[0] if length is None else length)
    if rows is None:
        return original(inputs, rate, noise_shape=noise_shape, seed=seed)
    noise_shape = own if noise_shape is None else list(noise_shape)
    shape = [own[i] if n is None else n for i, n in enumerate(noise_shape)]
    ones = ops.ones(rows.whole(shape), inputs.dtype)
    factor = rows.own(rows.drawn(original, ones, rate, seed=seed))
    return ops.where(factor != 0, inputs * factor, ops.zeros([], inputs.dtype))


def _is_chosen(replica: Replica, length: Any) -> bool:
    """Whether the user gave this length of the noise, which is none of rows then."""
    layer = replica.path[-1][0] if replica.path else None
    given = getattr(layer, "noise_shape", None)
    if given is not None and given[0] is not None:
        return True
    return length is not None and not replica.call.may_have_rows(length)


def _categorical(original: Draw, logits: Any, *args: Any, **kwargs: Any) -> Any:
    replica = _exact()
    rows = (
        _Rows.of(replica, replica.call.length(logits)) if replica is not None else None
    )
    if rows is None:
        return original(logits, *args, **kwargs)
    return rows.own(rows.drawn(original, rows.widened(logits), *args, **kwargs))


def _shuffle(original: Draw, x: Any, axis: int = 0, seed: Any = None) -> Any:
    replica = _exact()
    rows = None
    if replica is not None and axis in (0, -len(x.shape)):
        rows = _Rows.of(replica, replica.call.length(x))
    if replica is None or rows is None or not isinstance(rows.times, int):
        return original(x, axis, seed)
    whole = replica.call.gather_values(replica, x, rows.times)
    return rows.own(rows.drawn(original, whole, axis, seed))


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
        operation, call_number = replica.path[-1] if replica.path else (None, 0)
        key = (id(operation), call_number)
        number = replica.draws.get(key, 0)
        replica.draws[key] = number + 1
        place = (*key, "draw", number)
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

    def drawn(self, original: Draw, *args: Any, **kwargs: Any) -> Any:
        """The draws for the whole batch: one function of them may call another."""
        with within(None):
            return original(*args, **kwargs)

    def own(self, whole: Any) -> Any:
        """The replica's rows."""
        return self.replica.call.own_part(self.replica, whole, self.times)

    def widened(self, part: Any) -> Any:
        """The parameters of a distribution for the whole batch."""
        return self.replica.call.widened(self.replica, part, self.times)

    def widen(self, value: Any, shape: Any) -> Any:
        """A parameter for the whole batch, where it has a value for each row."""
        if not self.replica.call.has_axes(value):
            return value
        if len(value.shape) != len(_list(shape)) or value.shape[0] == 1:
            return value
        return self.widened(value)


def _times(length: Any, replica: Replica) -> Any:
    """How many times the own rows, where the call was not looked at before."""
    own = replica.call.own_rows(replica.index)
    if not isinstance(length, int):
        # Without rows of its own a replica draws nothing.
        return length // ops.maximum(own, 1)
    fixed = replica.call.own_fixed(replica.index)
    if not fixed:
        return 0
    return length // fixed if length % fixed == 0 else 0


def _first(shape: Any) -> Any:
    parts = _list(shape)
    return parts[0] if parts else None


def _list(shape: Any) -> list[Any]:
    """A shape as a list: it may be a tensor."""
    if hasattr(shape, "dtype"):
        return [shape[number] for number in range(shape.shape[0])]
    return list(shape)

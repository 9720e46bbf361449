"""The check before the first step: a divided call against a whole one.

Which operations mix rows, keep state from data or add losses that are no mean over
rows cannot be told from their classes. So a call that is not known to be row by row
is made twice on a few random rows, in the mode of the step and without changing
anything: in parts over the devices, and whole on one. Where they differ, the
operations are looked for that make them equal when they run on all rows.
"""

from typing import Any

from keras_unison.engines.division.plan import WHOLE, Plan
from keras_unison.engines.division.samples import how_many, moved_weights
from keras_unison.engines.division.trial import Runs, Trial, Undividable
from keras_unison.engines.records import Once
from keras_unison.engines.row_layers import (
    counts_over_rows,
    is_known,
    keeps_rows_between_batches,
    operations_in,
)
from keras_unison.engines.search import smallest

# How often a call that draws is tried. It may mix rows in some draws only.
_DRAWS_OF_ROWS = 8
_DRAWS_OF_BATCHES = 32


def find_plan(
    layer: Any, arguments: Any, runs: Runs, *, rows: int | None, once: Once
) -> Plan:
    """How a layer call is divided with the results of one device.

    Args:
        layer: The layer.
        arguments: Its arguments for a batch, and those by name.
        runs: Makes the call.
        rows: Rows of the batch, where they are known.
        once: What a warning was given for.

    Returns:
        The plan. Where nothing helps it is the whole call on one device, for which
        a warning is given.
    """
    operations = operations_in(layer)
    counting = [o for o in operations if counts_over_rows(o)]
    sure = (*filter(keeps_rows_between_batches, operations), *counting)
    # On all rows there is nothing to doubt in them: they give a row for each.
    settled = {
        id(inner) for operation in counting for inner in operations_in(operation)
    }
    doubted = [o for o in operations if not is_known(o) and id(o) not in settled]
    if not doubted:
        return Plan(gathered=sure)
    try:
        trial = _trial(layer, arguments, runs, rows)
        return _locate(trial, sure, doubted)
    except Undividable as error:
        warn_whole(layer, str(error), runs.size, once)
        return WHOLE


def warn_whole(layer: Any, reason: str, devices: int, once: Once) -> None:
    """Says once that no device computes its part of a call only, and why."""
    once.warn(
        f"{id(layer)} {reason}",
        f"The layer {layer.name!r} ({type(layer).__name__}) is not divided over "
        f"{devices} devices, because {reason}. The first device "
        "computes it for the whole batch. Results are right.",
    )


def _trial(layer: Any, arguments: Any, runs: Runs, batch_rows: int | None) -> Trial:
    """The whole call on a few rows, with values that are all numbers if possible."""
    rows = _fixed_rows(layer) or how_many(layer, arguments, runs.size)
    failure: Exception | None = None
    # A layer may take no other number of rows than the batch has.
    for count in [rows, batch_rows]:
        if count is None:
            continue
        try:
            return _first_finite(layer, runs, count)
        except Undividable:
            raise
        except Exception as error:  # noqa: BLE001 - a user's layer raises anything
            failure = failure or error
    raise Undividable(
        f"it cannot be tried on {rows} random rows ({_first_line(failure)})"
    )


def _first_finite(layer: Any, runs: Runs, rows: int) -> Trial:
    """The first way to choose values in which all results are numbers, or the last."""
    for positive, moved in ((False, True), (True, True), (True, False)):
        trial = Trial(
            layer=layer,
            arguments=runs.random_rows(rows, positive),
            rows=rows,
            runs=runs,
            weights=moved_weights(layer.variables) if moved else [],
        )
        if trial.run_whole().is_finite():
            break
    return trial


def _fixed_rows(layer: Any) -> int | None:
    """The one number of rows that a functional model takes, if it is made so."""
    inputs = getattr(layer, "inputs", None) or ()
    return next((i.shape[0] for i in inputs if i.shape and i.shape[0]), None)


def _locate(trial: Trial, sure: tuple[Any, ...], doubted: list[Any]) -> Plan:
    looked = _look(trial, sure)
    draws = [times for place, times in trial.multiples.items() if "draw" in place]
    if draws:
        # One for the whole batch may choose what the layer does with it.
        trial.draw_again(_DRAWS_OF_ROWS if all(draws) else _DRAWS_OF_BATCHES)
    if not draws and trial.agrees(looked):
        return trial.plan(sure)
    if not trial.differs(sure):
        return trial.plan(sure)
    gathered = _needed(trial, sure, doubted)
    # The last one tried may have been another: this one tells sums from means.
    trial.differs(gathered)
    return trial.plan(gathered)


def _needed(trial: Trial, sure: tuple[Any, ...], doubted: list[Any]) -> tuple[Any, ...]:
    """The operations that have to run on all rows."""
    every = [o for o in doubted if o is not trial.layer]
    inner = [
        o for o in every if not any(a is b for a in operations_in(o)[1:] for b in every)
    ]
    found = smallest(inner, every, lambda some: trial.differs((*sure, *some)))
    if found is None:
        raise Undividable("its rows depend on each other in a way that no layer holds")
    return (*sure, *found)


def _look(trial: Trial, sure: tuple[Any, ...]) -> Any:
    """Calls it in parts for the first time, which it may not be able to stand."""
    failure: Exception | None = None
    for fixed_rows in (False, True):
        trial.fixed_rows = fixed_rows
        try:
            return trial.look(sure)
        except Undividable:
            raise
        except Exception as error:  # noqa: BLE001 - a user's layer raises anything
            failure = error
    raise Undividable(f"it fails on a part of a batch ({_first_line(failure)})")


def _first_line(error: Exception | None) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"

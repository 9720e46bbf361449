"""Operations that run on all rows, in every replica."""

from collections.abc import Callable
from typing import Any

from keras import tree

from keras_unison.engines.division.places import look
from keras_unison.engines.division.replica import Replica, within
from keras_unison.engines.layer_calls import handling


def call_within(
    replica: Replica,
    original: Callable[..., Any],
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A call inside a replica: on its own rows, or on all of them."""
    number = replica.calls.get(id(operation), 0)
    replica.calls[id(operation)] = number + 1
    place = (id(operation), number)
    if replica.call.plan.gathers(operation):
        return _on_all_rows(replica, place, original, operation, (args, kwargs))
    _look(replica, (*place, "in"), (args, kwargs))
    replica.path.append((operation, number))
    try:
        outputs = original(operation, *args, **kwargs)
    finally:
        replica.path.pop()
    _look(replica, (*place, "out"), outputs)
    return outputs


def _look(replica: Replica, place: Any, tensors: Any) -> None:
    if not replica.call.looks:
        return
    for number, leaf in enumerate(tree.flatten(tensors)):
        if replica.call.has_axes(leaf):
            look(replica, (*place, number), replica.call.length(leaf))


def _on_all_rows(
    replica: Replica,
    place: Any,
    original: Callable[..., Any],
    operation: Any,
    arguments: Any,
) -> Any:
    call = replica.call
    args, kwargs = _each(
        call,
        arguments,
        lambda leaf, times: call.gather(replica, leaf, times),
        lambda number: _multiple(replica, (*place, "in", number)),
    )
    scope = replica.scope
    before = len(scope.losses)
    with within(None), handling(None):
        outputs = original(operation, *args, **kwargs)
    scope.whole_losses.update(map(id, scope.losses[before:]))
    return _each(
        call,
        outputs,
        lambda leaf, times: call.own_part(replica, leaf, times),
        lambda number: _multiple(replica, (*place, "out", number)),
    )


def _each(call: Any, tensors: Any, move: Callable[[Any, int], Any], times: Any) -> Any:
    leaves = tree.flatten(tensors)
    moved = []
    for number, leaf in enumerate(leaves):
        count = times(number) if call.has_axes(leaf) else 0
        moved.append(move(leaf, count) if count else leaf)
    return tree.pack_sequence_as(tensors, moved)


def _multiple(replica: Replica, place: Any) -> int:
    # What was never looked at is known to have the rows as its first axis.
    found: int = replica.call.plan.multiples.get(place, 1)
    return found

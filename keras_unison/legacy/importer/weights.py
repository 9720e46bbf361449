"""Matches the weights of a Keras 2 file with the variables of a Keras 3 model.

Keras 2 wrote the weights of a nested model, and so of every model that
`multi_gpu_model` wrapped, as one list: all trainable weights first, then all
others. Where a layer was frozen when the file was written this order differs
from that of the model, so names decide first and the order only after them,
and an order that would tear a layer apart is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from keras_unison.errors import LegacyFileError
from keras_unison.legacy.importer.file import Keras2File, SavedWeight
from keras_unison.legacy.importer.names import (
    families_of,
    family_of,
    renumber,
    split_number,
)

Pairs = list[tuple[Any, SavedWeight]]
Children = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class _Leaf:
    """A layer that holds weights itself, as against a model that holds layers."""

    name: str
    variables: tuple[Any, ...]


def load_weights(model: Any, file: Keras2File, children: Children) -> None:
    """Assign the weights of a file to the variables of a model.

    Args:
        model: A built Keras 3 model.
        file: The file, already read.
        children: Gives the layers of a (nested) model in the order of the file.

    Raises:
        LegacyFileError: if they do not fit; the model is then unchanged.
    """
    if not model.weights:
        raise LegacyFileError(
            f"Model {model.name!r} has no variables yet, so nothing can be loaded. "
            "Build it first: `model.build(input_shape)`."
        )
    if not file.layers:
        raise LegacyFileError(
            f"{file.path!r} holds no weights at all. Give the file that was saved "
            "after the model had been built."
        )
    for variable, saved in _match(model, file, children):
        variable.assign(saved.value)


def keras2_order(layer: Any, children: Children) -> tuple[list[Any], list[Any]]:
    """List the trainable and the other variables as Keras 2 listed them.

    Args:
        layer: A layer or a model.
        children: Gives the layers of a (nested) model in the order of Keras 2.

    Returns:
        The trainable variables and the others.
    """
    inner = _inner_model(layer)
    if inner is None:
        trainable = [v for v in layer.weights if layer.trainable and v.trainable]
    else:
        layer = inner
        parts = [keras2_order(child, children) for child in children(inner)]
        trainable = [v for part, _ in parts for v in part]
        others = [v for _, part in parts for v in part]
        if layer.trainable:
            return trainable, others
        return [], trainable + others
    known = {id(v) for v in trainable}
    return trainable, [v for v in layer.weights if id(v) not in known]


def _match(model: Any, file: Keras2File, children: Children) -> Pairs:
    leaves = _leaves(model, children)
    families = families_of(file)
    exact = _by_name(leaves, families, lambda key: key.rpartition("/")[2])
    exact = exact or _by_name(leaves, families, lambda key: key.replace("/", "_"))
    if exact is not None:
        _check_pairs(exact, file)
        return exact
    saved = [weight for group in file.layers for weight in group.weights]
    variables = _in_file_order(model, file, children)
    numbered = _by_name(_numbered_leaves(leaves), _numbered_families(families), str)
    in_order = list(zip(variables, saved, strict=False))
    if numbered is not None and _fits(numbered):
        if len(variables) == len(saved) and _plausible(in_order, leaves, file):
            _check_same(numbered, in_order, file)
        return numbered
    _check_count(variables, saved, file)
    _check_pairs(in_order, file, advice=_advice(variables, saved, families))
    if not _plausible(in_order, leaves, file):
        raise LegacyFileError(
            f"{file.path!r} lists its weights in another order than the model, which "
            f"is unchanged. {_order_advice(families)}"
        )
    return in_order


def _leaves(layer: Any, children: Children) -> list[_Leaf]:
    inner = _inner_model(layer)
    if inner is not None:
        return [leaf for child in children(inner) for leaf in _leaves(child, children)]
    return [_Leaf(layer.name, tuple(layer.weights))] if layer.weights else []


def _inner_model(layer: Any) -> Any | None:
    if isinstance(layer, keras.layers.TimeDistributed):
        layer = layer.layer
    return layer if isinstance(layer, keras.Model) and layer.layers else None


def _in_file_order(model: Any, file: Keras2File, children: Children) -> list[Any]:
    # One group with weights is one model that holds all: the N-GPU layout.
    tops = [model] if len(file.layers) == 1 else children(model)
    orders = [keras2_order(top, children) for top in tops]
    return [v for trainable, others in orders for v in trainable + others]


def _by_name(
    leaves: list[_Leaf],
    families: dict[str, list[SavedWeight]],
    name_of: Callable[[str], str],
) -> Pairs | None:
    named = {name_of(key): weights for key, weights in families.items()}
    by_name = {leaf.name: leaf for leaf in leaves}
    if len(named) != len(families) or len(by_name) != len(leaves):
        return None
    if named.keys() != by_name.keys():
        return None
    pairs: Pairs = []
    for name, leaf in by_name.items():
        if len(leaf.variables) != len(named[name]):
            return None
        pairs += zip(leaf.variables, named[name], strict=True)
    return pairs


def _numbered_leaves(leaves: list[_Leaf]) -> list[_Leaf]:
    names = renumber([leaf.name for leaf in leaves])
    return [_Leaf(names[leaf.name], leaf.variables) for leaf in leaves]


def _numbered_families(
    families: dict[str, list[SavedWeight]],
) -> dict[str, list[SavedWeight]]:
    names = renumber(list(families))
    return {names[key]: weights for key, weights in families.items()}


def _fits(pairs: Pairs) -> bool:
    return all(tuple(v.shape) == saved.value.shape for v, saved in pairs)


def _plausible(pairs: Pairs, leaves: list[_Leaf], file: Keras2File) -> bool:
    return _whole(pairs, leaves, file) and _rising(pairs, leaves, file)


def _whole(pairs: Pairs, leaves: list[_Leaf], file: Keras2File) -> bool:
    """Whether the weights of each saved layer go to one layer of the model."""
    if not _fits(pairs):
        return False
    leaf_of = {id(v): leaf.name for leaf in leaves for v in leaf.variables}
    group_of = {id(w): group for group in file.layers for w in group.weights}
    owner: dict[str, str] = {}
    for variable, saved in pairs:
        if "/" not in saved.name:
            continue  # a weight without a name of its own tells nothing
        leaf = leaf_of[id(variable)]
        if owner.setdefault(family_of(saved, group_of[id(saved)]), leaf) != leaf:
            return False
    return True


def _check_same(numbered: Pairs, in_order: Pairs, file: Keras2File) -> None:
    by_order = {id(variable): saved for variable, saved in in_order}
    for variable, saved in numbered:
        other = by_order[id(variable)]
        if other is not saved:
            raise LegacyFileError(
                f"{file.path!r} fits the model in two ways: by the numbers in the "
                f"names, {variable.path!r} is {saved.name!r}, and by the order it is "
                f"{other.name!r}. Give the layers of the model the names that the "
                "file has, or set `layer.trainable` as it was when the file was "
                "written."
            )


def _rising(pairs: Pairs, leaves: list[_Leaf], file: Keras2File) -> bool:
    """Whether automatic numbers rise along the model, where frozen layers may hide.

    Frozen layers stand behind all others in the one group of an N-GPU file, and
    layers of equal shapes would change places unseen.
    """
    if len(file.layers) > 1:
        return True
    saved_of = {id(variable): saved for variable, saved in pairs}
    last: dict[str, int] = {}
    for leaf in leaves:
        saved = saved_of[id(leaf.variables[0])]
        base, number = split_number(family_of(saved, file.layers[0]))
        if number < last.get(base, number):
            return False
        last[base] = number
    return True


def _check_count(variables: list[Any], saved: list[SavedWeight], file: Any) -> None:
    if len(variables) == len(saved):
        return
    counts = f"The file holds {len(saved)} weights, the model has {len(variables)}. "
    _check_pairs(list(zip(variables, saved, strict=False)), file, counts)
    if len(saved) > len(variables):
        weight = saved[len(variables)]
        problem = f"{weight.name!r} of the file, of shape {weight.value.shape},"
    else:
        missing = variables[len(saved)]
        problem = f"{missing.path!r} of the model, of shape {tuple(missing.shape)},"
    raise LegacyFileError(
        f"{counts}{_does_not_fit(file)} {problem} is the first without a partner. "
        f"{_SAME}"
    )


def _check_pairs(
    pairs: Pairs, file: Keras2File, counts: str = "", advice: str = ""
) -> None:
    for variable, saved in pairs:
        if tuple(variable.shape) != saved.value.shape:
            raise LegacyFileError(
                f"{counts}{_does_not_fit(file)} weight {saved.name!r} of the file has "
                f"shape {saved.value.shape}, and {variable.path!r} of the model has "
                f"shape {tuple(variable.shape)}. {advice or _SAME}"
            )


_SAME = "Build the model with the architecture that was saved, then load again."


def _advice(
    variables: list[Any],
    saved: list[SavedWeight],
    families: dict[str, list[SavedWeight]],
) -> str:
    wanted = sorted(tuple(variable.shape) for variable in variables)
    found = sorted(weight.value.shape for weight in saved)
    return _order_advice(families) if wanted == found else _SAME


def _order_advice(families: dict[str, list[SavedWeight]]) -> str:
    return (
        "Keras 2 put the weights of frozen layers behind all others. Set "
        "`layer.trainable` as it was when the file was written, or name the layers as "
        f"the file does: {', '.join(families)}."
    )


def _does_not_fit(file: Keras2File) -> str:
    return f"{file.path!r} does not fit the model, which is unchanged:"

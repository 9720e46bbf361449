"""Reads the names that Keras 2 gave its weights: which layer, and which number."""

import re

from keras_unison.legacy.importer.file import Keras2File, LayerGroup, SavedWeight

_RNN_PART = re.compile(r"(forward_|backward_).+|(.+_)?cell(_\d+)?")
_NUMBERED = re.compile(r"(.+?)(?:_(\d+))?")


def families_of(file: Keras2File) -> dict[str, list[SavedWeight]]:
    """Collect the weights of each saved layer that is not itself a model."""
    families: dict[str, list[SavedWeight]] = {}
    for group in file.layers:
        for weight in group.weights:
            families.setdefault(family_of(weight, group), []).append(weight)
    return families


def family_of(weight: SavedWeight, group: LayerGroup) -> str:
    """Return the path of the layer that a weight belongs to."""
    parts = weight.name.split("/")[:-1]
    while len(parts) > 1 and _RNN_PART.fullmatch(parts[-1]):
        parts.pop()
    family = "/".join(parts)
    # TensorFlow numbers a name used twice; the name of the group has no such number.
    if not family or re.fullmatch(re.escape(group.name) + r"(_\d+)?", family):
        return group.name
    return family


def renumber(names: list[str]) -> dict[str, str]:
    """Count automatic names from zero: Keras 2 began at `dense_1`, Keras 3 at `dense`.

    The same code gives the same layers the same rank on both.
    """
    numbers: dict[str, list[int]] = {}
    split = {name: split_number(name) for name in names}
    for base, number in split.values():
        numbers.setdefault(base, []).append(number)
    return {
        name: f"{base}_{sorted(numbers[base]).index(number)}"
        for name, (base, number) in split.items()
    }


def split_number(name: str) -> tuple[str, int]:
    """Split `dense_2` in `dense` and 2; a name without a number has 0."""
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return name, 0
    return match[1], int(match[2] or 0)

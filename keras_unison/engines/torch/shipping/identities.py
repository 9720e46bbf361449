"""Tables keyed by `id()`, which is another in each process."""

from collections.abc import Iterable
from typing import Any

from keras_unison._keras import torch as internals


def rename(owners: Iterable[Any], identities: dict[int, int]) -> None:
    """Makes tables that know objects by their old identity know them by the new one.

    An attribute of any class may be such a table. Identities are addresses of memory,
    which no other numbers are by chance.

    Args:
        owners: The objects whose attributes are looked at.
        identities: The new identity for each old one.
    """
    for owner in owners:
        for table in internals.identity_tables(owner):
            if isinstance(table, dict):
                _rename_keys(table, identities)
            else:
                _rename_elements(table, identities)


def _rename_keys(table: dict[Any, Any], identities: dict[int, int]) -> None:
    if not any(type(key) is int and key in identities for key in table):
        return
    renamed = {_new(key, identities): value for key, value in table.items()}
    dict.clear(table)
    dict.update(table, renamed)


def _rename_elements(table: set[Any], identities: dict[int, int]) -> None:
    renamed = {
        internals.rename_node(_new(element, identities), identities)
        for element in table
    }
    if renamed != table:
        set.clear(table)
        set.update(table, renamed)


def _new(key: Any, identities: dict[int, int]) -> Any:
    return identities.get(key, key) if type(key) is int else key

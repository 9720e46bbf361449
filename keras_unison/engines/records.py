"""What an engine keeps of each model that it runs, and the warnings it gave."""

import warnings
import weakref
from typing import Any, Generic, TypeVar

from keras_unison.errors import UnisonWarning

Record = TypeVar("Record")


class Records(Generic[Record]):
    """One record for each model, kept while the model is.

    They are not on the models: what Keras saves, it finds by walking the attributes
    of the model.
    """

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Any, Record] = weakref.WeakKeyDictionary()

    def put(self, model: Any, record: Record) -> None:
        """Keeps the record of a model, which becomes the newest."""
        self._kept.pop(model, None)
        self._kept[model] = record

    def of(self, model: Any) -> Record:
        """The record of a model that the engine runs."""
        return self._kept[model]

    def find(self, model: Any) -> Record | None:
        """The record of a model; None for a plain one."""
        return self._kept.get(model)

    def drop(self, model: Any) -> None:
        """Forgets a model."""
        self._kept.pop(model, None)

    def newest(self) -> Record | None:
        """The record of the model that was put last; None if there is none."""
        kept = list(self._kept.values())
        return kept[-1] if kept else None


class Once:
    """Gives one `UnisonWarning` for each reason."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def warn(self, reason: str, text: str) -> None:
        """Warns with `text`, unless a warning was given for this reason."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            warnings.warn(text, UnisonWarning, stacklevel=3)

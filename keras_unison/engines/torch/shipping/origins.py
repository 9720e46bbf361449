"""Which modules a helper process can import."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

_FINDERS: tuple[Any, ...] = (BuiltinImporter, FrozenImporter, PathFinder)


class Origins:
    """Registers modules that helpers cannot import, whose code then goes along."""

    def __init__(self) -> None:
        self._asked: set[str] = {"__main__"}
        self._registered: list[ModuleType] = []

    def look_at(self, name: str | None) -> None:
        """Finds out about the module that a class or function is from."""
        if name is None or name in self._asked:
            return
        self._asked.add(name)
        module = sys.modules.get(name)
        if module is None or importable(module):
            return
        if name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)

    def forget(self) -> None:
        """Leaves cloudpickle as it was."""
        for module in self._registered:
            cloudpickle.unregister_pickle_by_value(module)
        self._registered.clear()


@contextmanager
def origins() -> Iterator[Origins]:
    """Within this context the code of modules goes along that cannot be imported."""
    found = Origins()
    try:
        yield found
    finally:
        found.forget()


def importable(module: ModuleType) -> bool:
    """Whether a fresh process with the same `sys.path` finds this module.

    That a module is in `sys.modules` does not say so: tests and plugins load files
    from folders which are not on the path, and notebooks make modules by hand.
    """
    name, file = module.__name__, getattr(module, "__file__", None)
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        if parent not in sys.modules or not importable(sys.modules[parent]):
            return parent not in sys.modules
        path = getattr(sys.modules[parent], "__path__", None)
        if file is None or path is None:
            # Made by the parent while it is imported.
            return True
    spec = _spec(name, path)
    if spec is None:
        return False
    # Python's own modules may come from its executable, though they have a file.
    return file is None or not spec.has_location or _same_file(file, spec.origin)


def _spec(name: str, path: Any) -> Any:
    for finder in (*_FINDERS, *_finders_of_editable_installs()):
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _finders_of_editable_installs() -> list[Any]:
    """Finders that each Python of this environment has from its start."""
    return [
        finder
        for finder in sys.meta_path
        if str(getattr(finder, "__module__", "")).startswith("__editable__")
    ]


def _same_file(one: str, other: str) -> bool:
    try:
        return Path(one).resolve() == Path(other).resolve()
    except OSError:
        return False

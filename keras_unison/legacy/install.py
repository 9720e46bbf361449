"""`import keras_unison.legacy.install`: old scripts and notebooks run as they are.

The one line puts the old multi-GPU names in place (`keras_unison.legacy.names`)
and lets a traceback about another removed name end with the line that fixes it
(`keras_unison.legacy.hints`). `keras-unison run script.py` does the same for a
script that cannot be changed.
"""

import sys
from types import TracebackType
from typing import Any

from keras_unison.legacy import hints, names


def _end_tracebacks_with_the_fix() -> None:
    before = sys.excepthook

    def excepthook(
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        hints.add_hint(error)
        before(kind, error, traceback)

    sys.excepthook = excepthook


def _after_cell(result: Any) -> None:
    hint = hints.hint_for(result.error_in_exec) if result.error_in_exec else None
    if hint is not None:
        sys.stderr.write(f"{hint}\n")


def _end_cells_with_the_fix() -> None:
    """In IPython, which shows exceptions itself and skips `sys.excepthook`."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)


names.install()
_end_tracebacks_with_the_fix()
_end_cells_with_the_fix()

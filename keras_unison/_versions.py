"""The one table of versions that the test-suite has run with.

The documentation and the environment checks read it; nothing else repeats it.
"""

from dataclasses import dataclass

__version__ = "0.1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The lowest and the newest version of a package that were tested."""

    lowest: str
    newest: str


TESTED = {
    "keras": Tested(lowest="3.13.2", newest="3.15.1"),
    "jax": Tested(lowest="0.7.2", newest="0.10.2"),
    "tensorflow": Tested(lowest="2.18.1", newest="2.21.0"),
    "torch": Tested(lowest="2.13.0", newest="2.13.0"),
}

"""One warning for each reason."""

import warnings
from dataclasses import dataclass, field

from keras_unison.errors import UnisonWarning


@dataclass(slots=True)
class Once:
    """Gives each `UnisonWarning` once.

    Attributes:
        reasons: Reasons that a warning was given for.
    """

    reasons: set[str] = field(default_factory=set)

    def warn(self, reason: str, text: str) -> None:
        """Warns with `text`, unless a warning was given for this reason."""
        if reason not in self.reasons:
            self.reasons.add(reason)
            warnings.warn(text, UnisonWarning, stacklevel=3)

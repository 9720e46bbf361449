"""What an engine offers to the layers above it."""

from collections.abc import Callable
from typing import Any, Protocol


class Engine(Protocol):
    """One backend's way to run a step on several devices.

    A package of functions; `keras_unison.engines.engine()` returns it.
    """

    def prepare(self, model: Any, positions: list[int], exact_draws: bool) -> None:
        """Makes `model` run its steps on the devices at `positions`.

        Draws are those of one device where `exact_draws` asks for it.
        """

    def release(self, model: Any) -> None:
        """Makes `model` a plain Keras model again."""

    def positions(self, model: Any) -> list[int] | None:
        """Positions of the model's devices; None for a plain model."""

    def divided_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A user's own step with its work divided when it is called."""

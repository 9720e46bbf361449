"""What a replica changes and adds: collected, not done."""

from typing import Any

import keras
from keras import ops


class ReplicaScope(keras.StatelessScope):  # type: ignore[misc]
    """Holds the values of variables in one replica.

    A value that is assigned here has no gradient of its own, as one that is
    assigned to a variable: it starts anew, and a trainable variable's gradient
    goes to the variable.

    Args:
        values: Variables, each with its value on the replica's device.
    """

    def __init__(self, values: list[tuple[Any, Any]]) -> None:
        super().__init__(state_mapping=values, collect_losses=True)
        self.changed: dict[int, Any] = {}
        self.whole_losses: set[int] = set()
        self._leaves = {
            id(variable): self.state_mapping[id(variable)]
            for variable, _ in values
            if variable.trainable
        }

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Keeps the new value of a variable; Keras calls it for each assignment."""
        variable, value = update
        value = ops.stop_gradient(value)
        leaf = self._leaves.get(id(variable))
        if leaf is not None:
            value = value + (leaf - ops.stop_gradient(leaf))
        self.changed[id(variable)] = variable
        super().add_update((variable, value))

    def updates(self) -> list[tuple[Any, Any]]:
        """The variables that were assigned, with their new values."""
        return [
            (variable, self.get_current_value(variable))
            for variable in self.changed.values()
        ]

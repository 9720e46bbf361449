"""What ran: the steps of a model, and how many rows each device had in them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step that ran.

    Attributes:
        name: Its name, for instance `jit_train_step`.
        partitions: Number of devices it ran on.
        lengths: First axes of what was computed, as one device computed it: on JAX
            of matrix products, convolutions and their operands, on TensorFlow of
            what Keras's layers were called on.
        parameters: Shapes of its arguments, as one device holds them, on JAX.
    """

    name: str
    partitions: int
    lengths: frozenset[int]
    parameters: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Seen:
    """The steps that ran within `programs()`."""

    programs: list[Program] = field(default_factory=list)

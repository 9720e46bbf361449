"""Steps on JAX: what XLA compiled, as it divided it."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from tests.equivalence.programs import Program, Seen

STEP_NAMES = ("jit_train_step", "jit_test_step", "jit_predict_step")


@contextmanager
def programs(names: tuple[str, ...] = STEP_NAMES) -> Iterator[Seen]:
    """Collects the steps that XLA compiles and loads within this context.

    Args:
        names: How the names of programs begin that count as steps.
    """
    client = jax.devices()[0].client
    before = {id(executable) for executable in client.live_executables()}
    # Kept alive, so that no identity is used again.
    held = client.live_executables()
    seen = Seen()
    # A model that is collected takes its executables with it.
    gc.disable()
    try:
        yield seen
        new = [e for e in client.live_executables() if id(e) not in before]
    finally:
        gc.enable()
    del held
    for executable in new:
        text = executable.hlo_modules()[0].to_string()
        name = text.split()[1].rstrip(",")
        if name.startswith(names):
            seen.programs.append(_program(name, text))


def _program(name: str, text: str) -> Program:
    partitions = re.search(r"num_partitions=(\d+)", text)
    lengths = set()
    shapes = dict(re.findall(r"%([\w.\-]+) = \w+\[(\d+)[,\]]", text))
    for line in text.splitlines():
        found = re.search(r"= \w+\[(\d+)[,\]].* (?:dot|convolution)\((.*?)\)", line)
        if found:
            lengths.add(int(found[1]))
            lengths |= {
                int(shapes[operand])
                for operand in re.findall(r"%([\w.\-]+)", found[2])
                if operand in shapes
            }
    return Program(
        name=name,
        partitions=int(partitions[1]) if partitions else 1,
        lengths=frozenset(lengths),
        parameters=_parameters(text),
    )


def _parameters(text: str) -> tuple[tuple[int, ...], ...]:
    layout = re.search(r"entry_computation_layout=\{\((.*?)\)->", text)
    shapes = re.findall(r"\w+\[([\d,]*)\]", layout[1]) if layout else []
    return tuple(tuple(map(int, filter(None, s.split(",")))) for s in shapes)

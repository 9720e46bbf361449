"""`keras-unison devices`: the devices that the chosen backend sees."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from keras_unison.cli.backend import UNFIT
from keras_unison.errors import UnisonError

if TYPE_CHECKING:
    from keras_unison.hardware.device import Device


def devices(
    simulate: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Show N simulated devices on the CPU instead.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """Show the devices that Keras can train on.

    Example: keras-unison devices --simulate 2
    """
    try:
        backend, found = _look(simulate)
    except UnisonError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNFIT) from None
    if as_json:
        rows = [dataclasses.asdict(device) for device in found]
        facts = {"schema_version": 1, "backend": backend, "devices": rows}
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(backend, found)


def _look(simulate: int | None) -> tuple[str, list["Device"]]:
    from keras_unison import keras_config

    keras_config.require_backend()
    from keras_unison._backend import active_backend
    from keras_unison.hardware import selection, simulation

    if simulate is not None:
        simulation.simulate(simulate)
    return active_backend(), selection.devices()


def _show(backend: str, found: list["Device"]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{len(found)} device(s), backend {backend}")
    for column in ("name", "kind", "description"):
        table.add_column(column, overflow="fold")
    table.add_column("memory", justify="right")
    table.add_column("simulated")
    for device in found:
        table.add_row(
            escape(device.name),
            device.kind,
            escape(device.description),
            memory(device.memory_bytes),
            "yes" if device.simulated else "no",
        )
    Console().print(table)


def memory(size: int | None) -> str:
    """Bytes as GiB with three significant digits; a dash where unknown."""
    if size is None:
        return "-"
    gib = size / 2**30
    # From 1000 on, Python would change to an exponent.
    number = f"{gib:#.3g}" if gib < 999.5 else f"{gib:.0f}"
    return f"{number.rstrip('.')} GiB"

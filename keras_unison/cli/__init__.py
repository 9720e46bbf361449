"""The command `keras-unison`: one file per command, nothing heavy at its top.

Exit codes: 0 good; 1 the script failed (its own code is kept); 2 wrong usage;
3 the environment is not fit; 130 Ctrl-C.
"""

from typing import Annotated

import typer

from keras_unison._versions import __version__
from keras_unison.cli import backend, devices, run

app = typer.Typer(
    name="keras-unison",
    help="Train any Keras 3 model on all your devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run", context_settings=run.SETTINGS)(run.run)
app.command("devices")(devices.devices)
app.command("backend")(backend.backend)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and stop.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Train any Keras 3 model on all your devices."""


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    app(prog_name="keras-unison")

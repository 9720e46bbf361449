"""`keras-unison backend`: which backend Keras runs on, and choosing another."""

import json
import os
from typing import Annotated, Any

import typer

from keras_unison import keras_config
from keras_unison._backend import BACKENDS
from keras_unison.errors import ConfigError

UNFIT = 3

_BY = {
    "environment": f"the environment variable {keras_config.VARIABLE}",
    "file": "keras.json",
    "default": "default",
}


def known_backend(name: str | None) -> str | None:
    """A backend that can train, or None; anything else is wrong usage.

    Raises:
        typer.BadParameter: The name is another one.
    """
    if name is not None and name not in BACKENDS:
        raise typer.BadParameter(
            f"{name!r} is none of {', '.join(BACKENDS)}, the backends that can train."
        )
    return name


def backend(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help=f"Write this backend into keras.json: {', '.join(BACKENDS)}.",
            callback=known_backend,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """Show which backend Keras runs on and what chose it, or choose another.

    Example: keras-unison backend jax
    """
    try:
        if name is not None:
            keras_config.write_backend(name)
        facts = _facts()
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNFIT) from None
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(facts, written=name is not None)
    _warn(facts)


def _facts() -> dict[str, Any]:
    choice = keras_config.chosen_backend()
    in_file, problem = None, None
    try:
        in_file = keras_config.backend_in_file()
    except ConfigError as error:
        # Reached only where the environment decides, so that it is no failure.
        problem = str(error)
    return {
        "schema_version": 1,
        "backend": choice.backend,
        "chosen_by": choice.source,
        "installed": keras_config.is_installed(choice.backend),
        "file": str(keras_config.config_path()),
        "file_backend": in_file,
        "file_problem": problem,
    }


def _show(facts: dict[str, Any], *, written: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    file = escape(facts["file"])
    if written:
        console.print(f"wrote {facts['file_backend']} into {file}")
    console.print(f"[bold]{facts['backend']}[/bold], by {_BY[facts['chosen_by']]}")
    if not written:
        console.print(f"{file}: {facts['file_backend'] or 'names no backend'}")


def _warn(facts: dict[str, Any]) -> None:
    if facts["file_problem"]:
        typer.echo(facts["file_problem"], err=True)
    overridden = facts["file_backend"] not in (None, facts["backend"])
    if facts["chosen_by"] == "environment" and overridden:
        name = keras_config.VARIABLE
        typer.echo(
            f"{name}={os.environ[name]} in the environment wins over keras.json, "
            f"which names {facts['file_backend']}. To let the file decide: "
            f"`unset {name}`",
            err=True,
        )
    if not facts["installed"]:
        backend_name = facts["backend"]
        typer.echo(
            f"{backend_name} is not installed. "
            f"{keras_config.how_to_install(backend_name)}.",
            err=True,
        )

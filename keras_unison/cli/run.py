"""`keras-unison run`: runs a script with the old multi-GPU names in place.

The script runs in this process as `__main__`, as `python script.py` would run
it: same `sys.argv`, `sys.path`, traceback and exit code.
"""

import ast
import io
import os
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from keras_unison import keras_config
from keras_unison.cli.backend import UNFIT, known_backend
from keras_unison.errors import ConfigError, DeviceError, UnisonError
from keras_unison.hardware.selection import VARIABLE as DEVICES_VARIABLE
from keras_unison.hardware.selection import parse_devices
from keras_unison.hardware.simulation import VARIABLE as SIMULATE_VARIABLE

# Everything after the script belongs to the script.
SETTINGS = {"allow_interspersed_args": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    simulate: int | None
    devices: str | None
    backend: str | None


def run(
    script: Annotated[
        str,
        typer.Argument(metavar="SCRIPT", help="A Python file.", show_default=False),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGS",
            help="What the script gets, options included.",
            show_default=False,
        ),
    ] = None,
    simulate: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Run on N simulated devices on the CPU.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="What `devices=None` means in the script: a number of devices (2), "
            "ids (0,2) or names (gpu:0,gpu:1).",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run Keras on tensorflow, jax or torch.",
            callback=known_backend,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run any Keras 3 script with the old multi-GPU names in place.

    Example: keras-unison run --simulate 2 train.py --epochs 3
    """
    if simulate is not None and devices is not None:
        raise typer.BadParameter("--simulate and --devices exclude each other.")
    if devices is not None:
        _parsed(devices)
    request = _Request(simulate=simulate, devices=devices, backend=backend)
    source = _read(script)
    try:
        _prepare(request, script, source)
    except UnisonError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNFIT) from None
    _execute(script, source, args or [])


def _parsed(devices: str) -> int | list[int | str]:
    try:
        return parse_devices(devices)
    except DeviceError as error:
        raise typer.BadParameter(f"--devices: {error}") from None


def _read(script: str) -> bytes:
    if script == "-":
        raise typer.BadParameter(
            "a script on standard input is not supported; give the name of a file."
        )
    try:
        with io.open_code(os.path.abspath(script)) as file:
            return file.read()
    except OSError as error:
        raise typer.BadParameter(
            f"cannot open the script {script!r}: {error.strerror}."
        ) from None


def _prepare(request: _Request, script: str, source: bytes) -> None:
    """Does all that has to be done before Keras is imported, in this order."""
    own = _backend_of_script(source)
    if request.backend is not None:
        if own is not None and own[0] != request.backend:
            raise typer.BadParameter(
                f"{script} chooses the backend {own[0]!r} itself (line {own[1]}), "
                f"which --backend {request.backend} cannot change. Leave out one of "
                "the two."
            )
        os.environ[keras_config.VARIABLE] = request.backend
    elif own is not None:
        os.environ[keras_config.VARIABLE] = own[0]
    _refuse_another(keras_config.chosen_backend().backend)
    if request.simulate is not None or request.devices is not None:
        _prepare_devices(request)

    from keras_unison.legacy import names

    names.install()


def _refuse_another(backend: str) -> None:
    """Keras is imported by now only where the environment simulates devices."""
    if "keras" not in sys.modules:
        return
    from keras_unison._backend import active_backend

    if active_backend() != backend:
        raise ConfigError(
            f"{SIMULATE_VARIABLE} is set, which started Keras on {active_backend()} "
            f"before {backend} could be chosen. `unset {SIMULATE_VARIABLE}` and give "
            f"--simulate, or `export {keras_config.VARIABLE}={backend}` too."
        )


def _prepare_devices(request: _Request) -> None:
    keras_config.require_backend()
    from keras_unison.hardware import selection, simulation

    if request.simulate is not None:
        os.environ[SIMULATE_VARIABLE] = str(request.simulate)
        simulation.simulate(request.simulate)
    if request.devices is not None:
        choice = _parsed(request.devices)
        selection.choose_devices(choice, argument="--devices")
        os.environ[DEVICES_VARIABLE] = request.devices


def _backend_of_script(source: bytes) -> tuple[str, int] | None:
    """The backend that a script sets by itself, and the line.

    Scripts commonly begin with `os.environ["KERAS_BACKEND"] = "jax"`. Simulating
    or checking devices imports Keras before the script runs, so that this line
    would come too late; it is therefore honoured beforehand.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        # The script's own failure, shown when it is run.
        return None
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[
                    ast.Subscript(
                        value=ast.Attribute(attr="environ") | ast.Name(id="environ"),
                        slice=ast.Constant(value=keras_config.VARIABLE),
                    )
                ],
                value=ast.Constant(value=str(name)),
            ):
                return name, node.lineno
    return None


def _execute(script: str, source: bytes, args: list[str]) -> NoReturn:
    """Runs the script and ends with its exit code."""
    module = types.ModuleType("__main__")
    file = os.path.abspath(script)
    module.__file__ = file
    vars(module).update(__builtins__=__builtins__, __cached__=None, __spec__=None)
    sys.modules["__main__"] = module
    sys.argv[:] = [script, *args]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(file).resolve().parent)
    try:
        # None of this module's `from __future__` lines may reach the script.
        code = compile(source, file, "exec", dont_inherit=True)
        exec(code, vars(module))
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        _show(error)
        sys.exit(130)
    except BaseException as error:  # noqa: BLE001
        # Python itself would show whatever a script raises.
        _show(error)
        sys.exit(1)
    sys.exit(0)


def _show(error: BaseException) -> None:
    """Shows the traceback as Python would, the fix last, without our frames."""
    from keras_unison.legacy import hints

    hints.add_hint(error)
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)

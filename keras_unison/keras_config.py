"""Which backend Keras will run on, and the file that says so, without Keras.

Keras reads `keras.json` when it is imported, ignores a broken one without a
word, and fails with `Unable to import backend` where one names a backend of
Keras 2. Here the same file is read first, with errors that say what to do.
"""

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from keras_unison._backend import BACKENDS
from keras_unison.errors import ConfigError

VARIABLE = "KERAS_BACKEND"

# Keras runs on these too, but cannot train on them.
_INFERENCE_ONLY = ("numpy", "openvino")
_ENDED = {"theano": 2017, "cntk": 2019}
_DEFAULT = "tensorflow"

Source = Literal["environment", "file", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """A backend, and what chose it.

    Attributes:
        backend: Name of the backend.
        source: `"environment"` (`KERAS_BACKEND`), `"file"` (`keras.json`) or
            `"default"`.
    """

    backend: str
    source: Source


def config_path() -> Path:
    """Where Keras looks for `keras.json`, by the rules of Keras itself."""
    folder = os.environ.get("KERAS_HOME")
    if folder is None:
        home = os.path.expanduser("~")
        folder = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    return Path(os.path.expanduser(folder)) / "keras.json"


def read_config(path: Path) -> dict[str, Any]:
    """Reads a `keras.json`.

    Args:
        path: The file. One that does not exist counts as empty.

    Returns:
        What the file holds.

    Raises:
        ConfigError: The file cannot be read, is no JSON, or holds no object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. Correct it, or delete it: Keras then "
            "writes a new one."
        ) from error
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is no valid JSON: line {error.lineno}, column {error.colno}: "
            f"{error.msg}. Keras would ignore the whole file without a word. "
            f"Correct that line, or delete the file (`rm {path}`): Keras then writes "
            "a new one."
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} must hold one JSON object, such as "
            f'{{"backend": "jax"}}. It holds a {type(content).__name__}. Correct it, '
            f"or delete the file (`rm {path}`): Keras then writes a new one."
        )
    return content


def backend_in_file() -> str | None:
    """The backend that `keras.json` names; None where it names none.

    Raises:
        ConfigError: The file is broken, or names no backend of Keras 3.
    """
    path = config_path()
    config = read_config(path)
    if "backend" not in config:
        return None
    return _checked(config["backend"], f"{path} names the backend")


def chosen_backend(environment: Mapping[str, str] | None = None) -> BackendChoice:
    """Which backend Keras will run on, and what chose it.

    Args:
        environment: Environment variables; `os.environ` by default.

    Raises:
        ConfigError: What was chosen is no backend of Keras 3, or `keras.json`
            decides and is broken.
    """
    named = (os.environ if environment is None else environment).get(VARIABLE)
    if named:
        checked = _checked(named, f"The environment variable {VARIABLE} is")
        return BackendChoice(backend=checked, source="environment")
    in_file = backend_in_file()
    if in_file is not None:
        return BackendChoice(backend=in_file, source="file")
    return BackendChoice(backend=_DEFAULT, source="default")


def write_backend(name: str) -> Path:
    """Writes the backend into `keras.json` and keeps everything else in it.

    The new content is written beside the file and then put in its place in one
    step, so that the file is whole at every moment.

    Args:
        name: `"tensorflow"`, `"jax"` or `"torch"`.

    Returns:
        The file that was written.

    Raises:
        ConfigError: `name` is no backend that can train, the file is broken (it
            is left as it is), or it cannot be written.
    """
    if name not in BACKENDS:
        raise ConfigError(
            f"{name!r} is no Keras backend that can train. Choose one of "
            f"{', '.join(BACKENDS)}, for instance by `keras-unison backend jax`."
        )
    # A link to a file elsewhere stays a link.
    path = config_path().resolve()
    content = read_config(path) | {"backend": name}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps(content, indent=4) + "\n")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error}. Make it writable, or choose the "
            f"backend by the environment: `export {VARIABLE}={name}`."
        ) from error
    return path


def is_installed(backend: str) -> bool:
    """Whether a backend's package is there, found without importing it."""
    return importlib.util.find_spec(backend) is not None


def require_backend() -> BackendChoice:
    """The chosen backend, if it is installed.

    Raises:
        ConfigError: It is not, or there is no valid choice.
    """
    choice = chosen_backend()
    if not is_installed(choice.backend):
        raise ConfigError(
            f"Keras is to run on {choice.backend} (chosen by the {choice.source}), "
            f"which is not installed. {how_to_install(choice.backend)}, or choose "
            "another one, for instance by `keras-unison backend jax`."
        )
    return choice


def how_to_install(backend: str) -> str:
    """The line to type, in a sentence without its full stop."""
    package = f"'keras-unison[{backend}]'" if backend in BACKENDS else backend
    return f"Install it by `pip install {package}`"


def _checked(name: object, what: str) -> str:
    if isinstance(name, str) and name in (*BACKENDS, *_INFERENCE_ONLY):
        return name
    why = "Keras 3 does not know it"
    if isinstance(name, str) and name in _ENDED:
        why = (
            f"which only Keras 2 could use: its development ended in {_ENDED[name]}, "
            f"and Keras 3 runs on {', '.join(BACKENDS)}"
        )
    fix = "`keras-unison backend jax` writes another one"
    if VARIABLE in what:
        fix = f"`export {VARIABLE}=jax` chooses another one"
    raise ConfigError(f"{what} {name!r}, {why}. {fix}.")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

"""The old multi-GPU names, put where old scripts look for them.

Nothing is imported for it: each module gets its old names at the moment it is
imported, or at once where it already is, and each name is looked up in
keras_unison when a script first uses it. So a script that never touches
TensorFlow does not load it, and Keras is never entered half imported.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from keras_unison._keras import TF_KERAS
from keras_unison.errors import UnsupportedError

_UTILS = (
    "keras.utils",
    f"{TF_KERAS}.utils",
    "tensorflow.keras.utils",
    "tensorflow.python.keras.utils",
)
_KERAS_BACKENDS = (
    "keras.backend",
    f"{TF_KERAS}.backend",
    "tensorflow.keras.backend",
)
_OLD_MODULES = ("multi_gpu_utils", "training_utils")

_MEMORY = (
    "Keras 3 has no sessions. To let TensorFlow take GPU memory only as it needs "
    "it, delete this call and start the script with TF_FORCE_GPU_ALLOW_GROWTH=true, "
    "or call `tf.config.experimental.set_memory_growth(gpu, True)` for each gpu in "
    '`tf.config.list_physical_devices("GPU")`. On JAX: '
    "XLA_PYTHON_CLIENT_PREALLOCATE=false. To limit which GPUs are used: "
    "CUDA_VISIBLE_DEVICES=0,1."
)


def install() -> None:
    """Puts the old names in place; a second call changes nothing.

    In `keras.utils`, `tf.keras.utils`, `tensorflow.keras.utils` and
    `tensorflow.python.keras.utils`: `multi_gpu_model`, `DataParallel`,
    `model_to_gpu`, and the modules `multi_gpu_utils` and `training_utils`. In
    `keras.backend` and `tf.keras.backend`: the module `tensorflow_backend`.

    Example:
    >>> from keras_unison.legacy import names
    >>> names.install()
    >>> from keras.utils import multi_gpu_model
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, complete in _COMPLETIONS.items():
        module = sys.modules.get(name)
        if module is not None:
            complete(module)


def model_to_gpu(layer: Any, gpu_id: int) -> Any:
    """Will place a layer's weights and computation on one device.

    Args:
        layer: A Keras layer.
        gpu_id: Position of the device in `keras_unison.devices()`.

    Raises:
        UnsupportedError: Always, until model parallelism is built.
    """
    raise UnsupportedError(
        f"model_to_gpu({getattr(layer, 'name', layer)!s}, gpu_id={gpu_id}) would keep "
        "the weights and the computation of this layer on that device. Model "
        "parallelism is not built yet. Use the layer as it is, and "
        "`keras_unison.DataParallel(model)` to train on several devices."
    )


def set_session(session: Any) -> None:
    """Explains what took the place of TensorFlow sessions.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(f"set_session cannot work. {_MEMORY}")


def get_session() -> Any:
    """Explains what took the place of TensorFlow sessions.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(f"get_session cannot work. {_MEMORY}")


def _get_available_gpus() -> list[str]:
    """The devices a model can be divided over, under TensorFlow's names.

    Scripts take the length of this list as their number of GPUs. Simulated
    devices therefore count as GPUs here, so that such a script runs on several
    of them; a CPU that is not simulated does not, as in Keras 2.

    Returns:
        `["/device:GPU:0", ...]`, empty on a machine with one CPU device.
    """
    import keras_unison

    usable = [d for d in keras_unison.devices() if d.simulated or d.kind != "cpu"]
    return [f"/device:GPU:{index}" for index in range(len(usable))]


def _multi_gpu_model() -> Any:
    import keras_unison

    return keras_unison.multi_gpu_model


def _data_parallel() -> Any:
    import keras_unison

    return keras_unison.DataParallel


def _model_to_gpu() -> Any:
    return model_to_gpu


_IN_UTILS: dict[str, Callable[[], Any]] = {
    "multi_gpu_model": _multi_gpu_model,
    "DataParallel": _data_parallel,
    "model_to_gpu": _model_to_gpu,
}


def _complete_utils(module: ModuleType) -> None:
    for name in _OLD_MODULES:
        old = _submodule(module, name, "Where Keras 2 kept `multi_gpu_model`.")
        _look_up(old, {"multi_gpu_model": _multi_gpu_model})
    _look_up(module, _IN_UTILS)


def _complete_backend(module: ModuleType) -> None:
    old = _submodule(module, "tensorflow_backend", "What is left of Keras 2's backend.")
    vars(old).update(
        _get_available_gpus=_get_available_gpus,
        set_session=set_session,
        get_session=get_session,
        # Keras 2 had all functions of its backend here too.
        __getattr__=lambda name: getattr(module, name),
    )


def _submodule(parent: ModuleType, name: str, doc: str) -> ModuleType:
    """A new module inside `parent`, known to every form of `import`."""
    module = ModuleType(f"{parent.__name__}.{name}", doc)
    sys.modules[module.__name__] = module
    setattr(parent, name, module)
    return module


def _look_up(module: ModuleType, names: dict[str, Callable[[], Any]]) -> None:
    """Lets a module answer to `names`, each found when it is first used."""
    before = getattr(module, "__getattr__", None)

    def __getattr__(name: str) -> Any:
        if name in names:
            value = names[name]()
            setattr(module, name, value)
            return value
        if before is not None:
            return before(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    public = [name for name in vars(module) if not name.startswith("_")]
    # `from keras.utils import *` asks for the names listed here.
    listed = getattr(module, "__all__", public)
    vars(module).update(__getattr__=__getattr__, __all__=[*listed, *names])


_COMPLETIONS: dict[str, Callable[[ModuleType], None]] = {
    **dict.fromkeys(_UTILS, _complete_utils),
    **dict.fromkeys(_KERAS_BACKENDS, _complete_backend),
}


class _Finder(MetaPathFinder):
    """Finds the modules of the table as Python would, to complete them."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in _COMPLETIONS:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Completing(spec.loader)
                return spec
        return None


class _Completing(Loader):
    """Runs a module's own loader, then adds the old names."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # `inspect` and `importlib.resources` ask the module for its loader.
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        _COMPLETIONS[module.__name__](module)

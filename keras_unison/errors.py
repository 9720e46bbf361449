"""The errors that keras_unison raises.

    UnisonError
    ├── DeviceError       (ValueError)           devices that do not exist
    ├── SimulationError   (RuntimeError)         simulated devices asked for too late
    ├── ModelError        (ValueError)           a model that cannot be distributed
    ├── BatchError        (ValueError)           a batch that cannot be divided
    ├── PlacementError    (RuntimeError)         two owners of the placement of arrays
    ├── HelperError       (RuntimeError)         a helper process failed, or is gone
    ├── LegacyFileError   (ValueError)           a Keras 2 file that cannot be read
    ├── ConfigError       (ValueError)           a Keras configuration that is broken
    └── UnsupportedError  (NotImplementedError)  not built, or impossible

Each also inherits the built-in error that a Keras user expects, so that
`except ValueError` around an old `multi_gpu_model` call keeps working. A text
says what is wrong and what was received, why where that is not obvious, and
the line to type that fixes it.
"""


class UnisonError(Exception):
    """Base of every error that keras_unison raises on purpose."""


class DeviceError(UnisonError, ValueError):
    """Devices were asked for that do not exist, or not enough of them."""


class SimulationError(UnisonError, RuntimeError):
    """Simulated devices were asked for after the backend had started."""


class ModelError(UnisonError, ValueError):
    """The object is no model that can be trained on several devices."""


class BatchError(UnisonError, ValueError):
    """A batch cannot be divided by rows, or has no rows."""


class PlacementError(UnisonError, RuntimeError):
    """Something else (a Keras or TensorFlow strategy) places the arrays too."""


class HelperError(UnisonError, RuntimeError):
    """A helper process that computes a replica has failed, or is gone."""


class LegacyFileError(UnisonError, ValueError):
    """A file written by Keras 2 cannot be read, or does not fit the model."""


class ConfigError(UnisonError, ValueError):
    """A Keras configuration file is broken, or names what does not exist."""


class UnsupportedError(UnisonError, NotImplementedError):
    """The request is understood but not built, or impossible; says which."""


class UnisonWarning(UserWarning):
    """Something costs more than it should, or was not carried over.

    Given once per reason and model, naming the reason. Results are right.
    """

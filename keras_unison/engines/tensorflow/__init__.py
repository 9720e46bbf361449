"""The TensorFlow engine: the devices' parts of each layer call, in one function.

A step is traced once, as on one device. Where it calls a layer, each device's part
of the call is traced in its device's scope, on its rows of the inputs and on values
read from the shared variables; the outputs are joined. Automatic differentiation of
"one variable, read by every device" sums the gradients. Where a layer mixes rows the
parts meet in collectives of TensorFlow's runtime. tf.distribute is not used.
"""

from keras_unison.engines.tensorflow.prepare import positions, prepare, release
from keras_unison.engines.tensorflow.steps import divided_step

__all__ = ["divided_step", "positions", "prepare", "release"]

"""The JAX engine: one SPMD program over a mesh of devices.

Variables are replicated over the mesh, each global batch is divided by rows,
and XLA's partitioner gives the step the meaning it has on one device (Xu et
al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs",
2021, https://arxiv.org/abs/2105.04663). State and data move where they enter a
step; between steps everything lies on the first device, as in plain Keras.
"""

from keras_unison.engines.jax.prepare import positions, prepare, release
from keras_unison.engines.jax.steps import divided_step

__all__ = ["divided_step", "positions", "prepare", "release"]

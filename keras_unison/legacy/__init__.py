"""What Keras 2 offered for several GPUs, on Keras 3."""

"""What a step sees: the global batch everywhere outside of layer calls."""

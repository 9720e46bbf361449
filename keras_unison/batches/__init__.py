"""A global batch and its rows."""

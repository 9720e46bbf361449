"""A helper's side of the steps."""

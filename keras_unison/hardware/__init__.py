"""Devices: which there are, choosing among them, simulating them."""

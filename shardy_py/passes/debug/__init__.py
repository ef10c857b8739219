"""Attributes that say how the propagation came to its shardings: its steps, and where each axis comes from."""

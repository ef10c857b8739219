"""Shardy for JAX: propagates shardings through a traced program, shows them with their reasons, and runs the result."""

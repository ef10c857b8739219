"""Passes that turn the outcome of propagation into final shardings."""

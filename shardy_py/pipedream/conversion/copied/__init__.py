"""Flax modules whose source is written into every generated package that uses them."""

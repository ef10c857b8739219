"""Renders plans as text, HTML and Perfetto timelines."""

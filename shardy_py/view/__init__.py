"""Renders plans as text, HTML, Perfetto timelines and Model Explorer graphs."""

"""Where the largest or smallest element is."""

from __future__ import annotations

from shardy_py.backends.local.form import Builder

FORMS: dict[str, Builder] = {}
"""Primitive -> form."""

"""Sizes from which a value or movement is worth a finding. Bytes are per device."""

from __future__ import annotations

from shardy_py.plan.findings import Severity

NOTABLE = 1 << 20
"""1 MiB: values and movements of fewer bytes are no findings of their own."""

GRAVE = 16 << 20
"""16 MiB: from here on it is a warning; a note below."""

PARTLY = 256 << 20
"""256 MiB: an input that is cut, but not by all axes that could, is a note from here on."""

PADDED = 0.1
"""A dimension that is not divided evenly is a note where the padding adds this part to a value."""


def graded(count: int) -> Severity:
    """A warning for many bytes, else a note.

    Example:
        >>> graded(1 << 20), graded(1 << 30)
        ('info', 'warning')
    """
    return "warning" if count >= GRAVE else "info"

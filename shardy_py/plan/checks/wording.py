"""The words and the grades that findings of several checks have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shardy_py.plan.findings import Finding, Findings, Severity
from shardy_py.plan.paths import without_numbers
from shardy_py.plan.values import PlannedValue

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


def annotation_of(value: PlannedValue) -> str:
    """The arguments of `auto_shard` that can say how an input or an output is cut."""
    return "in_shardings or rules" if value.kind == "input" else "out_shardings"


def more_text(count: int, which: str) -> str:
    """The end of a message about the first of several values; empty for a single one.

    Example:
        >>> more_text(3, "of this line"), more_text(1, "like it")
        ('; 2 more of this line', '')
    """
    return f"; {count - 1} more {which}" if count > 1 else ""


_INDEX = re.compile(r"\[\d+\]|(?<=\D)\d+(?=\W|_|$)")


def merged(findings: Iterable[Finding], causes: Mapping[str, str] | None = None) -> Findings:
    """Makes one finding of those that differ in the numbers of their paths only, as in layers, ordered by the first of each.

    Args:
        causes: Path of a value -> path of a value whose findings have the same cause: of optimizer state, its parameter.

    Example:
        >>> layers = [Finding("unused-rule", "no", f"layers[{i}]['w']") for i in range(3)]
        >>> merged(layers)
        warning: unused-rule: no [layers[0..2]['w']]
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for f in findings:
        path = without_numbers((causes or {}).get(f.path, f.path))
        message, fix = (text.replace(f.path, path) if f.path else text for text in (f.message, f.fix))
        key = (f.kind, f.severity, f.bytes, f.location, path, _INDEX.sub("#", message), _INDEX.sub("#", fix))
        groups.setdefault(key, []).append(f)
    return Findings(_as_one(group) for group in groups.values())


def _as_one(group: Sequence[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1 or not first.path:
        return replace(first, message=first.message + more_text(len(group), "like it"))
    return replace(first, paths=tuple(path for f in group for path in f.all_paths))

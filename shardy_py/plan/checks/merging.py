"""Makes one finding of those with the same cause: of every layer, and of a parameter and its optimizer state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shardy_py.plan.checks.paths import without_numbers
from shardy_py.plan.checks.phrases import more_text
from shardy_py.plan.findings import Finding, Findings

_INDEX = re.compile(r"\[\d+\]|(?<=\D)\d+(?=\W|_|$)")


def merged(findings: Iterable[Finding], causes: Mapping[str, str] | None = None) -> Findings:
    """Makes one finding of those that differ in the numbers of their paths only, as in layers, ordered by the first of each.

    Args:
        causes: Path of a value -> that of a value whose findings have the same cause: of optimizer state, its parameter.

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

"""Filters findings that a user accepts, and groups those that repeat in every layer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardy_py.errors import ShardyError
from shardy_py.plan.checks.paths import paths_as_one, without_numbers
from shardy_py.plan.checks.table import KINDS
from shardy_py.plan.findings import Finding
from shardy_py.plan.patterns import check_length, names_path

_INDEX = re.compile(r"\[\d+\]|(?<=\D)\d+(?=\W|_|$)")


def accepted(findings: Sequence[Finding], ignore: str | Iterable[str]) -> tuple[Finding, ...]:
    """Drops the findings that a pattern names.

    Args:
        findings: The findings of a plan.
        ignore: `kind`, or `kind:path`, a pattern for the last components of a path or for the whole path (`plan/patterns`); one
            string, or several.

    Raises:
        TypeError: A pattern is no string.
        ShardyError: A pattern has an unknown kind, or is too long.

    Example:
        >>> accepted([Finding("replicated-large", "...", "params['table']")], ["replicated-large:params*"])
        ()
    """
    if not isinstance(ignore, Iterable):
        raise TypeError(f"ignore is {ignore!r}, a {type(ignore).__name__}; it is a kind of finding or several, as ['unused-axis']")
    patterns = [_parsed(pattern) for pattern in ([ignore] if isinstance(ignore, str) else ignore)]

    def named(finding: Finding) -> bool:
        return any(kind == finding.kind and (not colon or names_path(path, finding.path)) for kind, colon, path in patterns)

    return tuple(finding for finding in findings if not named(finding))


def _parsed(pattern: object) -> tuple[str, str, str]:
    """Kind, colon and path of a pattern."""
    if not isinstance(pattern, str):
        raise TypeError(f"ignore holds {pattern!r}, a {type(pattern).__name__}; it is a kind of finding or several, as ['unused-axis']")
    check_length(pattern, "ignore")
    kind, colon, path = pattern.partition(":")
    names = [entry.name for entry in KINDS]
    if kind not in names:
        near = difflib.get_close_matches(kind, names, 1)
        raise ShardyError(
            f"there is no finding of kind {kind!r}",
            where=f"ignore={pattern!r}",
            why=f"the kinds are {', '.join(names)}",
            fix=f"did you mean {near[0]!r}?" if near else "use one of them",
        )
    return kind, colon, path


@dataclass(frozen=True, slots=True)
class Alike:
    """Findings that differ only in numbers of layers.

    Attributes:
        first: The first of them.
        paths: The paths of all.
    """

    first: Finding
    paths: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of findings in the group."""
        return len(self.paths)

    @property
    def path(self) -> str:
        """The paths of the group, merged to one pattern."""
        return paths_as_one(self.paths)

    def __str__(self) -> str:
        """The first with the paths of all."""
        return str(replace(self.first, path=self.path))


def alike(findings: Sequence[Finding]) -> list[Alike]:
    """Groups findings by everything but the numbers in their paths, in order of each group's first.

    Args:
        findings: The findings of a plan.

    Example:
        >>> layers = [Finding("unused-rule", "no", f"layers[{i}]['w']") for i in range(3)]
        >>> [(str(group.first.path), group.count) for group in alike(layers)]
        [("layers[0]['w']", 3)]
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for f in findings:
        path = without_numbers(f.path)
        message, fix = (text.replace(f.path, path) if f.path else text for text in (f.message, f.fix))
        key = (f.kind, f.severity, f.bytes, f.location, path, _INDEX.sub("#", message), _INDEX.sub("#", fix))
        groups.setdefault(key, []).append(f)
    return [Alike(group[0], tuple(f.path for f in group)) for group in groups.values()]

"""Filters findings that a user accepts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace

from shardy_py.errors import ShardyError
from shardy_py.plan.checks.table import KINDS
from shardy_py.plan.findings import Finding, Findings
from shardy_py.plan.paths import check_length, names_path


def accepted(findings: Iterable[Finding], ignore: str | Iterable[str]) -> Findings:
    """Drops the findings that a pattern names, `kind` or `kind:path` (`plan/paths`). Raises TypeError or ShardyError for any other.

    Example:
        >>> accepted([Finding("replicated-large", "...", "params['table']")], ["replicated-large:params*"])
        no findings
    """
    if not isinstance(ignore, Iterable):
        raise TypeError(f"ignore is {ignore!r}, a {type(ignore).__name__}; it is a kind of finding or several, as ['unused-axis']")
    patterns = [_parsed(pattern) for pattern in ([ignore] if isinstance(ignore, str) else ignore)]

    def named(of: str, value: str) -> bool:
        return any(kind == of and (not colon or names_path(path, value)) for kind, colon, path in patterns)

    left = ((f, tuple(path for path in f.all_paths if not named(f.kind, path))) for f in findings)
    return Findings(f if paths == f.all_paths else replace(f, path=paths[0], paths=paths) for f, paths in left if paths)


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

"""The report at the first run of a plan: one line of log, and one warning of findings that deserve a look."""

from __future__ import annotations

import itertools
import logging
import pathlib
import sys
import warnings
from collections.abc import Sequence

import jax

from shardy_py.api.planning import Planned
from shardy_py.dialect.grouping import grouped
from shardy_py.errors import PlanWarning
from shardy_py.facade import Plan
from shardy_py.plan.checks.paths import paths_as_one
from shardy_py.plan.checks.table import observed_in
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.findings import Finding
from shardy_py.plan.movements import format_bytes

LOGGER = logging.getLogger("shardy_py")

MAX_KINDS = 3
"""Kinds of findings in a warning; it takes two lines more."""

_WARNED_ELSEWHERE = frozenset({"refused-donation"})
"""Kinds that have a warning of their own."""

_PACKAGE = str(pathlib.Path(__file__).parent.parent)


def report(planned: Planned) -> None:
    """Logs a plan before its first run, and warns of its findings or raises PlanError, as `Options.check` says."""
    plan, request = planned.plan, planned.traced.request
    check = request.settings.options.check
    name, mesh, seconds = request.location or request.name, request.view.describe(), plan.timings.total
    LOGGER.info("planned %s for %s in %.2f s: %d inputs, %d outputs", name, mesh, seconds, len(plan.inputs), len(plan.outputs))
    if check == "off":
        return
    if check == "raise":
        plan.check(strict=True)
        return
    grave = _grave(plan)
    if grave and jax.process_index() == 0:
        warnings.warn(warning_text(grave, name), PlanWarning, stacklevel=_callers_level())


def _grave(plan: Plan) -> list[Finding]:
    """Warnings, without those that are about few bytes."""
    if all(f.severity == "info" for f in observed_in(plan)[0]):
        return []  # and no plans are made to try fixes
    grave = (f for f in plan.findings if f.severity != "info" and f.kind not in _WARNED_ELSEWHERE)
    return [f for f in grave if not f.bytes or f.bytes >= NOTABLE]


def warning_text(findings: Sequence[Finding], location: str) -> str:
    """Findings in a few lines, one for each kind: mistakes, which are about no bytes, first.

    Example:
        >>> print(warning_text([Finding("unused-rule", "rule 0, 'a', matches nothing"), Finding("no-rule", "no rule for f")], "f.py:3"))
        the plan of f.py:3 has 2 findings:
          unused-rule: rule 0, 'a', matches nothing
          no-rule: no rule for f
        plan.check() lists them with what to do; sp.Options(check="off") keeps this from being said
    """
    kinds = grouped(sorted(findings, key=lambda f: f.bytes > 0), lambda f: f.kind)
    lines = [f"  {kind}: {_line(group)}" for kind, group in itertools.islice(kinds.items(), MAX_KINDS)]
    more = len(kinds) - MAX_KINDS
    others = f"{more} more kinds; " if more > 1 else "1 more kind; " if more == 1 else ""
    count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    tail = f'{others}plan.check() lists them with what to do; sp.Options(check="off") keeps this from being said'
    return "\n".join([f"the plan of {location} has {count}:", *lines, tail])


def _line(group: Sequence[Finding]) -> str:
    if not group[0].bytes:
        return "; ".join(f.message for f in group[:4]) + (f"; {len(group) - 4} more" if len(group) > 4 else "")
    first, *others = group
    path = f"{paths_as_one(first.all_paths)}: " if first.path and not first.path.startswith("%") else ""
    place = f" [{first.location}]" if first.location else ""
    total = format_bytes(sum(len(f.all_paths) * f.bytes for f in group))
    more = f"; {sum(len(f.all_paths) for f in others)} more, {total} in all" if others else ""
    return f"{path}{first.message}{place}{more}"


def _callers_level() -> int:
    """The level of the first call outside of this package and of JAX, for `warnings.warn` in the caller of this function."""
    frame, level = sys._getframe(1), 1
    folders = (_PACKAGE, str(pathlib.Path(jax.__file__).parent))
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folders):
        frame, level = frame.f_back, level + 1
    return level

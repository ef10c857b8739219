"""The table of all kinds of findings, whose meaning docs/findings.md says; the findings of a plan, and those that a user accepts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from shardy_py.errors import ShardyError
from shardy_py.passes.collection import no_collection
from shardy_py.plan.checks.axes import (
    axis_lost_in_reshape,
    batch_axis_lost,
    state_and_parameter,
    state_unlike_parameter,
    sub_axis_removed,
    unused_axis,
)
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.costs import costly_constraint, costly_reshard, cut_along_scan, host_transfers, smaller_peak
from shardy_py.plan.checks.fixes import Proposal, with_fixes
from shardy_py.plan.checks.shardings import indivisible, replicated_large
from shardy_py.plan.checks.wording import NOTABLE, merged
from shardy_py.plan.findings import Finding, Findings
from shardy_py.plan.paths import check_length, names_path
from shardy_py.plan.record import Analysis, PlanRecord
from shardy_py.plan.search import NOTHING

Check = Callable[[CheckContext], Iterator[Finding]]

_OF_PLANNING = "no-rule unused-rule unmatched-rule overruled-rule refused-donation"
_OF_PARTITIONING = "runs-whole jit-lowering whole-dimension whole-callback"

KINDS: dict[str, Check | None] = {
    **dict.fromkeys((*_OF_PLANNING.split(), *_OF_PARTITIONING.split())),
    "indivisible": indivisible,
    "sub-axis-removed": sub_axis_removed,
    "state-unlike-parameter": state_unlike_parameter,
    "unused-axis": unused_axis,
    "cut-along-scan": cut_along_scan,
    "costly-constraint": costly_constraint,
    "costly-reshard": costly_reshard,
    "host-transfer": host_transfers,
    "axis-lost-in-reshape": axis_lost_in_reshape,
    "batch-axis-lost": batch_axis_lost,
    "smaller-peak": smaller_peak,
    "replicated-large": replicated_large,
}
"""Kind of finding -> the check that reports it, in the order in which checks run; a later one skips paths that an earlier one reported."""

WEIGHED = frozenset(("batch-axis-lost", "costly-reshard", "cut-along-scan", "replicated-large", "state-unlike-parameter", "unused-axis"))
"""Kinds of shardings whose costs a planner weighs: of a planner's plan they are notes."""

_RANK = {"error": 0, "warning": 1, "info": 2}


def _is_weighed(finding: Finding, plan: PlanRecord) -> bool:
    """Whether a planner chose the sharding that a finding is about, and not propagation, and the finding does not say why."""
    if plan.search is not None and NOTHING in plan.search.space and finding.message.startswith(NOTHING):
        return False
    return plan.is_assigned or (plan.search is not None and any(finding.path == value.path for value in (*plan.inputs, *plan.outputs)))


def _weighed(finding: Finding) -> Finding:
    """A finding of a planner's plan: another sharding costs more, or none was reached that costs less, so that there is no advice."""
    return replace(finding, severity="info", message=f"{finding.message}; the planner weighed it", fix="")


@Analysis
@no_collection()
def observed_in(plan: PlanRecord) -> tuple[Findings, Mapping[object, Proposal]]:
    """The findings before fixes are tried, errors first, then warnings, then notes, each by bytes; and the fixes of some."""
    findings = plan.planning_findings if plan.partitioner is None else (*plan.planning_findings, *plan.partitioner.findings(plan))
    context = CheckContext(plan, list(findings))
    for kind, check in KINDS.items():
        if check is not None:
            reported = check(context)
            context.findings.extend(_weighed(each) if kind in WEIGHED and _is_weighed(each, plan) else each for each in reported)
    order = {kind: i for i, kind in enumerate(KINDS)}
    findings = sorted(context.findings, key=lambda f: (_RANK[f.severity], -f.bytes, order.get(f.kind, len(order))))
    return merged(findings, _causes(plan)), {} if plan.search is not None else context.proposals


def has_grave(plan: PlanRecord) -> bool:
    """Whether a plan has a warning; checks run only where they can find one: each needs values of `NOTABLE` bytes together.

    Two do not: what XLA's partitioner moves in a loop counts as often as it runs, and constraints cost a planner's step time.
    """
    own = plan.planning_findings if plan.partitioner is None else (*plan.planning_findings, *plan.partitioner.findings(plan))
    if any(finding.severity != "info" for finding in own):
        return True
    values = (*plan.inputs, *(result for op in plan.program.walk() for result in op.results))
    is_small = plan.active_partitioner is not None and plan.search is None and sum(value.type.bytes for value in values) < NOTABLE
    return not is_small and any(finding.severity != "info" for finding in observed_in(plan)[0])


@Analysis
@no_collection()
def findings_of(plan: PlanRecord) -> Findings:
    """The findings of a plan, the gravest first, with fixes that were tried: plans are made with them."""
    return with_fixes(plan, *observed_in(plan))


def _causes(plan: PlanRecord) -> dict[str, str]:
    """Path of a value -> path of the value that its sharding follows: of a donated argument, and of a state's parameter."""
    pairs = (*state_and_parameter(plan.inputs), *state_and_parameter(plan.outputs, plan.inputs))
    parameters = {state.path: parameter.path for state, parameter, _ in pairs}
    donated = ((plan.outputs[d.output].path, d.path) for d in plan.donation if d.output is not None)
    return parameters | {output: parameters.get(argument, argument) for output, argument in donated}


def accepted(findings: Iterable[Finding], ignore: str | Iterable[str]) -> Findings:
    """Drops the findings that a pattern names, `kind` or `kind:path` (`plan/paths`). Raises TypeError or ShardyError for any other.

    Example:
        >>> accepted([Finding("replicated-large", "...", "params['table']")], ["replicated-large:params*"])
        no findings
    """
    if not isinstance(ignore, Iterable):
        raise TypeError(f"ignore is {ignore!r}, a {type(ignore).__name__}; pass kinds of findings, such as ['unused-axis']")
    patterns = [_parsed(pattern) for pattern in ([ignore] if isinstance(ignore, str) else ignore)]

    def named(of: str, value: str) -> bool:
        return any(kind == of and (not colon or names_path(path, value)) for kind, colon, path in patterns)

    left = ((f, tuple(path for path in f.all_paths if not named(f.kind, path))) for f in findings)
    return Findings(f if paths == f.all_paths else replace(f, path=paths[0], paths=paths) for f, paths in left if paths)


def _parsed(pattern: object) -> tuple[str, str, str]:
    """Kind, colon and path of a pattern."""
    if not isinstance(pattern, str):
        raise TypeError(f"ignore holds {pattern!r}, a {type(pattern).__name__}; pass kinds of findings, such as ['unused-axis']")
    check_length(pattern, "ignore")
    kind, colon, path = pattern.partition(":")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        raise ShardyError(
            f"there is no finding of kind {kind!r}",
            where=f"ignore={pattern!r}",
            why=f"the kinds are {', '.join(KINDS)}",
            fix=f"did you mean {near[0]!r}?" if near else "use one of them",
        )
    return kind, colon, path

"""Fixes of findings: one that gives values another sharding is offered only if a plan with it is better in what the finding is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.verify import verify_sharding
from shardy_py.errors import ShardyError
from shardy_py.ir.types import local_bytes
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.collectives import format_bytes, received_by
from shardy_py.plan.executed import collectives_of
from shardy_py.plan.findings import Finding, Findings
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.record import PlanRecord

MAX_PLANS = 8
"""Plans that are made to try the fixes of one plan, those of the gravest findings first."""

MAX_OPS = 20_000
"""Ops that these plans have together: each takes as long as the plan itself."""

CONSTRAINT = "x = sp.with_sharding_constraint(x, {spec}) on it"
"""The fix for a value in between."""


Option = tuple[str, str, TensorSharding]
"""A fix: words, with `{spec}` for the sharding and `{size}` for the bytes that it leaves; the path of the value that gets it; it."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What may fix a finding: the first option with a better plan is offered, else `otherwise`; without either there is no finding."""

    options: Sequence[Option]
    is_better: Callable[[PlanRecord, PlanRecord], bool]
    otherwise: str | None = ""


def received(plan: PlanRecord) -> int:
    """Bytes that a device receives in a call."""
    return received_by(collectives_of(plan))


def peak(plan: PlanRecord) -> int:
    """Peak of a device's memory in bytes."""
    return memory_analysis.analyse(plan).peak_memory_in_bytes


def receives_less(after: PlanRecord, before: PlanRecord) -> bool:
    """Whether a device receives fewer bytes."""
    return received(after) < received(before)


def takes_less(after: PlanRecord, before: PlanRecord) -> bool:
    """Whether a device's memory peaks lower, by at least the bytes that it receives more."""
    return received(after) - received(before) <= peak(before) - peak(after) > 0


def costs_less(after: PlanRecord, before: PlanRecord) -> bool:
    """Whether a device receives fewer bytes or its memory peaks lower, and neither is more."""
    more = received(after) - received(before), peak(after) - peak(before)
    return max(more) <= 0 and min(more) < 0


def key_of(finding: Finding) -> object:
    """What distinguishes the findings of a plan, those that stand for several included."""
    return finding.kind, finding.path, finding.message


def with_fixes(plan: PlanRecord, findings: Sequence[Finding], proposals: Mapping[object, Proposal]) -> Findings:
    """Findings with the first of their fixes that helps."""
    left = 0 if plan.variants is None else min(MAX_PLANS, MAX_OPS // max(1, sum(1 for _ in plan.program.walk())))
    fixed: list[Finding] = []
    for finding in findings:
        proposal = proposals.get(key_of(finding))
        if proposal is None:
            fixed.append(finding)
            continue
        for text, path, sharding in proposal.options:
            targets = finding.all_paths if path == finding.path else (path,)
            if not all(_can_be_written(plan, target, sharding) for target in targets):
                continue
            note = "" if left else " (not tried)"
            if left and plan.variants is not None:
                left -= 1
                after = plan.variants.with_shardings(plan, dict.fromkeys(targets, sharding))
                if after is None or not proposal.is_better(after, plan):
                    continue
            size = format_bytes(local_bytes(plan.by_path[path][1].type, sharding, plan.program.meshes))
            fix = text.replace("{spec}", str(spec_text(sharding))).replace("{size}", size) + note
            fixed.append(replace(finding, fix=fix, targets=targets, sharding=sharding))
            break
        else:
            fixed += [] if proposal.otherwise is None else [replace(finding, fix=proposal.otherwise)]
    return Findings(fixed)


def _can_be_written(plan: PlanRecord, path: str, sharding: TensorSharding) -> bool:
    """Whether a `PartitionSpec` names the sharding, and its axes divide the dimensions of a value."""
    shape = plan.by_path[path][1].shape
    try:
        verify_sharding(sharding, shape, plan.mesh)
    except ShardyError:
        return False
    return spec_text(sharding) is not None and all(n % dim.shards(plan.mesh) == 0 for n, dim in zip(shape, sharding.dims))

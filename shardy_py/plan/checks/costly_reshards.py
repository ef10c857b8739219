"""Reshards that bring the whole value to every device, and constraints that avoid them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Literal, cast

from shardy_py.dialect import Mesh
from shardy_py.dialect.axis import sort_and_merge
from shardy_py.dialect.format import format_axis
from shardy_py.partition.xla_moves import is_involuntary
from shardy_py.passes.export.collective_bytes import reshard_bytes
from shardy_py.passes.export.collective_steps import CollectiveStep, collectives_for
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.phrases import more_text
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.checks.thresholds import GRAVE, NOTABLE, graded
from shardy_py.plan.executed import collectives_of
from shardy_py.plan.executed_reshards import origins_of, reshards_of
from shardy_py.plan.explicit import Origin
from shardy_py.plan.findings import Finding
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.values import named_value, typed
from shardy_py.rules import rule_of
from shardy_py.rules.traits import is_elementwise

KIND = "costly-reshard"

_TAKE_WHOLE = ("runs-whole", "whole-callback", "whole-dimension")


def costly_reshard(context: CheckContext) -> Iterator[Finding]:
    """Reshards for which XLA's partitioner replicates a value and cuts it again, and intermediates that are gathered whole.

    The first are what XLA warns of as "involuntary full rematerialization", `is_involuntary`, and ops that it runs whole between values
    that are cut alike; they are warnings from `GRAVE` bytes a call on. The second, from `GRAVE` bytes on, are notes. Under
    `lowering="shard_map"` there are only these, of the partitioned program.
    """
    plan = context.plan
    if plan.active_partitioner is not None:
        yield from _gathered(context)
        return
    groups: dict[tuple[object, ...], list[Reshard]] = {}
    for reshard, origin in zip(reshards_of(plan), origins_of(plan)):
        cause = None if origin is None else _cause(context, reshard, origin)
        if cause is not None:
            key = (cause, reshard.type, reshard.source, reshard.target, reshard.location, reshard.reason, reshard.trips)
            groups.setdefault(key, []).append(reshard)
    for (cause, *_), group in groups.items():
        yield _FINDINGS[cast(_Cause, cause)](context, group)


_Cause = Literal["involuntary", "runs whole", "gathered"]


def _cause(context: CheckContext, reshard: Reshard, origin: Origin) -> _Cause | None:
    """The kind of costly reshard, or None for a cheap one."""
    total = _total(reshard)
    if reshard.source is None or total < NOTABLE or all(step.kind != "all_gather" for step in reshard.collectives):
        return None
    if is_involuntary(reshard.type.shape, reshard.source, reshard.target, context.mesh):
        return "involuntary"
    if total < GRAVE:
        return None
    if origin.operand >= 0 and _stays_cut(origin, {axis.name for step in reshard.collectives for axis in step.axes}):
        return "runs whole"
    value = named_value(origin.value, context.plan.names)
    is_argument = value.owner is context.plan.program.main.body
    return None if is_argument or 2 * _moved(reshard) < context.local(reshard.type, None) else "gathered"


def _stays_cut(origin: Origin, axes: Set[str]) -> bool:
    """Whether the result is cut by the axes that an operand is gathered over, along a factor of the op's rule or, without one, in place."""
    op, source = origin.op, origin.op.operands[origin.operand].sharding
    rule = rule_of(op)
    if source is None or op.regions or op.name.startswith("sdy.") or is_elementwise(op.name):
        return False
    for result, value in enumerate(op.results):
        target = value.sharding
        if target is None:
            continue
        if rule is not None:
            before, after = rule.operand_mappings[origin.operand], rule.result_mappings[result]
            pairs = [(d, e) for d, factors in enumerate(before) for e, others in enumerate(after) if set(factors) & set(others)]
        else:
            pairs = [(d, d) for d in range(min(source.rank, target.rank))]
        for d, e in pairs:
            names = {axis.name for axis in source.dims[d].axes} & {axis.name for axis in target.dims[e].axes}
            if names & axes:
                return True
    return False


def _involuntary(context: CheckContext, group: Sequence[Reshard]) -> Finding:
    first = group[0]
    assert first.source is not None
    assert first.target is not None
    once, least = _moved(first), reshard_bytes(first.source, first.target, first.type, context.meshes)
    steps = collectives_for(first.source, first.target, first.type.shape, context.meshes)
    better = f"; as {', '.join(_step_text(step, context.mesh) for step in steps)} it would be {format_bytes(least)}" if least < once else ""
    message = (
        f"{_move(first)}: XLA replicates the value and cuts it again (involuntary full rematerialization), {format_bytes(once)} to each"
        f" device{_frequency(first)}{better}{more_text(len(group), 'like it')}"
    )
    total = _total(first)
    return Finding(KIND, message, first.value, first.location, graded(total), total, _two_steps(context, first, steps[:-1], least))


def _runs_whole(context: CheckContext, group: Sequence[Reshard]) -> Finding:
    first, total = group[0], _total(group[0])
    axes = [format_axis(axis) for step in first.collectives if step.kind == "all_gather" for axis in step.axes]
    message = (
        f"XLA runs {first.primitive} whole on every device and cuts its result again: {typed(first.type, first.source)} is gathered over"
        f" {','.join(axes)}, {format_bytes(total)} to each device in a call{more_text(len(group), 'like it')}"
    )
    pieces = "" if context.plan.partitioner is not None else f'lowering="shard_map" runs on the pieces what {first.primitive} can; or '
    fix = f"{pieces}cut a dimension that it does not work along"
    return Finding(KIND, message, first.value, first.location, graded(total), total, fix)


def _is_gathered(context: CheckContext, group: Sequence[Reshard]) -> Finding:
    first = group[0]
    steps = ", ".join(str(step) for step in first.collectives if step.kind != "all_reduce")
    size = f"{format_bytes(_moved(first))}{_frequency(first)}"
    message = f"{_move(first)}: {steps} brings most of the value to each device, {size}{more_text(len(group), 'like it')}"
    return Finding(KIND, message, first.value, first.location, "info", _total(first), _advice(first))


_FINDINGS: Mapping[_Cause, Callable[[CheckContext, Sequence[Reshard]], Finding]] = {
    "involuntary": _involuntary,
    "runs whole": _runs_whole,
    "gathered": _is_gathered,
}


def _total(reshard: Reshard) -> int:
    return _moved(reshard) * (reshard.trips or 1)


def _moved(reshard: Reshard) -> int:
    """Bytes that a device receives once, without those of a sum in front of the movement."""
    return sum(step.bytes_per_device for step in reshard.collectives if step.kind != "all_reduce")


def _move(reshard: Reshard) -> str:
    return f"{typed(reshard.type, reshard.source)} -> {typed(reshard.type, reshard.target)} ({reshard.reason})"


def _frequency(reshard: Reshard) -> str:
    return ", at each trip" if reshard.trips is None else f", {reshard.trips} times a call" if reshard.trips > 1 else ""


def _step_text(step: CollectiveStep, mesh: Mesh) -> str:
    axes = (*(axis for dim in step.axes for axis in dim), *(axis for move in step.moves for axis in move.axes))
    return f"{step.kind}({','.join(map(format_axis, sort_and_merge(axes, mesh)))})" if axes else step.kind


def _advice(reshard: Reshard) -> str:
    if not reshard.primitive or reshard.reason == "sharding constraint":
        return f"plan.explain({reshard.value!r}) says where its sharding comes from"
    return f"to compute on the pieces, constrain the result of {reshard.primitive}, or cut its other operands alike"


def _two_steps(context: CheckContext, reshard: Reshard, steps: Sequence[CollectiveStep], least: int) -> str:
    """A sharding between the two, from and to which XLA has collectives."""
    assert reshard.target is not None
    shape, mesh = reshard.type.shape, context.mesh
    for step in steps:
        if is_involuntary(shape, reshard.source, step.result, mesh) or is_involuntary(shape, step.result, reshard.target, mesh):
            continue
        text, target = spec_text(step.result), spec_text(reshard.target)
        if text is not None and target is not None:
            saved = f"{format_bytes(least)} in place of {format_bytes(_moved(reshard))}"
            if any(value.path == reshard.value for value in context.plan.inputs):
                return f"{reshard.value}: {text} in in_shardings or rules; at most {saved}"
            return f"in two steps, x = sp.with_sharding_constraint(sp.with_sharding_constraint(x, {text}), {target}); {saved}"
    return "" if context.plan.partitioner is not None else "lowering='shard_map' moves it without that"


def _gathered(context: CheckContext) -> Iterator[Finding]:
    """Collectives of the partitioned program that bring most of an intermediate to every device.

    Ops that the partitioner reported as taking whole operands are skipped.
    """
    locations_run_whole = {finding.location for finding in context.findings if finding.location and finding.kind in _TAKE_WHOLE}
    arguments = {"", *(value.path for value in context.plan.inputs)}
    for c in collectives_of(context.plan):
        total = c.call_bytes
        if c.kind != "all_gather" or total < GRAVE or c.location in locations_run_whole:
            continue
        if c.value in arguments:  # or a loop's slice of one, such as weights cut over the axis of the data
            continue
        operand, over = f"{c.dtype}[{','.join(map(str, c.shape))}]", ",".join(c.axes)
        asks = f" ({c.primitive})" if c.primitive else ""
        message = f"all_gather({over}) of {operand}{asks} brings {format_bytes(total)} to each device in a call"
        yield Finding(KIND, message, c.value, c.location, "info", total)

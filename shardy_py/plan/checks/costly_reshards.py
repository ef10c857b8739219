"""Reshards that bring the whole value to every device, and constraints that avoid them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardy_py.dialect import TensorSharding
from shardy_py.partition.xla_moves import is_involuntary
from shardy_py.passes.export.collective_steps import collectives_for
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.checks.thresholds import GRAVE, NOTABLE, graded
from shardy_py.plan.collectives import Collective
from shardy_py.plan.executed import collectives_of, explicit_of
from shardy_py.plan.explicit import Origin
from shardy_py.plan.findings import Finding
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.values import typed
from shardy_py.rules import rule_for
from shardy_py.rules.traits import is_elementwise

KIND = "costly-reshard"

_TAKE_WHOLE = ("runs-whole", "whole-callback", "whole-dimension")


def costly_reshard(context: CheckContext) -> Iterator[Finding]:
    """Reshards for which XLA's partitioner replicates a value and cuts it again, and intermediates that are gathered whole.

    The first are what XLA warns of as "involuntary full rematerialization", `is_involuntary`; they are warnings from `GRAVE` bytes a call
    on. The second, from `GRAVE` bytes on, are notes. Ops that XLA runs whole between values that are cut alike are found among the
    predicted collectives. Under `lowering="shard_map"` there are only the second, of the partitioned program.
    """
    if context.plan.source is not None:
        yield from _gathered(context)
        return
    planned = {value.path: value.sharding for value in context.plan.values}
    groups: dict[tuple[object, ...], list[Reshard]] = {}
    for reshard in context.plan.shardy_reshards:
        key = (reshard.type, reshard.source, reshard.target, reshard.location, reshard.reason, reshard.trips)
        groups.setdefault(key, []).append(reshard)
    costly: list[tuple[int, bool, list[Reshard]]] = []
    for group in groups.values():
        price, involuntary = _price(context, group[0], planned)
        total = price * (group[0].trips or 1)
        if total >= (NOTABLE if involuntary else GRAVE):
            costly.append((total, involuntary, group))
    for total, involuntary, group in costly:
        yield _finding(context, group, total, involuntary)
    yield from _round_trips(context, {(first.value, first.location) for _, _, (first, *_) in costly})


def _round_trips(context: CheckContext, reported: set[tuple[str, str]]) -> Iterator[Finding]:
    """Operands that XLA gathers over axes which cut the result in the same place: an op that it runs whole, and cuts again.

    As opposed to a weight that is cut over the axis of the data, which a product needs whole.
    """
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for transfer in explicit_of(context.plan).transfers:
        c, origin = transfer.collective, transfer.origin
        total = c.received_bytes * (c.trips or 1)
        if c.kind != "all_gather" or origin is None or origin.operand < 0 or total < GRAVE or (c.value, c.location) in reported:
            continue
        if not _is_kept_cut(origin, c.axes):
            continue
        groups.setdefault((c.location, c.primitive, c.dtype, c.shape, c.axes, c.trips), []).append(c)
    for group in groups.values():
        first = group[0]
        total = first.received_bytes * (first.trips or 1)
        more = f"; {len(group) - 1} more like it" if len(group) > 1 else ""
        operand, axes = f"{first.dtype}[{','.join(map(str, first.shape))}]", ",".join(first.axes)
        message = (
            f"XLA runs {first.primitive} whole on every device and cuts its result again: {operand} is gathered over {axes},"
            f" {format_bytes(total)} to each device in a call{more}"
        )
        fix = f'lowering="shard_map" runs on the pieces what {first.primitive} can; or cut a dimension that it does not work along'
        yield Finding(KIND, message, first.value, first.location, graded(total), total, fix)


def _is_kept_cut(origin: Origin, axes: tuple[str, ...]) -> bool:
    """Whether the result is cut by the axes that an operand is gathered over, along a factor of the op's rule or, without one, in place."""
    op, source = origin.op, origin.op.operands[origin.operand].sharding
    rule = op.rule if op.rule_decided else rule_for(op)
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
            if names.intersection(axis.partition(":")[0] for axis in axes):
                return True
    return False


def _price(context: CheckContext, reshard: Reshard, planned: dict[str, TensorSharding | None]) -> tuple[int, bool]:
    """Bytes that a device receives, once, and whether XLA replicates the value; 0 for what is not costly.

    XLA brings a value to the sharding that it has in the plan, and from there to that in which it is asked for.
    """
    kinds = {step.kind for step in reshard.collectives}
    if kinds & {"all_reduce", "reduce_scatter"} or reshard.source is None:
        return 0, False
    whole_bytes = context.local(reshard.type, None)
    between = planned.get(reshard.value, reshard.source)
    shape = reshard.type.shape
    if is_involuntary(shape, reshard.source, between, context.mesh) or is_involuntary(shape, between, reshard.target, context.mesh):
        return whole_bytes - context.local(reshard.type, reshard.source), True
    named_input = not reshard.value.startswith("%")
    if named_input or "all_gather" not in kinds or 2 * reshard.bytes_per_device < whole_bytes:
        return 0, False
    return reshard.bytes_per_device, False


def _finding(context: CheckContext, group: list[Reshard], total: int, involuntary: bool) -> Finding:
    first = group[0]
    once = total // (first.trips or 1)
    steps = ", ".join(map(str, first.collectives))
    frequency = ", at each trip" if first.trips is None else f", {first.trips} times a call" if first.trips > 1 else ""
    more = f"; {len(group) - 1} more like it" if len(group) > 1 else ""
    move = f"{typed(first.type, first.source)} -> {typed(first.type, first.target)} ({first.reason})"
    if involuntary:
        better = f"; as {steps} it would be {format_bytes(first.bytes_per_device)}" if first.bytes_per_device < once else ""
        message = (
            f"{move}: XLA replicates the value and cuts it again (involuntary full rematerialization), {format_bytes(once)} to each"
            f" device{frequency}{better}{more}"
        )
    else:
        message = f"{move}: {steps} brings most of the value to each device, {format_bytes(once)}{frequency}{more}"
    fix = _two_steps(context, first, once) if involuntary else _kept_cut(first)
    severity = graded(total) if involuntary else "info"
    return Finding(KIND, message, first.value, first.location, severity, total, fix)


def _kept_cut(reshard: Reshard) -> str:
    if not reshard.primitive or reshard.reason == "sharding constraint":
        return f"plan.explain({reshard.value!r}) says where its sharding comes from"
    return f"to compute on the pieces, constrain the result of {reshard.primitive}, or cut its other operands alike"


def _two_steps(context: CheckContext, reshard: Reshard, price: int) -> str:
    """A sharding between the two, from and to which XLA has collectives."""
    assert reshard.source is not None
    assert reshard.target is not None
    shape = reshard.type.shape
    for step in collectives_for(reshard.source, reshard.target, shape, context.meshes)[:-1]:
        if is_involuntary(shape, reshard.source, step.result, context.mesh) or is_involuntary(
            shape, step.result, reshard.target, context.mesh
        ):
            continue
        text, target = spec_text(step.result), spec_text(reshard.target)
        if text is not None and target is not None:
            saved = f"{format_bytes(reshard.bytes_per_device)} in place of {format_bytes(price)}"
            if any(value.path == reshard.value for value in context.plan.inputs):
                return f"{reshard.value}: {text} in in_shardings or rules; at most {saved}"
            return f"in two steps, x = sp.with_sharding_constraint(sp.with_sharding_constraint(x, {text}), {target}); {saved}"
    return "lowering='shard_map' moves it without that"


def _is_end_of_sum(first: Collective, second: Collective) -> bool:
    """Whether two collectives are a sum of bfloat16 on CPU: parts are exchanged in their bits, added up, and gathered in their bits."""
    if (first.kind, second.kind) != ("all_to_all", "all_gather") or not first.dtype == second.dtype == "uint16":
        return False
    return (first.axes, first.location) == (second.axes, second.location) and math.prod(first.shape) == math.prod(
        second.shape
    ) * second.group_size


def _gathered(context: CheckContext) -> Iterator[Finding]:
    """Collectives of the partitioned program that bring most of an intermediate to every device; one per line and kind.

    Ops that the partitioner reported as taking whole operands are skipped.
    """
    locations_run_whole = {finding.location for finding in context.findings if finding.location and finding.kind in _TAKE_WHOLE}
    arguments = {"", *(value.path for value in context.plan.inputs)}
    groups: dict[tuple[object, ...], tuple[int, int, str]] = {}
    before: Collective | None = None
    for c in collectives_of(context.plan):
        adds, before = before is not None and _is_end_of_sum(before, c), c
        if adds:
            continue
        total = c.received_bytes * (c.trips or 1)
        if c.kind != "all_gather" or total < GRAVE or c.location in locations_run_whole:
            continue
        if c.value in arguments:  # or a loop's slice of one, such as weights cut over the axis of the data
            continue
        key = (c.location, c.primitive, c.dtype, c.shape, c.axes, c.trips)
        count, _, name = groups.get(key, (0, 0, c.value))
        groups[key] = (count + 1, total, name)
    for (location, primitive, dtype, shape, axes, _), (count, total, name) in groups.items():
        more = f"; {count - 1} more like it" if count > 1 else ""
        operand = f"{dtype}[{','.join(map(str, shape))}]"  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
        over = ",".join(axes)  # pyright: ignore[reportArgumentType, reportCallIssue]
        asks = f" ({primitive})" if primitive else ""
        message = f"all_gather({over}) of {operand}{asks} brings {format_bytes(total)} to each device in a call{more}"
        yield Finding(KIND, message, name, str(location), "info", total)

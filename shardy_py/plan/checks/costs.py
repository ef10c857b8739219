"""Movements of data that cost much, and ops that receive whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Literal, cast

from shardy_py.cost.hardware_table import HARDWARE
from shardy_py.cost.liveness.placement import placed_in
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import sort_and_merge
from shardy_py.dialect.format import format_axis, short_location
from shardy_py.ir import Op, Value
from shardy_py.partition.xla_moves import is_involuntary
from shardy_py.passes.dataflow import WHILE
from shardy_py.passes.export.collective_bytes import reshard_bytes
from shardy_py.passes.export.collective_steps import CollectiveStep, collectives_for
from shardy_py.plan import costing
from shardy_py.plan.checks.context import CheckContext, is_replicated
from shardy_py.plan.checks.fixes import Proposal, receives_less
from shardy_py.plan.checks.specs import spec_text, with_axes_on
from shardy_py.plan.checks.wording import GRAVE, NOTABLE, graded, more_text
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.executed import collectives_of, origins_of, reshards_of
from shardy_py.plan.explicit import Origin
from shardy_py.plan.findings import Finding
from shardy_py.plan.in_place import BODIES
from shardy_py.plan.jit_program import jit_program_of
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.values import location_of, named_value, typed
from shardy_py.rules import rule_of
from shardy_py.rules.traits import is_elementwise

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
    fix = _two_steps(context, first, steps[:-1], least)
    return Finding("costly-reshard", message, first.value, first.location, graded(total), total, fix)


def _runs_whole(context: CheckContext, group: Sequence[Reshard]) -> Finding:
    first, total = group[0], _total(group[0])
    axes = [format_axis(axis) for step in first.collectives if step.kind == "all_gather" for axis in step.axes]
    message = (
        f"XLA runs {first.primitive} whole on every device and cuts its result again: {typed(first.type, first.source)} is gathered over"
        f" {','.join(axes)}, {format_bytes(total)} to each device in a call{more_text(len(group), 'like it')}"
    )
    pieces = "" if context.plan.partitioner is not None else f'lowering="shard_map" runs on the pieces what {first.primitive} can; or '
    fix = f"{pieces}cut a dimension that it does not work along"
    return Finding("costly-reshard", message, first.value, first.location, graded(total), total, fix)


def _is_gathered(context: CheckContext, group: Sequence[Reshard]) -> Finding:
    first = group[0]
    steps = ", ".join(str(step) for step in first.collectives if step.kind != "all_reduce")
    size = f"{format_bytes(_moved(first))}{_frequency(first)}"
    message = f"{_move(first)}: {steps} brings most of the value to each device, {size}{more_text(len(group), 'like it')}"
    return Finding("costly-reshard", message, first.value, first.location, "info", _total(first), _advice(first))


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
        yield Finding("costly-reshard", message, c.value, c.location, "info", total)


def costly_constraint(context: CheckContext) -> Iterator[Finding]:
    """Constraints that together cost more than a tenth of a planner's step, with the lines that cost most."""
    search = context.plan.search
    if search is None or not search.constraint_prices:
        return
    together, *lines = search.constraint_prices
    without = search.objective_seconds - together.seconds
    named = "".join(f"; {line.path} as {line.spec} alone {seconds_text(line.seconds)}" for line in lines)
    step = seconds_text(search.objective_seconds)
    message = (
        f"constraints inside cost {seconds_text(together.seconds)} of the step of {step}: about {seconds_text(without)} without{named}"
    )
    fix = (
        'drop these lines, or plan without them: Planner(annotations="ignore"), or "hint", which starts from them; names of dimensions'
        " become None, which is whole, where no rules are in force"
    )
    yield Finding("costly-constraint", message, location=lines[0].path if lines else "", fix=fix)


_MACHINES = {"tpu": "v5p", "cuda": "h100", "rocm": "mi300x"}
"""Platform -> the hardware by which time is told, where no planner names it."""


def host_transfers(context: CheckContext) -> Iterator[Finding]:
    """Moves between the host and the devices, from `NOTABLE` bytes on, that take longer than all else in a step, which cannot hide them."""
    plan = context.plan
    machine = plan.search.hardware if plan.search is not None and plan.search.hardware in HARDWARE else _MACHINES.get(plan.platform)
    if machine is None or not any(placed_in(op) for op, _ in context.ops):
        return
    cost = costing.analyse(plan, machine)
    moves = [op for op in cost.ops if op.host_bytes]
    seconds = sum(op.seconds or 0.0 for op in moves)
    others = (cost.compute_seconds or 0.0) - seconds + (cost.communication_seconds or 0.0)
    if cost.host_bytes < NOTABLE or seconds <= others:
        return
    largest = max(moves, key=lambda op: op.host_bytes)
    moved = f"{format_bytes(int(cost.host_bytes))} between the host and each device"
    message = (
        f"the step moves {moved}, {seconds_text(seconds)} over the link of {machine}, and all else takes {seconds_text(others)}, too little"
        f" to hide it{more_text(len(moves), 'such moves')}"
    )
    fix = "keep on the devices what fits there (plan.memory_analysis), or do more in a step for each move, as with a larger batch"
    yield Finding("host-transfer", message, largest.value, largest.location, graded(int(cost.host_bytes)), int(cost.host_bytes), fix)


_SLICE = "stablehlo.dynamic_slice"


def cut_along_scan(context: CheckContext) -> Iterator[Finding]:
    """Stacks cut along the dimension that a scan reads slice by slice: the whole stack is sent.

    As layers that are stacked for a scan and cut by a rule that was meant for the dimensions of one layer. One finding per stack, for the
    first scan that reads it, from `NOTABLE` gathered bytes on.
    """
    reported: set[Value] = set()
    for op, manual in context.ops:
        if op.name != _SLICE or manual:
            continue
        source = op.operands[0]
        outside, loop = _in_front_of_scan(source)
        described = None if loop is None else context.described.get(outside)
        d = _sliced_dimension(op)
        if described is None or loop is None or d is None or source.sharding is None or outside in reported:
            continue
        cut = source.sharding.dims[d]
        size = context.local(source.type, source.sharding) * (cut.shards(context.mesh) - 1)
        if size < NOTABLE:
            continue
        reported.add(outside)
        axes = ", ".join(repr(format_axis(axis)) for axis in cut.axes)
        where = location_of(context.plan.program, loop)
        line, text = short_location(where), typed(source.type, source.sharding)
        message = (
            f"{text} is cut over {axes} along dimension {d}, along which the scan at {line} runs: a step needs a slice that other devices"
            f" have, and all of it is gathered, {format_bytes(size)} to each device"
        )
        place = "in in_shardings or rules" if described.kind == "input" else "by sp.with_sharding_constraint"
        fix = f"cut another dimension: {described.path}: {{spec}} {place}"
        finding = Finding("cut-along-scan", message, described.path, where, graded(size), size)
        context.propose(finding, Proposal([(fix, described.path, other) for other in _along_others(source, d, context)], receives_less))
        yield finding


def _in_front_of_scan(value: Value) -> tuple[Value, Op | None]:
    """Follows an argument of bodies to the value outside of them; also the innermost loop, if that is a scan."""
    loop: Op | None = None
    while value.defining_op is None:
        block = value.owner
        parent = getattr(block, "parent", None)
        if not isinstance(parent, Op) or parent.name not in BODIES or value.index >= len(parent.operands):
            break
        loop = parent if loop is None and parent.name == WHILE else loop
        value = parent.operands[value.index]
    return value, loop if loop is not None and loop.primitive == "scan" else None


def _sliced_dimension(op: Op) -> int | None:
    """The sharded dimension along which a slice has one element, or None."""
    source, result = op.operands[0], op.results[0]
    dims = () if source.sharding is None else source.sharding.dims
    return next((d for d, dim in enumerate(dims) if dim.axes and result.type.shape[d] == 1 and source.type.shape[d] > 1), None)


def _along_others(value: Value, d: int, context: CheckContext) -> list[TensorSharding]:
    """Moves the axes of dimension `d` to each of the others, that with the longest pieces first."""
    sharding, shape = value.sharding, value.type.shape
    assert sharding is not None
    others = [e for e in range(len(shape)) if e != d]
    others.sort(key=lambda e: -shape[e] // sharding.dims[e].shards(context.mesh))
    return [with_axes_on(sharding, [axis.name for axis in sharding.dims[d].axes], e) for e in others]


OPAQUE = frozenset(("stablehlo.custom_call", "stablehlo.composite"))
"""Ops with contents that propagation does not see."""


def opaque(context: CheckContext) -> Iterator[Finding]:
    """Kernels, callbacks and the like without a sharding rule whose operands are sharded; one finding per source line and primitive.

    Under `lowering="shard_map"` the partitioner says what it runs whole.
    """
    if context.plan.active_partitioner is not None:
        return
    groups: dict[tuple[str, str], tuple[int, int, str]] = {}
    for op, manual in context.ops:
        if op.name not in OPAQUE or op.rule is not None or manual:
            continue
        size = sum(
            context.local(value.type, None) - context.local(value.type, value.sharding)
            for value in op.operands
            if value.type.rank and not is_replicated(value.sharding)
        )
        if size:
            place = _place(op, context)
            count, most, first = groups.get(
                place, (0, 0, next((context.described[r].path for r in op.results if r in context.described), ""))
            )
            groups[place] = (count + 1, max(most, size), first)
    reported = {finding.location for finding in context.findings if finding.kind in ("no-rule", "jit-lowering")}
    for (location, name), (count, size, path) in groups.items():
        if location and location in reported:
            continue
        more = f", {count} times on this line" if count > 1 else ""
        message = f"{name} has no sharding rule: its operands are brought to every device whole, {format_bytes(size)} to each{more}"
        fix = 'say how it propagates: @sp.sharding_rule("b i, i o -> b o"), or like= a function of JAX'
        fix = "give it the mesh that is planned for" if name == "shard_map" else fix
        yield Finding("opaque", message, path, location, graded(size), size, fix)


def _place(op: Op, context: CheckContext) -> tuple[str, str]:
    described = next((context.described[result] for result in op.results if result in context.described), None)
    name = op.primitive or str(op.attributes.get("call_target_name", op.name))
    if described is not None:
        return described.location, name
    where = context.plan.program.locate(op.location)
    return ("" if where is None else where.place), name


def left_to_xla(context: CheckContext) -> Iterator[Finding]:
    """The largest value that XLA will shard differently from the plan, and how many more there are; see `plan/jit_program`.

    There are none where the plan is run: under `lowering="shard_map"`, without conflicts, or where holding XLA to it moves notably less.
    """
    if context.plan.active_partitioner is not None or jit_program_of(context.plan).follows_plan:
        return
    described = context.described
    differing: dict[Value, Value] = {}
    for as_run, planned in jit_program_of(context.plan).lineage.values.items():
        if planned in described and _cuts(as_run) != _cuts(planned):
            differing.setdefault(planned, as_run)
    sizes = {v: max(context.local(v.type, v.sharding), context.local(v.type, w.sharding)) for v, w in differing.items()}
    largest = max(sizes, key=sizes.__getitem__, default=None)
    if largest is None or sizes[largest] < NOTABLE:
        return
    value, as_run = described[largest], differing[largest]
    more = f"; {len(differing) - 1} more values differ" if len(differing) > 1 else ""
    message = (
        f"planned as {typed(value.type, value.sharding)}, and XLA is expected to run it as {typed(value.type, as_run.sharding)}: shardings"
        f" conflict there, and holding XLA to the plan would not move notably less{more}"
    )
    fix = "" if context.plan.partitioner is not None else "lowering='shard_map' runs what is planned"
    yield Finding("left-to-xla", message, value.path, value.location, "info", sizes[largest], fix)


def _cuts(value: Value) -> tuple[object, ...]:
    rank = getattr(value.type, "rank", 0)
    dims = () if value.sharding is None else tuple(dim.axes for dim in value.sharding.dims)
    return (*dims, *[()] * (rank - len(dims)))


LARGE = 1 << 30
"""1 GiB: stacks of scans from which a memory analysis and plans of variants run; both take longer than all checks."""


def smaller_peak(context: CheckContext) -> Iterator[Finding]:
    """Changes that would lower the peak, for plans whose scans stack up `LARGE` bytes and more.

    Where it should fit, which is not known here, `plan.memory_analysis(hardware).findings` has more to say.
    """
    stacked = 0
    for op, manual in context.ops:
        if op.name == WHILE and op.primitive == "scan" and not manual:
            stacked += sum(context.local(value.type, value.sharding) for value in op.results)
    if stacked >= LARGE:
        yield from memory_analysis.analyse(context.plan).findings

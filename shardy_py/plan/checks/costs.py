"""Movements of data that cost much, and ops that receive whole arrays."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.cost.hardware_table import HARDWARE
from shardy_py.cost.liveness.placement import placed_in
from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_axis, short_location
from shardy_py.ir import Op, Value
from shardy_py.passes.dataflow import WHILE
from shardy_py.plan import costing
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.fixes import Proposal, receives_less
from shardy_py.plan.checks.specs import with_axes_on
from shardy_py.plan.checks.wording import GRAVE, NOTABLE, graded, more_text
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.executed import collectives_of
from shardy_py.plan.findings import Finding
from shardy_py.plan.in_place import BODIES
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.values import location_of, typed

_TAKE_WHOLE = ("runs-whole", "whole-callback", "whole-dimension")


def costly_reshard(context: CheckContext) -> Iterator[Finding]:
    """Collectives of the partitioned program that bring most of an intermediate to every device.

    Ops that the partitioner reported as taking whole operands are skipped, and collectives that run beside products.
    """
    locations_run_whole = {finding.location for finding in context.findings if finding.location and finding.kind in _TAKE_WHOLE}
    arguments = {"", *(value.path for value in context.plan.inputs)}
    for c in collectives_of(context.plan):
        total = c.call_bytes
        if c.kind != "all_gather" or c.overlapped or total < GRAVE or c.location in locations_run_whole:
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
        'drop these lines, or plan without them: Planner(annotations="ignore"), or "hint", which starts from them; without rules in'
        " force, names of dimensions become None, which replicates"
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
    fix = "keep on the devices what fits there (plan.memory_analysis), or compute more per transfer, as with a larger batch"
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
            f"{text} is sharded over {axes} along dimension {d}, along which the scan at {line} runs: each step needs a slice that other"
            f" devices hold, so all of it is gathered, {format_bytes(size)} to each device"
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

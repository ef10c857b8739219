"""Stacks that are cut along the dimension that a scan runs along."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_axis, short_location
from shardy_py.ir import Op, Value
from shardy_py.passes.dataflow import WHILE
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.fixes import Proposal, receives_less
from shardy_py.plan.checks.specs import with_axes_on
from shardy_py.plan.checks.thresholds import NOTABLE, graded
from shardy_py.plan.findings import Finding
from shardy_py.plan.in_place import BODIES
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.values import location_of, typed

KIND = "cut-along-scan"

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
        finding = Finding(KIND, message, described.path, where, graded(size), size)
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

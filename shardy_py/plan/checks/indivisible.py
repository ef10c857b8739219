"""Dimensions that the axes on them do not divide: cut down where arrays enter and leave, padded in between."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Value
from shardy_py.passes.export import update_non_divisible_input_output_shardings as non_divisible
from shardy_py.plan.checks.specs import nearest
from shardy_py.plan.checks.thresholds import NOTABLE, PADDED, graded
from shardy_py.plan.checks.view import PlanView
from shardy_py.plan.findings import Finding, Severity
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.values import PlannedValue, typed

KIND = "indivisible"


def indivisible(view: PlanView) -> Iterator[Finding]:
    """Axes that arguments and results lost because they do not divide a dimension, and intermediates that are padded much.

    The first are in the log of the propagation, so they are not known of a plan without provenance.
    """
    arguments = dict(zip(view.plan.program.main.arguments, view.plan.inputs))
    results: dict[Value, list[PlannedValue]] = {}
    for value, output in zip(view.plan.program.main.body.terminator.operands, view.plan.outputs):
        results.setdefault(value, []).append(output)
    told: set[str] = set()
    for step in view.plan.log:
        if step.reason != non_divisible.REASON or step.old is None:
            continue
        known = [arguments[step.target]] if step.op is None and step.target in arguments else results.get(step.target, [])
        for value in known:
            if value.path not in told:
                told.add(value.path)
                yield from _cut(view, value, step.old)
    yield from _padded(view)


def _cut(view: PlanView, value: PlannedValue, wanted: TensorSharding) -> Iterator[Finding]:
    size = view.held(value)
    severity: Severity = "warning" if _is_asked(value, wanted) else graded(size)
    if severity == "info" and size < NOTABLE:
        return
    for d, (n, dim) in enumerate(zip(value.shape, wanted.dims)):
        ways = dim.shards(view.mesh)
        if n % ways == 0:
            continue
        message = (
            f"dimension {d} of size {n} is no multiple of {ways} ({_sizes(dim.axes, view)}), so it is not cut as"
            f" {typed(value.type, wanted)} says: it is {typed(value.type, value.sharding)}, {format_bytes(size)} on each device"
        )
        yield Finding(KIND, message, value.path, "", severity, size, _fix(view, d, n, ways))


def _is_asked(value: PlannedValue, wanted: TensorSharding) -> bool:
    """Whether the user asked for what was cut."""
    return value.given is not None and value.given.are_dim_axes_equal(wanted)


def _sizes(axes: tuple[AxisRef, ...], view: PlanView) -> str:
    return " x ".join(f"{format_axis(axis)}={axis.size_in(view.mesh)}" for axis in axes)


def _fix(view: PlanView, d: int, n: int, ways: int) -> str:
    fits = [name for name, size in view.mesh.shape.items() if size > 1 and size != ways and n % size == 0]
    also = f", or cut it over {' or '.join(map(repr, fits))} alone, which divides {n}" if fits else ""
    return f"make dimension {d} {nearest(n, ways)}{also}"


def _padded(view: PlanView) -> Iterator[Finding]:
    """One finding per size of dimension and axes."""
    known: dict[tuple[TensorSharding, tuple[int, ...]], bool] = {}
    groups: dict[tuple[int, tuple[AxisRef, ...]], list[tuple[Value, int]]] = {}
    for op, _ in view.ops:
        for value in op.results:
            sharding = value.sharding
            if sharding is None or not value.type.rank:
                continue
            key = (sharding, value.type.shape)
            even = known.get(key)
            if even is None:
                even = known[key] = all(n % dim.shards(view.mesh) == 0 for n, dim in zip(value.type.shape, sharding.dims))
            if even or view.local(value.type, sharding) < NOTABLE:
                continue
            for d, (n, dim) in enumerate(zip(value.type.shape, sharding.dims)):
                ways = dim.shards(view.mesh)
                if n % ways and math.ceil(n / ways) * ways >= n * (1 + PADDED):
                    groups.setdefault((n, dim.axes), []).append((value, d))
    for (n, axes), values in groups.items():
        listed = [entry for entry in values if entry[0] in view.described]
        if not listed:
            continue
        value, d = max(listed, key=lambda entry: view.local(entry[0].type, entry[0].sharding))
        described = view.described[value]
        ways = num_shards(axes, view.mesh)
        size = view.held(described)
        padded = math.ceil(n / ways) * ways
        more = f", as in {len(listed) - 1} more values" if len(listed) > 1 else ""
        part = 100 * (padded - n) / padded
        message = (
            f"dimension {d} of size {n} is cut {ways} ways ({_sizes(axes, view)}), as if it were {padded}: {part:.0f} % of"
            f" {typed(described.type, described.sharding)} of {described.primitive}, {format_bytes(size)} on each device, is padding{more}"
        )
        yield Finding(KIND, message, described.path, described.location, "info", size, _fix(view, d, n, ways))

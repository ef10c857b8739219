"""Dimensions that the axes on them do not divide: cut down where arrays enter and leave, padded in between."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Value
from shardy_py.passes.export import update_non_divisible_input_output_shardings as non_divisible
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.specs import nearest
from shardy_py.plan.checks.thresholds import NOTABLE, PADDED, graded
from shardy_py.plan.findings import Finding, Severity
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.values import PlannedValue, typed

KIND = "indivisible"


def indivisible(context: CheckContext) -> Iterator[Finding]:
    """Axes that arguments and results lost because they do not divide a dimension, and intermediates that are padded much."""
    reported: set[str] = set()
    for value, uncut in context.cut_values(non_divisible.REASON):
        if value.path not in reported:
            reported.add(value.path)
            yield from _cut(context, value, uncut)
    yield from _padded(context)


def _cut(context: CheckContext, value: PlannedValue, uncut: TensorSharding) -> Iterator[Finding]:
    size = context.bytes_of(value)
    severity: Severity = "warning" if _is_requested(value, uncut) else graded(size)
    if severity == "info" and size < NOTABLE:
        return
    for d, (n, dim) in enumerate(zip(value.shape, uncut.dims)):
        shards = dim.shards(context.mesh)
        if n % shards == 0:
            continue
        message = (
            f"dimension {d} of size {n} is no multiple of {shards} ({_sizes(dim.axes, context)}), so it is not cut as"
            f" {typed(value.type, uncut)} says: it is {typed(value.type, value.sharding)}, {format_bytes(size)} on each device"
        )
        yield Finding(KIND, message, value.path, "", severity, size, _fix(context, d, n, uncut))


def _is_requested(value: PlannedValue, sharding: TensorSharding) -> bool:
    """Whether the user requested the sharding that was cut."""
    return value.given is not None and value.given.are_dim_axes_equal(sharding)


def _sizes(axes: tuple[AxisRef, ...], context: CheckContext) -> str:
    return " x ".join(f"{format_axis(axis)}={axis.size_in(context.mesh)}" for axis in axes)


def _fix(context: CheckContext, d: int, n: int, sharding: TensorSharding) -> str:
    shards = sharding.dims[d].shards(context.mesh)
    taken = {axis.name for e, dim in enumerate(sharding.dims) if e != d for axis in dim.axes}
    fits = [name for name, size in context.mesh.shape.items() if size > 1 and size != shards and n % size == 0 and name not in taken]
    also = f"cut it over {' or '.join(map(repr, fits))} alone, which divides {n}" if fits else ""
    return ", or ".join(filter(None, (f"make dimension {d} {nearest(n, shards)}" if n > 1 else "", also)))


def _padded(context: CheckContext) -> Iterator[Finding]:
    """One finding per size of dimension and axes."""
    is_even: dict[tuple[TensorSharding, tuple[int, ...]], bool] = {}
    groups: dict[tuple[int, tuple[AxisRef, ...]], list[tuple[Value, int]]] = {}
    for op, _ in context.ops:
        for value in op.results:
            sharding = value.sharding
            if sharding is None or not value.type.rank:
                continue
            key = (sharding, value.type.shape)
            even = is_even.get(key)
            if even is None:
                even = is_even[key] = all(n % dim.shards(context.mesh) == 0 for n, dim in zip(value.type.shape, sharding.dims))
            if even or context.local(value.type, sharding) < NOTABLE:
                continue
            for d, (n, dim) in enumerate(zip(value.type.shape, sharding.dims)):
                shards = dim.shards(context.mesh)
                if n % shards and math.ceil(n / shards) * shards >= n * (1 + PADDED):
                    groups.setdefault((n, dim.axes), []).append((value, d))
    for (n, axes), values in groups.items():
        listed = [entry for entry in values if entry[0] in context.described]
        if not listed:
            continue
        value, d = max(listed, key=lambda entry: context.local(entry[0].type, entry[0].sharding))
        described = context.described[value]
        shards = num_shards(axes, context.mesh)
        size = context.bytes_of(described)
        padded = math.ceil(n / shards) * shards
        more = f", as in {len(listed) - 1} more values" if len(listed) > 1 else ""
        part = 100 * (padded - n) / padded
        message = (
            f"dimension {d} of size {n} is cut {shards} ways ({_sizes(axes, context)}), as if it were {padded}: {part:.0f} % of"
            f" {typed(described.type, described.sharding)} of {described.primitive}, {format_bytes(size)} on each device, is padding{more}"
        )
        assert described.sharding is not None
        yield Finding(KIND, message, described.path, described.location, "info", size, _fix(context, d, n, described.sharding))

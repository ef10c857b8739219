"""Mesh axes that cut nothing: the devices along them all do the same."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.dialect import AxisRef, DimensionSharding, TensorSharding
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, manual_axes
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.phrases import annotation_of
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.findings import Finding
from shardy_py.plan.values import PlannedValue

KIND = "unused-axis"

NOTHING = "nothing is sharded"
"""Beginning of the message where no axis is used."""


def unused_axis(context: CheckContext) -> Iterator[Finding]:
    """Axes larger than one that no value uses, where inputs and outputs together take `NOTABLE` bytes or more."""
    if sum(context.bytes_of(value) for value in (*context.plan.inputs, *context.plan.outputs)) < NOTABLE:
        return
    used = _used(context)
    unused = [name for name, size in context.mesh.shape.items() if size > 1 and name not in used]
    if not unused:
        return
    largest = sorted(context.plan.inputs or context.plan.outputs, key=lambda value: (-context.bytes_of(value), value.path))
    if not used:
        examples = [text for value in largest[:1] for name in unused if (text := _example(context, value, name))]
        message = f"{NOTHING}: all {context.mesh.size} devices do the same"
        if any(value.shape for value in largest):
            fix = "say where to begin, " + (examples[0] if examples else "with in_shardings, rules or a constraint")
            yield Finding(KIND, message, fix=fix)
        return
    if all(len(value.shape) < 2 for value in context.plan.inputs):
        return  # an init function of a key: the axis is for the data of the step
    for name in unused:
        n = context.mesh.shape[name]
        fitting = next((text for value in largest if (text := _example(context, value, name))), "")
        fix = fitting or f"no dimension of an argument is free and a multiple of {n}; make the axis smaller, or constrain an intermediate"
        message = f"mesh axis {name!r} of size {n} cuts nothing: the {n} devices along it do the same"
        yield Finding(KIND, message, fix=fix)


def _used(context: CheckContext) -> set[str]:
    """Names of the axes in any sharding."""
    shardings: dict[TensorSharding | None, None] = {}
    names: set[str] = set()
    for value in (*context.plan.inputs, *context.plan.outputs):
        shardings[value.sharding] = None
    for op, _ in context.ops:
        for result in op.results:
            shardings[result.sharding] = None
        if op.name == MANUAL_COMPUTATION:
            names.update(manual_axes(op))
    for sharding in shardings:
        if sharding is not None:
            names.update(axis.name for dim in sharding.dims for axis in dim.axes)
            names.update(axis.name for axis in sharding.unreduced)
    return names


def _example(context: CheckContext, value: PlannedValue, name: str) -> str:
    """A spec that would use the axis on a value; empty where it does not fit."""
    dims = list(value.sharding.dims[: len(value.shape)]) if value.sharding is not None else [DimensionSharding()] * len(value.shape)
    shards = [dim.shards(context.mesh) for dim in dims]
    fitting = [d for d, n in enumerate(value.shape) if n and n % (shards[d] * context.mesh.shape[name]) == 0]
    if not fitting:
        return ""
    best = max(fitting, key=lambda d: (value.shape[d] // shards[d], -d))
    dims[best] = dims[best].sharded(AxisRef(name))
    text = spec_text(TensorSharding("mesh", dims))
    return f"for example {value.path}: {text} in {annotation_of(value)}" if text is not None else ""

"""Mesh axes that cut nothing: the devices along them all do the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from shardy_py.dialect import DimensionSharding, TensorSharding
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, manual_axes
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.fixes import Proposal, takes_less
from shardy_py.plan.checks.optimizer_state import state_and_parameter
from shardy_py.plan.checks.phrases import annotation_of
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.findings import Finding
from shardy_py.plan.search import NOTHING
from shardy_py.plan.values import PlannedValue

KIND = "unused-axis"

SMALL = "plan the sizes that will run, for what they will run on (Planner(hardware=...)), or say what to cut (in_shardings, rules)"
"""What to do about a step that no planner shards."""

MAX_EXAMPLES = 4
"""Shardings that are tried, of the largest values first."""


def unused_axis(context: CheckContext) -> Iterator[Finding]:
    """Axes larger than one that no value uses, where inputs and outputs together take `NOTABLE` bytes or more.

    Where a planner shards nothing, a note of any size says why.
    """
    search = context.plan.search
    if search is not None and NOTHING in search.space:
        yield Finding(KIND, f"{NOTHING}: {search.space[NOTHING]}", severity="info", fix=SMALL)
        return
    if sum(context.bytes_of(value) for value in (*context.plan.inputs, *context.plan.outputs)) < NOTABLE:
        return
    used = _used(context)
    unused = [name for name, size in context.mesh.shape.items() if size > 1 and name not in used]
    if not unused:
        return
    follows = {state.path for state, _, _ in state_and_parameter(context.plan.inputs)}
    ends = context.plan.inputs or context.plan.outputs
    largest = sorted(ends, key=lambda value: (value.path in follows, -context.bytes_of(value), value.path))
    if not used:
        message = f"{NOTHING}: all {context.mesh.size} devices do the same"
        fix = "say where to begin, with in_shardings, rules or a constraint"
        if any(value.shape for value in largest):
            yield _proposed(context, Finding(KIND, message, fix=fix), largest, unused)
        return
    if all(len(value.shape) < 2 for value in context.plan.inputs):
        return  # an init function of a key: the axis is for the data of the step
    for name in unused:
        n = context.mesh.shape[name]
        message = f"mesh axis {name!r} of size {n} shards nothing: the {n} devices along it repeat the same work"
        yield _proposed(context, Finding(KIND, message, fix="make the axis smaller, or constrain an intermediate"), largest, [name])


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


def _proposed(context: CheckContext, finding: Finding, values: Sequence[PlannedValue], names: Sequence[str]) -> Finding:
    """The finding with shardings by one of the axes that fit the first few values, if one lowers the peak."""
    examples = ((value, spec) for value in values for name in names for spec in _examples(context, value, name))
    options = [
        (f"for example {value.path}: {{spec}} in {annotation_of(value)}", value.path, spec)
        for value, spec in itertools.islice(examples, MAX_EXAMPLES)
    ]
    context.propose(finding, Proposal(options, takes_less, finding.fix))
    return finding


def _examples(context: CheckContext, value: PlannedValue, name: str) -> Iterator[TensorSharding]:
    """Shardings that use the axis on a value, first on what is not cut yet, and there on the first, often a batch."""
    dims = list(value.sharding.dims[: len(value.shape)]) if value.sharding is not None else [DimensionSharding()] * len(value.shape)
    cut = TensorSharding("mesh" if value.sharding is None else value.sharding.mesh, dims).closed_like()
    for d in sorted(range(len(dims)), key=lambda d: bool(dims[d].axes)):
        n = value.shape[d]
        if n and n % (dims[d].shards(context.mesh) * context.mesh.shape[name]) == 0:
            yield cut.sharded(d, name)

"""Values that are whole or padded where they could be cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Op, TensorType, Value
from shardy_py.passes.dataflow import WHILE
from shardy_py.passes.export.input_output_shardings import NON_DIVISIBLE
from shardy_py.plan.checks.axes import data_paths, state_and_parameter
from shardy_py.plan.checks.context import CheckContext, is_replicated
from shardy_py.plan.checks.fixes import CONSTRAINT, Proposal, peak, takes_less
from shardy_py.plan.checks.specs import extended, nearest, unused_axes, with_axes_on
from shardy_py.plan.checks.wording import NOTABLE, PADDED, PARTLY, annotation_of, graded, more_text
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.findings import Finding, Severity
from shardy_py.plan.in_place import BODIES
from shardy_py.plan.paths import without_numbers
from shardy_py.plan.search import NOTHING
from shardy_py.plan.values import PlannedValue, typed
from shardy_py.rules.traits import UNCONSTRAINED, is_constraint, is_elementwise

OPAQUE = frozenset(("stablehlo.custom_call", "stablehlo.composite"))
"""Ops with contents that propagation does not see."""


def replicated_large(context: CheckContext) -> Iterator[Finding]:
    """Inputs, outputs and intermediates of `NOTABLE` bytes and more that no axis cuts and that nobody said to replicate.

    Of intermediates that are made of one another only the first is found; none that has the shape of an input or output that is
    replicated, and none that XLA makes anew wherever it is used (iota, broadcasts, and what is computed of constants position by
    position). Optimizer state follows its parameter, and is found only where that is not. Arguments whose paths differ only in a
    number, such as layers, count together. Values that several devices compute together and then hold whole are a note, and so are, from
    `PARTLY` on, inputs that some axes cut. A replicating constraint is reported where its value is computed from the data, but not where
    it has the shape of a parameter or of a layer of one: such constraints sum gradients and gather weights.
    """
    if context.mesh.size == 1:
        return
    if any(finding.kind == "unused-axis" and not finding.path and NOTHING in finding.message for finding in context.findings):
        return
    reported = {path for finding in context.findings if finding.kind not in _OF_NAMES for path in finding.all_paths if path}
    series = Counter(map(_alike, (*context.plan.inputs, *context.plan.outputs)))
    replicating = {} if context.plan.search is not None else _replicating(context)  # `costly-constraint` finds those of a planner's plan
    cheap, large, groups = _intermediates(context, replicating)
    follows = {state.path: parameter.path for state, parameter, _ in state_and_parameter(context.plan.inputs)}
    reported_inputs: set[str] = set()
    for value in sorted(context.plan.inputs, key=lambda value: value.path in follows):
        if value.path not in reported and follows.get(value.path) not in reported_inputs:
            for finding in _argument(context, value, series[_alike(value)]):
                reported_inputs.add(value.path)
                yield finding
    for result, value in zip(context.plan.program.main.body.terminator.operands, context.plan.outputs):
        op = result.defining_op
        if op is not None and value.path not in reported and _is_root(op, result, large, cheap, context):
            yield from _argument(context, value, series[_alike(value)])
    yield from _intermediate_findings(context, groups, reported)
    yield from _constraint_findings(context, replicating)


_OF_NAMES = ("unmatched-rule", "unused-rule", "refused-donation")
"""Kinds of findings that do not concern the sharding of an argument."""


def _alike(value: PlannedValue) -> tuple[object, ...]:
    return without_numbers(value.path), value.kind, value.type, value.sharding, value.given


def _argument(context: CheckContext, value: PlannedValue, alike: int) -> Iterator[Finding]:
    """The finding for an input or output, of which so many are alike."""
    size, whole, given = context.bytes_of(value), is_replicated(value.sharding), value.given
    count = alike if len(value.shape) > 1 else 1  # biases and scales are whole in nearly all models
    if size * count < NOTABLE or not value.shape or (not whole and (size < PARTLY or value.kind == "output")):
        return
    if given is not None and all(dim.is_closed for dim in given.dims):
        return
    text = typed(value.type, value.sharding)
    if whole:
        together = f"; the {count} alike take {format_bytes(size * count)}" if count > 1 else ""
        everywhere = f"is replicated on all {context.mesh.size} devices, {format_bytes(size)} on each"
        message = f"{text} {everywhere}{together}" + (": no annotation shards it" if context.plan.search is None else "")
    elif extended(value.shape, value.sharding, context.mesh) is None:
        return
    else:
        free = ", ".join(map(repr, unused_axes(value.sharding, context.mesh)))
        message = f"{text} takes {format_bytes(size)} on each device: it is replicated over {free}"
    where = annotation_of(value)
    finding = Finding("replicated-large", message, value.path, "", graded(size * count) if whole else "info", size)
    meant = f"write P() in {where} if replication is intended" * whole
    yield _proposed(context, value, finding, f"{value.path}: {{spec}} in {where}", meant)


def _proposed(context: CheckContext, value: PlannedValue, finding: Finding, fix: str, meant: str = "") -> Finding:
    """The finding with shardings of the value: by all axes that divide a dimension, or along the longest dimension only."""
    more = extended(value.shape, value.sharding, context.mesh)
    dim = max(range(len(value.shape)), key=lambda d: value.shape[d])
    if more is None:
        axis = min((n for n in context.mesh.shape.values() if n > 1), default=1)
        n = value.shape[dim]
        return replace(finding, fix=f"no free axis divides a dimension: make dimension {dim} of size {n} a multiple, {nearest(n, axis)}")
    shardings = [more.closed_like(), with_axes_on(more, unused_axes(value.sharding, context.mesh), dim)]
    leaves = f"{fix} leaves {{size}} of {format_bytes(finding.bytes)}{'; ' * bool(meant)}{meant}"
    options = [(leaves, value.path, each) for each in shardings]
    # An argument takes less between calls as well, where the peak of one stays.
    is_better = (lambda after, before: peak(after) <= peak(before)) if value.kind == "input" else takes_less
    context.propose(finding, Proposal(options, is_better, meant))
    return finding


_Groups = dict[tuple[str, str, str], list[Value]]


def _intermediates(context: CheckContext, replicating: dict[Value, None]) -> tuple[set[Value], set[Value], _Groups]:
    """Values that XLA recomputes at each use, large replicated values, and the roots among the latter by line, primitive and type."""
    cheap: set[Value] = set()
    large: set[Value] = set()
    groups: _Groups = {}
    # A gradient has the shape of its parameter or the transposed shape; the finding for the parameter, or its annotation, covers it.
    ends = {tuple(sorted(value.shape)) for value in (*context.plan.inputs, *context.plan.outputs) if is_replicated(value.sharding)}
    for op, manual in context.ops:
        if _is_cheap(op, cheap):
            cheap.update(op.results)
            continue
        if manual or op.name == "stablehlo.broadcast_in_dim":  # XLA does it inside of whatever reads it
            continue
        for value in op.results:
            if not is_replicated(value.sharding) or not isinstance(value.type, TensorType) or context.local(value.type, None) < NOTABLE:
                continue
            if value not in context.read:
                continue
            root = _is_root(op, value, large, cheap, context)
            large.add(value)
            if value in replicating or any(result in replicating for user, _ in value.uses for result in user.results):
                continue
            if root and tuple(sorted(value.type.shape)) not in ends and value in context.described:
                described = context.described[value]
                groups.setdefault((described.location, described.primitive, typed(value.type, value.sharding)), []).append(value)
    return cheap, large, groups


def _intermediate_findings(context: CheckContext, groups: _Groups, reported: set[str]) -> Iterator[Finding]:
    """One finding per source line, primitive and type."""
    for (location, primitive, text), values in groups.items():
        first = context.described[values[0]]
        if first.path in reported:
            continue
        size = context.bytes_of(first)
        more = more_text(len(values), "of this line")
        message = f"{text} of {primitive} is replicated on all {context.mesh.size} devices, {format_bytes(size)} on each{more}"
        op = values[0].defining_op
        together = op is not None and any(not is_replicated(operand.sharding) for operand in op.operands)
        finding = Finding("replicated-large", message, first.path, location, "info" if together else graded(size), size)
        yield _proposed(context, first, finding, CONSTRAINT)


def _replicating(context: CheckContext) -> dict[Value, None]:
    """The results of constraints of the user's that replicate activations of `NOTABLE` bytes and more."""
    data = data_paths(context.plan.inputs, context.plan.outputs, context)
    shapes = [value.shape for value in context.plan.inputs if value.path not in data]
    parameters = {tuple(sorted(shape)) for whole in shapes for shape in (whole, whole[1:])}
    arguments = zip(context.plan.program.main.arguments, context.plan.inputs)
    from_data = {argument for argument, value in arguments if value.path in data}
    replicating: dict[Value, None] = {}
    for op, manual in context.ops:
        if not from_data.isdisjoint(op.operands):
            from_data.update(op.results)
            from_data.update(a for region in op.regions for a, operand in zip(region.arguments, op.operands) if operand in from_data)
            if is_constraint(op) and not manual and not op.attributes.get(UNCONSTRAINED) and is_replicated(op.result.sharding):
                type_ = op.result.type
                if (
                    context.local(type_, None) >= NOTABLE
                    and tuple(sorted(type_.shape)) not in parameters
                    and op.result in context.described
                ):
                    replicating[op.result] = None
    return replicating


def _constraint_findings(context: CheckContext, replicating: Iterable[Value]) -> Iterator[Finding]:
    """One finding per source line and type."""
    groups: dict[tuple[str, str], list[PlannedValue]] = {}
    for value in replicating:
        described = context.described[value]
        groups.setdefault((described.location, typed(value.type, value.sharding)), []).append(described)
    for (location, text), values in groups.items():
        size = context.bytes_of(values[0])
        everywhere = f"on all {context.mesh.size} devices, {format_bytes(size)} on each{more_text(len(values), 'of this line')}"
        fix = (
            "name the axes of its dimensions, or P.UNCONSTRAINED for those that it should leave open; None replicates, and so does a name"
            " of a dimension while no rules are in force"
        )
        yield Finding("replicated-large", f"a constraint replicates {text} {everywhere}", values[0].path, location, graded(size), size, fix)


def _is_cheap(op: Op, cheap: set[Value]) -> bool:
    """Whether results depend only on constants position by position, so that XLA recomputes them at each use."""
    if op.regions:
        return False
    if op.name in ("sdy.constant", "stablehlo.iota"):
        return True
    if is_elementwise(op.name) or op.name in _RESHAPING:
        return all(not operand.type.rank or operand in cheap for operand in op.operands)
    return False


_RESHAPING = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.slice", "stablehlo.convert"))


def _is_root(op: Op, value: Value, large: set[Value], cheap: set[Value], context: CheckContext) -> bool:
    """Whether a large replicated value has a cause of its own: no other replicated value, and no op with a finding, explains it."""
    if op.name in BODIES and op.name != WHILE:
        return False
    if op.rule is None and op.name in OPAQUE:
        return False
    sources = [op.operands[value.index]] if op.name == WHILE else op.operands
    return not any(_is_large(source, large, cheap, context) for source in sources)


def _is_large(value: Value, large: set[Value], cheap: set[Value], context: CheckContext) -> bool:
    if value in large:
        return True
    is_argument = not isinstance(value.owner, Op)
    return is_argument and value not in cheap and is_replicated(value.sharding) and context.local(value.type, None) >= NOTABLE


def indivisible(context: CheckContext) -> Iterator[Finding]:
    """Axes that arguments and results lost because they do not divide a dimension, and intermediates that are padded much."""
    reported: set[str] = set()
    for value, uncut in context.cut_values(NON_DIVISIBLE):
        if value.path not in reported:
            reported.add(value.path)
            yield from _cut(context, value, uncut)
    yield from _padded(context)


def _cut(context: CheckContext, value: PlannedValue, uncut: TensorSharding) -> Iterator[Finding]:
    size = context.bytes_of(value)
    severity: Severity = "warning" if value.given is not None and value.given.are_dim_axes_equal(uncut) else graded(size)
    if severity == "info" and size < NOTABLE:
        return
    for d, (n, dim) in enumerate(zip(value.shape, uncut.dims)):
        shards = dim.shards(context.mesh)
        if n % shards == 0:
            continue
        message = (
            f"dimension {d} of size {n} is not a multiple of {shards} ({_sizes(dim.axes, context)}), so it is not cut as"
            f" {typed(value.type, uncut)} says: it is {typed(value.type, value.sharding)}, {format_bytes(size)} on each device"
        )
        yield Finding("indivisible", message, value.path, "", severity, size, _fix(context, d, n, uncut))


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
    groups: dict[tuple[int, tuple[AxisRef, ...]], list[tuple[Value, int]]] = {}
    for op, _ in context.ops:
        for value in op.results:
            if value.sharding is None or context.local(value.type, value.sharding) < NOTABLE:
                continue
            for d, (n, dim) in enumerate(zip(value.type.shape, value.sharding.dims)):
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
        yield Finding("indivisible", message, described.path, described.location, "info", size, _fix(context, d, n, described.sharding))

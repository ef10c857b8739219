"""Axes that a value loses on the way: at a reshape whose result cannot have them, and parts of axes where results leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.dialect.projection import project
from shardy_py.ir import Op, TensorType
from shardy_py.passes.export import remove_sub_axes_in_input_output_shardings as sub_axes
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.fixes import Proposal, costs_less
from shardy_py.plan.checks.phrases import annotation_of, more_text
from shardy_py.plan.checks.specs import with_axes_on
from shardy_py.plan.checks.thresholds import NOTABLE, graded
from shardy_py.plan.findings import Finding
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.values import PlannedValue, typed

RESHAPE = "axis-lost-in-reshape"
SUB_AXIS = "sub-axis-removed"


@dataclass(frozen=True, slots=True)
class _Loss:
    """Axes of dimension `dim` of the operand that no dimension of the result has.

    Attributes:
        merged: Whether the parts are dimensions of the operand that the result has as one.
    """

    dim: int
    axes: tuple[AxisRef, ...]
    sizes: tuple[int, ...]
    part: int
    merged: bool


def axis_lost_in_reshape(context: CheckContext) -> Iterator[Finding]:
    """Reshapes of `NOTABLE` bytes and more whose result is cut by fewer axes than their operand.

    A dimension that several are merged into can be cut by an axis of a later one only where the earlier ones are cut completely; one
    that is split gives its axes to the first part as far as they divide it.
    """
    losses: dict[tuple[OpShardingRule, TensorSharding, TensorSharding | None], _Loss | None] = {}
    for op, _ in context.ops:
        rule = op.rule
        if op.name != "stablehlo.reshape" or rule is None:
            continue
        source, target = op.operands[0].sharding, op.results[0].sharding
        value = op.results[0]
        if source is None or not source.dim_axes() or context.local(value.type, target) < NOTABLE or value not in context.described:
            continue
        key = (rule, source, target)
        if key not in losses:
            losses[key] = _loss(rule, source, target, context)
        loss = losses[key]
        if loss is not None:
            yield _finding(context, op, loss)


def _loss(rule: OpShardingRule, source: TensorSharding, target: TensorSharding | None, context: CheckContext) -> _Loss | None:
    shards_after = _shards_by_axis(target, context)
    shards_before = _shards_by_axis(source, context)
    before, after = rule.mappings
    factors = project(before, source, rule.factor_sizes, context.mesh).factors
    for d, dim in enumerate(before):
        lost = tuple(axis for axis in source.dims[d].axes if shards_after.get(axis.name, 1) < shards_before[axis.name])
        if not lost:
            continue
        names = {axis.name for axis in lost}
        for f in dim:
            state = factors.get(f)
            if state is None or not names & {axis.name for axis in (*state.axes, *state.overflow)}:
                continue
            if len(dim) > 1 and state.overflow:
                return _Loss(d, lost, _sizes(dim, rule), dim.index(f), False)
            there = next((group for group in after if f in group), ())
            if len(there) > 1 and there[0] != f:
                return _Loss(d, lost, _sizes(there, rule), there.index(f), True)
    return None


def _shards_by_axis(sharding: TensorSharding | None, context: CheckContext) -> dict[str, int]:
    """The number of shards by axis name, over all sub-axes of it."""
    shards: dict[str, int] = {}
    for axis in () if sharding is None else sharding.dim_axes():
        shards[axis.name] = shards.get(axis.name, 1) * axis.size_in(context.mesh)
    return shards


def _sizes(factors: Sequence[int], rule: OpShardingRule) -> tuple[int, ...]:
    return tuple(rule.factor_sizes[f] for f in factors)


def _finding(context: CheckContext, op: Op, loss: _Loss) -> Finding:
    described = context.described[op.results[0]]
    size = context.bytes_of(described)
    operand = op.operands[0]
    axes = ", ".join(repr(format_axis(axis)) for axis in loss.axes)
    parts = " x ".join(map(str, loss.sizes))
    shards = num_shards(loss.axes, context.mesh)
    if loss.merged:
        part = loss.sizes[loss.part]
        why = f"{parts} become one dimension, and an axis on the part of size {part} would cut it into pieces that do not adjoin"
        fix = f"do the work that needs {axes} before the reshape"
    else:
        part = loss.sizes[loss.part]
        why = f"dimension {loss.dim} is split into {parts}, and {shards} ways do not divide {part}"
        used = {axis.name for axis in (*operand.sharding.dim_axes(), *loss.axes)} if operand.sharding is not None else set()
        fits = [name for name, n in context.mesh.shape.items() if n > 1 and part % n == 0 and name not in used]
        fix = f"make {part} a multiple of {shards}" + (f", or use {' or '.join(map(repr, fits))}, which divides it" if fits else "")
    lost = axes if not any(axis.name in _shards_by_axis(op.results[0].sharding, context) for axis in loss.axes) else f"a part of {axes}"
    text = typed(described.type, described.sharding)
    message = f"the reshape of {typed(operand.type, operand.sharding)} to {text} loses {lost}: {why}"
    finding = Finding(RESHAPE, message, described.path, described.location, graded(size), size, fix)
    if loss.merged and operand.sharding is not None and (before := context.described.get(operand)) is not None:
        first = with_axes_on(operand.sharding, [axis.name for axis in loss.axes], loss.dim - loss.part)
        how = f"in {annotation_of(before)}" if before.kind == "input" else "by sp.with_sharding_constraint"
        cut = f"cut the part of size {loss.sizes[0]} over {axes}, {before.path}: {{spec}} {how}"
        context.propose(finding, Proposal([(cut, before.path, first)], costs_less, fix))
    return finding


def sub_axis_removed(context: CheckContext) -> Iterator[Finding]:
    """Arguments and results that lost parts of axes because JAX's shardings cannot name them, one finding for the parts of an axis.

    A result that lies as the donated argument whose memory it takes is none: it lies as it was asked to.
    """
    reported = {path for finding in context.findings for path in finding.all_paths if path}
    inputs, outputs = context.plan.inputs, context.plan.outputs
    pairs = ((inputs[d.input], outputs[d.output]) for d in context.plan.donation if d.output is not None)
    reported |= {output.path for donated, output in pairs if donated.sharding == output.sharding}
    groups: dict[tuple[object, ...], list[tuple[PlannedValue, TensorSharding]]] = {}
    for value, uncut in context.cut_values(sub_axes.REASON):
        if value.path not in reported and context.bytes_of(value) >= NOTABLE and isinstance(value.type, TensorType):
            reported.add(value.path)
            groups.setdefault((value.kind, *(axis for axis in uncut.dim_axes() if not axis.is_full)), []).append((value, uncut))
    for group in groups.values():
        value, uncut = max(group, key=lambda entry: context.bytes_of(entry[0]))
        size = context.bytes_of(value)
        message = (
            f"propagation gave it {typed(value.type, uncut)}; an input or output has whole axes only, unless they were asked for,"
            f" so it is {typed(value.type, value.sharding)}, {format_bytes(size)} on each device{more_text(len(group), 'like it')}"
        )
        paths = tuple(sorted((other.path for other, _ in group), key=value.path.__ne__)) if len(group) > 1 else ()
        finding = Finding(SUB_AXIS, message, value.path, "", graded(size), size, paths=paths)
        parts = list(dict.fromkeys(axis.name for axis in uncut.dim_axes() if not axis.is_full))
        fix, others = f"{value.path}: {{spec}} in {annotation_of(value)}", (with_axes_on(uncut, parts, d) for d in range(len(value.shape)))
        context.propose(finding, Proposal([(fix, value.path, other) for other in others], costs_less, "make the mesh axis two axes"))
        yield finding

"""Mesh axes that a value lost, axes that shard nothing, and optimizer state that is not cut as its parameter."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, DimensionSharding, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.dialect.projection import project
from shardy_py.ir import Op, TensorType, Value
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, WHILE, manual_axes
from shardy_py.passes.export.collective_bytes import reshard_bytes
from shardy_py.passes.export.input_output_shardings import SUB_AXES
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.fixes import CONSTRAINT, Proposal, costs_less, receives_less, takes_less
from shardy_py.plan.checks.specs import with_axes_on
from shardy_py.plan.checks.wording import NOTABLE, annotation_of, graded, more_text
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.findings import Finding
from shardy_py.plan.in_place import BODIES
from shardy_py.plan.paths import names_of
from shardy_py.plan.search import NOTHING
from shardy_py.plan.values import PlannedValue, typed
from shardy_py.rules.traits import CONSTRAINTS, TERMINATORS

SMALL = "plan with the real sizes and hardware (Planner(hardware=...)), or say what to shard (in_shardings, rules)"
"""What to do about a step that no planner shards."""

MAX_EXAMPLES = 4
"""Shardings that are tried, of the largest values first."""


def unused_axis(context: CheckContext) -> Iterator[Finding]:
    """Axes larger than one that no value uses, where inputs and outputs together take `NOTABLE` bytes or more.

    Where a planner shards nothing, a note of any size says why.
    """
    search = context.plan.search
    if search is not None and NOTHING in search.space:
        yield Finding("unused-axis", f"{NOTHING}: {search.space[NOTHING]}", severity="info", fix=SMALL)
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
        message = f"{NOTHING}: all {context.mesh.size} devices repeat the same work"
        fix = "shard something, with in_shardings, rules or a constraint"
        if any(value.shape for value in largest):
            yield _proposed(context, Finding("unused-axis", message, fix=fix), largest, unused)
        return
    if all(len(value.shape) < 2 for value in context.plan.inputs):
        return  # an init function of a key: the axis is for the data of the step
    for name in unused:
        n = context.mesh.shape[name]
        message = f"mesh axis {name!r} of size {n} shards nothing: the {n} devices along it repeat the same work"
        finding = Finding("unused-axis", message, fix="make the axis smaller, or constrain an intermediate")
        yield _proposed(context, finding, largest, [name])


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


RESHAPE = "axis-lost-in-reshape"
SUB_AXIS = "sub-axis-removed"


def axis_lost_in_reshape(context: CheckContext) -> Iterator[Finding]:
    """Reshapes of `NOTABLE` bytes and more whose result is cut by fewer axes than their operand.

    A dimension that several are merged into can be cut by an axis of a later one only where the earlier ones are cut completely; one
    that is split gives the first part those of its axes that divide it.
    """
    for op, _ in context.ops:
        if op.name == "stablehlo.reshape" and op.rule is not None and op.result in context.described:
            source = op.operands[0].sharding
            if source is not None and source.dim_axes() and context.local(op.result.type, op.result.sharding) >= NOTABLE:
                yield from _lost(context, op, op.rule, source)


def _lost(context: CheckContext, op: Op, rule: OpShardingRule, source: TensorSharding) -> Iterator[Finding]:
    """The finding for the first dimension of an operand that has an axis of which the result has less."""
    after, before = (_shards_by_axis(sharding, context) for sharding in (op.result.sharding, source))
    factors = project(rule.operand_mappings[0], source, rule.factor_sizes, context.mesh).factors
    for d, dim in enumerate(rule.operand_mappings[0]):
        lost = [axis for axis in source.dims[d].axes if after.get(axis.name, 1) < before[axis.name]]
        names = {axis.name for axis in lost}
        for f in dim:
            state = factors.get(f)
            if state is None or not names & {axis.name for axis in (*state.axes, *state.overflow)}:
                continue
            there = next((group for group in rule.result_mappings[0] if f in group), ())
            merged = not (len(dim) > 1 and state.overflow)
            parts = there if merged else dim
            if not merged or (len(there) > 1 and there[0] != f):
                sizes = [rule.factor_sizes[each] for each in parts]
                yield _finding(context, op, d, lost, sizes, parts.index(f), merged)
                return


def _shards_by_axis(sharding: TensorSharding | None, context: CheckContext) -> dict[str, int]:
    """The number of shards by axis name, over all sub-axes of it."""
    shards: dict[str, int] = {}
    for axis in () if sharding is None else sharding.dim_axes():
        shards[axis.name] = shards.get(axis.name, 1) * axis.size_in(context.mesh)
    return shards


def _finding(context: CheckContext, op: Op, d: int, lost: list[AxisRef], sizes: list[int], part: int, merged: bool) -> Finding:
    """The finding for axes of dimension `d` of the operand, which has the parts of these sizes; merged are those of the result."""
    described, operand = context.described[op.result], op.operands[0]
    source = operand.sharding
    assert source is not None
    size, names, n = context.bytes_of(described), [axis.name for axis in lost], sizes[part]
    axes = ", ".join(repr(format_axis(axis)) for axis in lost)
    parts = " x ".join(map(str, sizes))
    if merged:
        why = f"{parts} become one dimension, and an axis on the part of size {n} would give each device pieces that are not contiguous"
        fix = f"do the work that needs {axes} before the reshape"
    else:
        shards = num_shards(lost, context.mesh)
        why = f"dimension {d} is split into {parts}, and {shards} ways do not divide {n}"
        used = {axis.name for axis in source.dim_axes()}
        fits = [repr(name) for name, count in context.mesh.shape.items() if count > 1 and n % count == 0 and name not in used]
        fix = f"make {n} a multiple of {shards}" + (f", or use {' or '.join(fits)}, which divides it" if fits else "")
    some = any(name in _shards_by_axis(op.result.sharding, context) for name in names)
    message = (
        f"the reshape of {typed(operand.type, source)} to {typed(described.type, described.sharding)} loses"
        f" {'a part of ' * some}{axes}: {why}"
    )
    finding = Finding(RESHAPE, message, described.path, described.location, graded(size), size, fix)
    if merged and (before := context.described.get(operand)) is not None:
        how = f"in {annotation_of(before)}" if before.kind == "input" else "by sp.with_sharding_constraint"
        cut = f"cut the part of size {sizes[0]} over {axes}, {before.path}: {{spec}} {how}"
        context.propose(finding, Proposal([(cut, before.path, with_axes_on(source, names, d - part))], costs_less, fix))
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
    for value, uncut in context.cut_values(SUB_AXES):
        if value.path not in reported and context.bytes_of(value) >= NOTABLE and isinstance(value.type, TensorType):
            reported.add(value.path)
            groups.setdefault((value.kind, *(axis for axis in uncut.dim_axes() if not axis.is_full)), []).append((value, uncut))
    for group in groups.values():
        value, uncut = max(group, key=lambda entry: context.bytes_of(entry[0]))
        size = context.bytes_of(value)
        message = (
            f"propagation gave it {typed(value.type, uncut)}; inputs and outputs take only whole axes, unless annotated,"
            f" so it is {typed(value.type, value.sharding)}, {format_bytes(size)} on each device{more_text(len(group), 'like it')}"
        )
        paths = tuple(sorted((other.path for other, _ in group), key=value.path.__ne__)) if len(group) > 1 else ()
        finding = Finding(SUB_AXIS, message, value.path, "", graded(size), size, paths=paths)
        parts = list(dict.fromkeys(axis.name for axis in uncut.dim_axes() if not axis.is_full))
        fix, others = f"{value.path}: {{spec}} in {annotation_of(value)}", (with_axes_on(uncut, parts, d) for d in range(len(value.shape)))
        context.propose(finding, Proposal([(fix, value.path, other) for other in others], costs_less, "make the mesh axis two axes"))
        yield finding


Mark = tuple[int, str, str]
"""Dimension, axis, and the input that brought the axis."""

Marks = frozenset[Mark]

_NONE: Marks = frozenset()


@dataclass(frozen=True, slots=True)
class _DataLoss:
    """An axis that an operand has on one dimension of the result, and the result on another."""

    mark: Mark
    expected: int
    actual: int
    winner: int | None


def batch_axis_lost(context: CheckContext) -> Iterator[Finding]:
    """Values of `NOTABLE` bytes and more in which an axis of the data went to another dimension, where keeping it there moves less.

    Data are arguments none of whose leaves is a result again, unlike a training step's state; where no argument is, all but the
    one with the most bytes. Only the op where it happens is found, one finding per source line.
    """
    data = data_paths(context.plan.inputs, context.plan.outputs, context)
    marks: dict[Value, Marks] = {}
    losses: dict[tuple[str, str], list[tuple[Op, Value, _DataLoss]]] = {}
    follow = functools.cache(_follow)

    def mark(value: Value, of_value: Marks) -> None:
        """Records the marks of a value whose axes are in its sharding."""
        sharding = value.sharding
        here = [m for m in of_value if sharding is not None and m[0] < sharding.rank and m[1] in _names(sharding.dims[m[0]])]
        if here:
            marks[value] = frozenset(here)

    for argument, value in zip(context.plan.program.main.arguments, context.plan.inputs):
        if value.given is not None and value.path in data:
            mark(argument, frozenset((d, axis.name, value.path) for d, dim in enumerate(value.given.dims) for axis in dim.axes))
    for op, _ in context.ops if marks else ():
        of_operands = [marks.get(operand, _NONE) for operand in op.operands]
        if not any(of_operands):
            continue
        parent = op.parent
        if op.name in BODIES:
            for region in op.regions:
                for argument, of_operand in zip(region.arguments, of_operands):
                    mark(argument, of_operand)
        elif op.name in TERMINATORS and parent is not None and parent.name in BODIES:
            if parent.name != WHILE or op.block is parent.regions[1]:
                for result, of_operand in zip(parent.results, of_operands):
                    mark(result, of_operand)
        elif op.rule is not None:
            for number, result in enumerate(op.results):
                if result.sharding is None:
                    continue
                shardings = tuple(operand.sharding for operand in op.operands)
                of_result, loss = follow(op.rule, number, result.sharding, shardings, tuple(of_operands), context)
                mark(result, of_result)
                described = context.described.get(result)
                if loss is None or described is None or context.local(result.type, result.sharding) < NOTABLE:
                    continue
                if not any(user.name in CONSTRAINTS for user, _ in result.uses):
                    losses.setdefault((described.location, loss.mark[1]), []).append((op, result, loss))
        elif not op.regions and len(op.operands) == len(op.results) == 1 and op.operands[0].type is op.result.type:
            mark(op.result, of_operands[0])
    for (location, _), of_line in losses.items():
        yield _lost_on_data(context, of_line, location)


def _names(dim: DimensionSharding) -> set[str]:
    return {axis.name for axis in dim.axes}


def data_paths(inputs: Sequence[PlannedValue], outputs: Sequence[PlannedValue], context: CheckContext) -> set[str]:
    """Paths of the leaves of arguments that are data."""
    returned = {(output.shape, output.dtype, names_of(output.path)[-1:]) for output in outputs}
    state: set[str] = set()
    sizes: dict[str, int] = {}
    for value in inputs:
        names = names_of(value.path)
        sizes[names[0]] = sizes.get(names[0], 0) + context.local(value.type, None)
        if (value.shape, value.dtype, names[-1:]) in returned:
            state.add(names[0])
    if not state and len(sizes) > 1:
        state.add(max(sizes, key=lambda name: sizes[name]))
    return {value.path for value in inputs if names_of(value.path)[0] not in state}


def _follow(
    rule: OpShardingRule,
    number: int,
    target: TensorSharding,
    sources: Sequence[TensorSharding | None],
    operand_marks: Sequence[Marks],
    context: CheckContext,
) -> tuple[Marks, _DataLoss | None]:
    """The marks of a result, and the first axis that the result has on another dimension."""
    mapping = rule.result_mappings[number]
    places = {f: d for d, dim in enumerate(mapping) for f in dim}
    target_axes = _factor_axes(rule.result_mappings[number], target, rule, context)
    cuts = [_factor_axes(m, s, rule, context) if s is not None else {} for m, s in zip(rule.operand_mappings, sources)]
    marks: set[Mark] = set()
    loss: _DataLoss | None = None
    for i, source_marks in enumerate(operand_marks):
        for mark in sorted(source_marks):
            dim, axis, origin = mark
            for f in rule.operand_mappings[i][dim]:
                if axis not in cuts[i].get(f, ()) or f not in places:
                    continue
                if axis in target_axes.get(f, ()):
                    marks.add((places[f], axis, origin))
                    continue
                other = next((g for g, axes in target_axes.items() if g != f and axis in axes and places[g] != places[f]), None)
                if other is not None and loss is None:
                    winner = next((k for k, axes_by_factor in enumerate(cuts) if k != i and axis in axes_by_factor.get(other, ())), None)
                    loss = _DataLoss(mark, places[f], places[other], winner)
    return frozenset(marks), loss


def _factor_axes(
    mapping: Sequence[Sequence[int]], sharding: TensorSharding, rule: OpShardingRule, context: CheckContext
) -> dict[int, list[str]]:
    if sharding.rank < len(mapping):  # a maximal one
        return {}
    factors = project(mapping, sharding, rule.factor_sizes, context.mesh).factors
    return {f: [axis.name for axis in state.axes] for f, state in factors.items() if state.axes}


def _lost_on_data(context: CheckContext, losses: Sequence[tuple[Op, Value, _DataLoss]], location: str) -> Finding:
    op, result, loss = losses[0]
    described = context.described[result]
    size = context.bytes_of(described)
    _, axis, origin = loss.mark
    winner = context.described.get(op.operands[loss.winner]) if loss.winner is not None else None
    because = f", because {winner.path} has it there" if winner is not None else ""
    message = (
        f"{axis!r} came with {origin} to dimension {loss.expected} of the result of {described.primitive}, which has it on dimension"
        f" {loss.actual} instead{because}: {typed(described.type, described.sharding)}, {format_bytes(size)} on each device; from"
        f" there on the batch is not sharded{more_text(len(losses), 'of this line')}"
    )
    assert described.sharding is not None
    kept = with_axes_on(described.sharding, [axis], loss.expected)
    same = [v for _, v, other in losses if v.type == result.type and (other.expected, other.actual) == (loss.expected, loss.actual)]
    paths = tuple(context.described[v].path for v in same) if len(same) > 1 else ()
    finding = Finding("batch-axis-lost", message, described.path, location, graded(size), size, paths=paths)
    context.propose(finding, Proposal([(CONSTRAINT, described.path, kept)], receives_less, None))
    return finding


_STATE = re.compile(
    r"mu|nu|m|v|momentum|momentums|moment|moments|velocity|trace|ema|average|averages|accumulator|acc|accum|accumulated"
    r"|exp_avg|exp_avg_sq|grads?|gradients?|opt|opt_state|optim|optimizer|optimizer_state|inner_state|slow_params|(first|second)_moments?"
)
"""Names that mark a path as optimizer state: names of optax, of Flax, and common ones."""


def state_unlike_parameter(context: CheckContext) -> Iterator[Finding]:
    """State of `NOTABLE` bytes and more that some axes of its parameter do not cut, among inputs and among outputs.

    A leaf is state if its path has one of the usual names; its parameter is the leaf of the same shape whose path ends alike, and no
    other does; of outputs, for example of `optimizer.init`, it may be among the inputs. State that is cut further than its parameter, as
    ZeRO does, is no finding.
    """
    inputs, outputs = context.plan.inputs, context.plan.outputs
    reported: set[tuple[str, ...]] = set()
    for state, parameter, names in (*state_and_parameter(inputs), *state_and_parameter(outputs, inputs)):
        if names not in reported and _is_coarser(state.sharding, parameter.sharding):
            reported.add(names)
            yield from _unlike(context, state, parameter)


_Parameters = dict[tuple[tuple[str, ...], tuple[int, ...]], list[PlannedValue]]


def _state_name(names: Sequence[str]) -> int:
    """The number of the last name that marks a path as state; -1 where none does."""
    return max((i for i, name in enumerate(names) if _STATE.fullmatch(name)), default=-1)


def _parameters(values: Sequence[PlannedValue]) -> _Parameters:
    """The leaves that are no optimizer state, by shape and by every suffix of their paths."""
    parameters: _Parameters = {}
    for value in values:
        names = names_of(value.path)
        if value.shape and _state_name(names) < 0:
            for k in range(1, len(names) + 1):
                parameters.setdefault((names[-k:], value.shape), []).append(value)
    return parameters


def state_and_parameter(
    values: Sequence[PlannedValue], *others: Sequence[PlannedValue]
) -> Iterator[tuple[PlannedValue, PlannedValue, tuple[str, ...]]]:
    """State among values, its parameter, and the names of the state below the argument.

    Only what is below the name that makes it state can name a parameter; `m['w']` is the state of `params['w']`, not of `m`.
    """
    tables = [_parameters(each) for each in (values, *others)]
    for value in values:
        names = names_of(value.path)
        last = _state_name(names) if value.shape else -1
        parameter = None if last < 0 else next(filter(None, (_parameter(value, names[last + 1 :], table) for table in tables)), None)
        if parameter is not None:
            yield value, parameter, names[1:] if len(names) > 1 else names


def _parameter(value: PlannedValue, names: tuple[str, ...], parameters: _Parameters) -> PlannedValue | None:
    """The only leaf with the longest end of a path in common."""
    for k in range(len(names), 0, -1):
        candidates = parameters.get((names[-k:], value.shape), [])
        if candidates:
            return candidates[0] if len(candidates) == 1 else None
    return None


def _is_coarser(state: TensorSharding | None, parameter: TensorSharding | None) -> bool:
    """Whether some dimension of the state does not begin with the axes that the parameter has there."""
    if parameter is None or not parameter.dim_axes():
        return False
    if state is None:
        return True
    return any(
        state_dim.axes[: len(parameter_dim.axes)] != parameter_dim.axes for state_dim, parameter_dim in zip(state.dims, parameter.dims)
    )


def _unlike(context: CheckContext, state: PlannedValue, parameter: PlannedValue) -> Iterator[Finding]:
    size = context.bytes_of(state)
    assert parameter.sharding is not None
    target = state.sharding or TensorSharding.closed(parameter.sharding.mesh, len(state.shape))
    moved = reshard_bytes(parameter.sharding, target, state.type, context.meshes)
    if max(size, moved) < NOTABLE:
        return
    message = (
        f"it is {typed(state.type, state.sharding)}, {format_bytes(size)} on each device, while its parameter {parameter.path} is"
        f" {typed(parameter.type, parameter.sharding)}: an update moves one to the other's sharding, {format_bytes(moved)} for each device"
    )
    finding = Finding("state-unlike-parameter", message, state.path, "", graded(max(size, moved)), size)
    fix = f"{state.path}: {{spec}} in {annotation_of(state)}", state.path, parameter.sharding
    context.propose(finding, Proposal([fix], costs_less))
    yield finding

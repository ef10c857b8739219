"""Axes that come with the data and lose against the same axis on a parameter, as fully sharded parameters make them do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardy_py.dialect import OpShardingRule, TensorSharding
from shardy_py.dialect.projection import project
from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import WHILE
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.checks.fixes import CONSTRAINT, Proposal, receives_less
from shardy_py.plan.checks.phrases import more_text
from shardy_py.plan.checks.specs import with_axes_on
from shardy_py.plan.checks.thresholds import NOTABLE, graded
from shardy_py.plan.findings import Finding
from shardy_py.plan.in_place import BODIES
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.path_parts import names_of
from shardy_py.plan.values import PlannedValue, typed
from shardy_py.rules.traits import CONSTRAINTS

KIND = "batch-axis-lost"

Mark = tuple[int, str, str]
"""Dimension, axis, and the input that brought the axis."""

Marks = frozenset[Mark]

_NONE: Marks = frozenset()


@dataclass(frozen=True, slots=True)
class _Loss:
    """An axis that an operand has on one dimension of the result, and the result on another."""

    mark: Mark
    expected: int
    actual: int
    winner: int | None


def batch_axis_lost(context: CheckContext) -> Iterator[Finding]:
    """Values of `NOTABLE` bytes and more in which an axis of the data went to another dimension, where keeping it there moves less.

    Data are arguments none of whose leaves is a result again, as those of a training step's state are; where no argument is, all but the
    one with the most bytes. Only the op where it happens is found, one finding per source line.
    """
    search = _Search(context)
    main = context.plan.program.main
    for argument, value in zip(main.arguments, context.plan.inputs):
        if value.given is not None and value.path in search.data:
            axes = [(d, axis.name, value.path) for d, dim in enumerate(value.given.dims) for axis in dim.axes]
            search.set(argument, frozenset(axes))
    if search.marks:
        search.visit(main.body)
    for (location, _), losses in search.losses.items():
        yield _finding(context, losses, location)


class _Search:
    """Follows the axes of the data through the program."""

    def __init__(self, context: CheckContext) -> None:
        self.context = context
        self.data = data_paths(context.plan.inputs, context.plan.outputs, context)
        self.marks: dict[Value, Marks] = {}
        self.losses: dict[tuple[str, str], list[tuple[Op, Value, _Loss]]] = {}
        self.memo: dict[tuple[object, ...], tuple[Marks, _Loss | None]] = {}

    def set(self, value: Value, marks: Marks) -> None:
        """Records the marks of a value whose axes are in its sharding."""
        sharding = value.sharding
        if marks and sharding is not None:
            sharded_marks = frozenset(
                m for m in marks if m[0] < sharding.rank and any(axis.name == m[1] for axis in sharding.dims[m[0]].axes)
            )
            if sharded_marks:
                self.marks[value] = sharded_marks

    def visit(self, block: Block) -> None:
        """Visits the ops of a block and those inside of them."""
        marks = self.marks
        for op in block.ops:
            if op.regions:
                self.body(op)
                continue
            operand_marks = [marks.get(operand, _NONE) for operand in op.operands]
            if not any(operand_marks) or not op.results:
                continue
            if op.rule is None:
                if len(op.operands) == len(op.results) == 1 and op.operands[0].type is op.results[0].type:
                    self.set(op.results[0], operand_marks[0])
                continue
            self.through(op, op.rule, operand_marks)

    def body(self, op: Op) -> None:
        """An op with regions: marks of operands enter its bodies, marks of returned values leave them."""
        regions = list(op.regions)
        if op.name not in BODIES:
            return
        for region in regions:
            for argument, operand in zip(region.arguments, op.operands):
                self.set(argument, self.marks.get(operand, _NONE))
            self.visit(region)
        for region in regions[1:] if op.name == WHILE else regions:
            for result, returned in zip(op.results, region.terminator.operands):
                self.set(result, self.marks.get(returned, _NONE))

    def through(self, op: Op, rule: OpShardingRule, operand_marks: Sequence[Marks]) -> None:
        """An op with a rule: marks follow its factors."""
        for number, result in enumerate(op.results):
            if result.sharding is None:
                continue
            key = (rule, number, result.sharding, *(operand.sharding for operand in op.operands), *operand_marks)
            if key not in self.memo:
                self.memo[key] = _follow(
                    rule, number, result.sharding, [operand.sharding for operand in op.operands], operand_marks, self.context
                )
            marks, loss = self.memo[key]
            if marks:
                self.set(result, marks)
            if loss is not None:
                self.record_loss(op, result, loss)

    def record_loss(self, op: Op, result: Value, loss: _Loss) -> None:
        described = self.context.described.get(result)
        is_constrained = any(user.name in CONSTRAINTS for user, _ in result.uses)
        if described is None or is_constrained or self.context.local(result.type, result.sharding) < NOTABLE:
            return
        self.losses.setdefault((described.location, loss.mark[1]), []).append((op, result, loss))


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
) -> tuple[Marks, _Loss | None]:
    """The marks of a result, and the first axis that the result has on another dimension."""
    mapping = rule.result_mappings[number]
    places = {f: d for d, dim in enumerate(mapping) for f in dim}
    target_axes = _factor_axes(rule.result_mappings[number], target, rule, context)
    cuts = [_factor_axes(m, s, rule, context) if s is not None else {} for m, s in zip(rule.operand_mappings, sources)]
    marks: set[Mark] = set()
    loss: _Loss | None = None
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
                    loss = _Loss(mark, places[f], places[other], winner)
    return frozenset(marks), loss


def _factor_axes(
    mapping: Sequence[Sequence[int]], sharding: TensorSharding, rule: OpShardingRule, context: CheckContext
) -> dict[int, list[str]]:
    if sharding.rank < len(mapping):  # a maximal one
        return {}
    factors = project(mapping, sharding, rule.factor_sizes, context.mesh).factors
    return {f: [axis.name for axis in state.axes] for f, state in factors.items() if state.axes}


def _finding(context: CheckContext, losses: Sequence[tuple[Op, Value, _Loss]], location: str) -> Finding:
    op, result, loss = losses[0]
    described = context.described[result]
    size = context.bytes_of(described)
    _, axis, origin = loss.mark
    winner = context.described.get(op.operands[loss.winner]) if loss.winner is not None else None
    because = f", because {winner.path} has it there" if winner is not None else ""
    message = (
        f"{axis!r} came with {origin} to dimension {loss.expected} of the result of {described.primitive}, which has it on dimension"
        f" {loss.actual} instead{because}: {typed(described.type, described.sharding)}, {format_bytes(size)} on each device; what follows"
        f" is not cut by the data any more{more_text(len(losses), 'of this line')}"
    )
    assert described.sharding is not None
    kept = with_axes_on(described.sharding, [axis], loss.expected)
    same = [v for _, v, other in losses if v.type == result.type and (other.expected, other.actual) == (loss.expected, loss.actual)]
    paths = tuple(context.described[v].path for v in same) if len(same) > 1 else ()
    finding = Finding(KIND, message, described.path, location, graded(size), size, paths=paths)
    context.propose(finding, Proposal([(CONSTRAINT, described.path, kept)], receives_less, None))
    return finding

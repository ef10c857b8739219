"""The debug attributes of a propagation, which are written from its log: `sdy.sharding_origins` and `sdy.propagation_edges`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes, is_prefix, overlaps
from shardy_py.dialect.projection import project
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.ir.attribute_text import AttributeText, attribute_text
from shardy_py.passes import dataflow
from shardy_py.passes.base import Pass
from shardy_py.passes.export.close_shardings import DropShardingRules
from shardy_py.passes.import_.apply_sharding_constraints import ApplyShardingConstraints
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult, Log, LogStep
from shardy_py.passes.propagation.rounds import PropagationPass
from shardy_py.passes.propagation.step import common_mesh
from shardy_py.passes.walk import blocks_of, ops_of_post
from shardy_py.rules import identity_rule


def run_pass(pass_: Pass, program: Program) -> None:
    """Runs a pass and sets the debug attributes that it is asked for, before it drops the rules that these are read from."""
    takes_notes = isinstance(pass_, PropagationPass | ApplyShardingConstraints)
    if not takes_notes or not (pass_.debug_sharding_origins or pass_.debug_propagation_edge_sharding):
        pass_.run(program)
        return
    origins = ShardingOrigins(program) if pass_.debug_sharding_origins else None
    steps: Log = []
    if isinstance(pass_, PropagationPass):
        replace(pass_, keep_sharding_rules=True).run(program, steps)
    else:
        pass_.run(program, steps)
    if origins is not None:
        origins.follow(steps)
        origins.write()
    if pass_.debug_propagation_edge_sharding:
        write_edges(program, steps)
    if isinstance(pass_, PropagationPass) and not pass_.keep_sharding_rules:
        DropShardingRules().run(program)


EDGES = "sdy.propagation_edges"

_STEP = re.compile(r"\{step-(\d+) = ")
_DETAIL = re.compile(r'\{("[^"]*"(?::\(\d+\)\d+)?) = ([a-z]+-\d+) -> \[([^\]]*)\]\}')
_MAIN = None  # the key of what function results hold


class EdgesOfOp:
    """The content of one attribute: per axis and target, the first step that brought it there, and its source."""

    def __init__(self, text: str = "") -> None:
        self.first_steps: dict[tuple[AxisRef, str], tuple[int, str]] = {}
        places = [*_STEP.finditer(text)]
        for place, following in zip(places, [*places[1:], None], strict=False):
            for detail in _DETAIL.finditer(text[place.end() : following.start() if following is not None else len(text)]):
                for target in detail[3].split(", "):
                    self.add(int(place[1]), AxisRef.parse(detail[1]), detail[2], target)

    def add(self, step: int, axis: AxisRef, source: str, target: str) -> None:
        """Notes an edge, unless the axis came to the target before."""
        self.first_steps.setdefault((axis, target), (step, source))

    @property
    def last_step(self) -> int:
        """The highest step number, -1 where there is none."""
        return max((step for step, _ in self.first_steps.values()), default=-1)

    def __str__(self) -> str:
        steps: dict[int, dict[AxisRef, tuple[str, list[str]]]] = {}
        for (axis, target), (step, source) in self.first_steps.items():
            steps.setdefault(step, {}).setdefault(axis, (source, []))[1].append(target)
        return f"#sdy.propagation_edges<[{', '.join(_step_text(step, steps[step]) for step in sorted(steps))}]>"


def _step_text(step: int, axes: dict[AxisRef, tuple[str, list[str]]]) -> str:
    details = [f"{{{axis} = {source} -> [{', '.join(sorted(targets, key=_place))}]}}" for axis, (source, targets) in _ordered(axes)]
    return f"{{step-{step} = [{', '.join(details)}]}}"


def _ordered(axes: dict[AxisRef, tuple[str, list[str]]]) -> Iterable[tuple[AxisRef, tuple[str, list[str]]]]:
    return sorted(axes.items(), key=lambda item: (item[0].name, item[0].pre_size or 1, item[0].size or float("inf")))


def _place(ref: str) -> tuple[str, int]:
    kind, _, number = ref.partition("-")
    return kind, int(number)


def write_edges(program: Program, log: list[LogStep]) -> None:
    """Adds the steps of a log to the attributes of the ops; those of function results go to the first result of the main function."""
    attributes: dict[Op | None, EdgesOfOp] = {}
    last = -1
    for function in program.functions:
        for op in function.body.walk():
            if EDGES in op.attributes:
                attributes[op] = EdgesOfOp(op.attributes[EDGES])
                last = max(last, attributes[op].last_step)
    main = program.main if program.functions else None
    if main is not None and main.result_attributes and EDGES in main.result_attributes[0]:
        attributes[_MAIN] = EdgesOfOp(main.result_attributes[0][EDGES])
        last = max(last, attributes[_MAIN].last_step)
    previous: LogStep | None = None
    for step in log:
        edges = _edges(step, program)
        if edges is None:
            continue
        if previous is None or step.before is not previous.before or step.op is not previous.op or not step.tensors:
            last += 1
        previous = step
        edges_of_op = attributes.setdefault(step.op, EdgesOfOp())
        for axis, source, target in edges:
            edges_of_op.add(last, axis, source, target)
    for op, edges in attributes.items():
        if not edges.first_steps:
            continue
        text = AttributeText(edges)
        if op is not None:
            op.attributes = {**op.attributes, EDGES: text}
        elif main is not None:
            main.result_attributes[0][EDGES] = text


def _edges(step: LogStep, program: Program) -> list[tuple[AxisRef, str, str]] | None:
    """`(axis, source, target)` of a step; None for a step that is no edge of an op."""
    if step.reason != "propagate":
        if step.op is not None and step.op.name == "sdy.sharding_constraint":
            return [(axis, "result-0", "operand-0") for axis in axes_of(step.new)]
        return None
    results = len(step.op.results) if step.op is not None else 1
    operands = len(step.tensors) - results

    def ref(i: int) -> str:
        return f"operand-{i}" if i < operands else f"result-{i - operands}"

    return [(new.axis, ref(new.source), ref(target)) for new in new_axes(step, program.meshes) for target in new.targets]


ORIGINS = "sdy.sharding_origins"
ORIGIN_NAME = "sdy.sharding_origin_name"

_SELF = "self"
_CONSTRAINT = "sdy.sharding_constraint"
_ONE = frozenset((_CONSTRAINT, dataflow.EDGE))
"""Ops whose attribute is one dictionary; on others it is a list with one per result."""


class ShardingOrigins:
    """The origins of all values while a pass runs.

    A returned value and the result of its function share their origins: either lists the axes of both. The first origin of an
    axis stays: that from a constraint, on the value or on what it constrains, before that from a manual computation, before those
    from arguments and results of functions.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: dict[Value, str] = {}
        """Value -> the origin that `self` stands for among its axes."""
        self.of: dict[Value, dict[str, str]] = {}
        self.unlisted: dict[Value, dict[str, str]] = {}
        """Origins of axes that a sharding group brought, which are passed on but not listed."""
        self._name_ops()
        self._begin()

    def _name_ops(self) -> None:
        for name, prefix in (_CONSTRAINT, "constraint"), (dataflow.MANUAL_COMPUTATION, "mc"):
            for i, op in enumerate(ops_of_post(self.program, name)):
                op.attributes = {**op.attributes, ORIGIN_NAME: f"{prefix}_{i}"}

    def _begin(self) -> None:
        """Takes in what values are given."""
        for op in ops_of_post(self.program, _CONSTRAINT):
            name = op.attributes[ORIGIN_NAME]
            self.names[op.result] = name
            self._add(op.result, name, op.result.sharding)
            self._add(op.operands[0], name, dataflow.get_sharding(op.operands[0]))
        for op in ops_of_post(self.program, dataflow.MANUAL_COMPUTATION):
            self._begin_computation(op)
        for function in self.program.functions:
            for argument in function.arguments:
                self.names[argument] = f"input: {argument.index}"
                self._add(argument, self.names[argument], argument.sharding)
            for i, (value, sharding) in enumerate(zip(_returned(function), function.result_shardings)):
                self._add(value, _origin_of_result(i), sharding)

    def _begin_computation(self, op: Op) -> None:
        name = op.attributes[ORIGIN_NAME]
        for owner in dataflow.owners(op):
            inside = isinstance(owner.owner, Block)
            shardings = op.attributes["in_shardings" if inside else "out_shardings"]
            origin = f"{name}_{'input' if inside else 'output'}: {owner.index}"
            if (edge := dataflow.edge_of_owner(owner)) is not None:
                self.names[edge.result] = origin
            self._add(owner, origin, shardings[owner.index])
            if inside:
                operand = op.operands[owner.index]
                self._add(operand, origin, dataflow.get_sharding(operand))

    def _add(self, value: Value, origin: str, sharding: TensorSharding | None) -> None:
        holder = dataflow.shardable_value(value)
        if holder is not None:
            for axis in axes_of(sharding):
                self.of.setdefault(holder, {}).setdefault(_key(axis), origin)

    def follow(self, log: list[LogStep]) -> None:
        """Notes where the axes come from that the steps of a pass added."""
        for step in log:
            target = self._holder(step.target)
            if target is None:
                continue
            if step.reason == "propagate":
                for new in new_axes(step, self.program.meshes):
                    self._pass_on(new.axis, self._holder(step.tensors[new.source]), self.of.setdefault(target, {}))
            elif step.reason == "group" and step.tensors:
                others = [holder for value in step.tensors if (holder := self._holder(value)) is not None and holder is not target]
                source = next((holder for holder in others if self.of.get(holder)), None)
                for axis in axes_of(step.new):
                    self._pass_on(axis, source, self.unlisted.setdefault(target, {}))
            elif step.op is not None and ORIGIN_NAME in step.op.attributes:
                name = step.op.attributes[ORIGIN_NAME]
                if step.op.name == dataflow.MANUAL_COMPUTATION:
                    name = f"{name}_input: {step.op.operands.index(step.target)}"  # type: ignore[arg-type]
                self._add(target, name, step.new)

    def _pass_on(self, axis: AxisRef, source: Value | None, target: dict[str, str]) -> None:
        key = _key(axis)
        origins = {} if source is None else {**self.unlisted.get(source, {}), **self.of.get(source, {})}
        origin = origins.get(key)
        if origin is None:
            origin = next((name for other, name in origins.items() if overlaps(axis, _axis(other))), None)
        if origin is not None:
            target.setdefault(key, origin)

    def _holder(self, holder: Holder) -> Value | None:
        if isinstance(holder, FunctionResult):
            body = self.program.main.body
            if not body.ops:  # of a declaration
                return None
            holder = body.terminator.operands[holder.index]
        return dataflow.shardable_value(holder)

    def write(self) -> None:
        """Sets the attributes."""
        for function in self.program.functions:
            for value, attributes in zip(function.arguments, function.argument_attributes, strict=True):
                if shown := self._shown(value, self.names[value]):
                    attributes[ORIGINS] = shown
            for op in function.body.walk():
                origins = [self._shown(result, self.names.get(result)) for result in op.results]
                if any(origins):
                    op.attributes = {**op.attributes, ORIGINS: origins[0] if op.name in _ONE else AttributeText(attribute_text(origins))}
            for value in dict.fromkeys(_returned(function)):
                i = next(i for op, i in reversed(value.uses) if op is function.body.terminator)  # one of them only, as in Shardy
                if i < len(function.result_attributes) and (shown := self._shown(value, _origin_of_result(i))):
                    function.result_attributes[i][ORIGINS] = shown

    def _shown(self, value: Value, name: str | None) -> dict[str, str]:
        return {axis: _SELF if origin == name else origin for axis, origin in self.of.get(value, {}).items()}


def _returned(function: Function) -> list[Value]:
    return function.body.terminator.operands if function.body.ops else []


def _origin_of_result(i: int) -> str:
    return f"output: {i}"


def _key(axis: AxisRef) -> str:
    """`a`, or `a:(1)2` for a part of an axis."""
    return axis.name if axis.is_full else f"{axis.name}:({axis.pre_size}){axis.size}"


def _axis(key: str) -> AxisRef:
    name, mark, part = key.partition(":(")
    return AxisRef.parse(f'"{name}":({part}' if mark else f'"{name}"')


class NewAxis(NamedTuple):
    """An axis that `targets`, tensors of one value, got from tensor `source` of an op, operands numbered before results."""

    axis: AxisRef
    source: int
    targets: tuple[int, ...]


def new_axes(step: LogStep, meshes: Mapping[str, Mesh]) -> list[NewAxis]:
    """The axes that a step of the propagation added to its target.

    The source of the axes of a factor is the first tensor that had all of them before, or more.
    """
    before = list(step.before)
    new = step.new
    rule = _rule(step)
    owner = step.op.operands[0] if step.op is not None and step.op.name == dataflow.EDGE else None
    if rule is None:
        return []
    mappings, sizes = rule.mappings, rule.factor_sizes
    place = step.place if step.place >= 0 else next(i for i, value in enumerate(step.tensors) if value is step.target)
    targets = tuple(i for i, value in enumerate(step.tensors) if value is step.target and mappings[i] == mappings[place])
    if owner is not None:
        before[-1] = dataflow.before_edge(owner, before[-1])
        if place == len(before) - 1:
            new = dataflow.before_edge(owner, new)
    named_mesh = common_mesh([*before, new], meshes)
    if named_mesh is None or new is None:
        return []
    mesh = named_mesh[1]
    tensors = [project(mapping, sharding, sizes, mesh).factors for mapping, sharding in zip(mappings, before, strict=True)]
    old = before[place]
    sources: list[tuple[AxisRef, int]] = []
    for f, factor in project(mappings[place], new, sizes, mesh).factors.items():
        if factor.axes:
            source = next((i for i, tensor in enumerate(tensors) if f in tensor and is_prefix(factor.axes, tensor[f].axes)), None)
            if source is not None:
                sources += [(axis, source) for axis in factor.axes]
    return [NewAxis(axis, source, targets) for axis in _added(old, new) if (source := _source_of(axis, sources)) is not None]


def axes_of(sharding: TensorSharding | None) -> Axes:
    """The axes of all dimensions of a sharding."""
    return () if sharding is None else tuple(axis for dim in sharding.dims for axis in dim.axes)


def _added(old: TensorSharding | None, new: TensorSharding) -> Axes:
    before = axes_of(old)
    return tuple(axis for axis in axes_of(new) if axis not in before)


def _source_of(axis: AxisRef, sources: list[tuple[AxisRef, int]]) -> int | None:
    exact = next((source for other, source in sources if other is axis), None)
    return exact if exact is not None else next((source for other, source in sources if overlaps(axis, other)), None)


def _rule(step: LogStep) -> OpShardingRule | None:
    op = step.op
    if isinstance(op, Op) and op.name not in _IDENTITIES:
        return op.rule
    last = step.tensors[-1]
    value = last if isinstance(last, Value) else step.tensors[0]
    assert not isinstance(value, FunctionResult)
    return identity_rule(value.type.shape, len(step.tensors) - 1)


_IDENTITIES = frozenset((dataflow.EDGE, dataflow.FUNC_EDGE, "sdy.propagation_barrier"))


_KINDS = ("propagation_edges", "sharding_origins")
ATTRIBUTES = frozenset(f"sdy.{prefix}{kind}" for prefix in ("", "block_arg_", "result_") for kind in _KINDS)
"""Names of the debug attributes; the names that constraints and manual computations have as origins stay."""


@dataclass(frozen=True, kw_only=True)
class RemovePropagationDebugInfo(Pass):
    """Removes the attributes that the debug options added."""

    name = "sdy-remove-propagation-debug-info"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Removes them from ops and from arguments and results of functions. Source: Shardy's remove_propagation_debug_info.cc."""
        for function in program.functions:
            for attributes in (*function.argument_attributes, *function.result_attributes):
                for name in ATTRIBUTES & attributes.keys():
                    del attributes[name]
        for block in blocks_of(program):
            for op in block.ops:
                if not ATTRIBUTES.isdisjoint(op.attributes):
                    op.attributes = {name: value for name, value in op.attributes.items() if name not in ATTRIBUTES}

"""`sdy.sharding_origins`: for each value, the input, output or constraint that each of its axes comes from."""

from __future__ import annotations

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import overlaps
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.passes import dataflow
from shardy_py.passes.debug.sources import axes_of, new_axes
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult, Step
from shardy_py.passes.walk import ops_in, ops_of_post

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

    def follow(self, log: list[Step]) -> None:
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
            holder = self.program.main.body.terminator.operands[holder.index]
        return dataflow.shardable_value(holder)

    def write(self) -> None:
        """Sets the attributes."""
        for function in self.program.functions:
            for value, attributes in zip(function.arguments, function.argument_attributes, strict=True):
                if shown := self._shown(value, self.names[value]):
                    attributes[ORIGINS] = shown
            for op in ops_in(function.body):
                origins = [self._shown(result, self.names.get(result)) for result in op.results]
                if any(origins):
                    op.attributes = {**op.attributes, ORIGINS: origins[0] if op.name in _ONE else tuple(origins)}
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

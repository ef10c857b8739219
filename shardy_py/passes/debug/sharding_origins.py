"""`sdy.sharding_origins`: for each value, the input, output or constraint that each of its axes comes from."""

from __future__ import annotations

import re
from typing import Any

from shardy_py.dialect import AxisRef, TensorSharding, parse_axis_ref
from shardy_py.dialect.axis import overlaps
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.passes import dataflow
from shardy_py.passes.debug.sources import axes_of, new_axes
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult, Step
from shardy_py.passes.walk import entry_function, ops_in

ORIGINS = "sdy.sharding_origins"
ORIGIN_NAME = "sdy.sharding_origin_name"

_SELF = "self"
_CONSTRAINT = "sdy.sharding_constraint"
_DICTIONARY = re.compile(r"\{([^{}]*)\}")
_ENTRY = re.compile(r'(?:"([^"]*)"|([\w$.]+)) = "([^"]*)"')
_ONE = frozenset((_CONSTRAINT, dataflow.EDGE))
"""Ops whose attribute is one dictionary; on others it is a list with one per result."""


class ShardingOrigins:
    """The origins of all values while a pass runs.

    Args:
        program: Constraints and manual computations in it that have no name yet get one.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.main = entry_function(program)
        self.names: dict[Holder, str] = {}
        self.of: dict[Holder, dict[str, str]] = {}
        self.results = [FunctionResult(i, s) for i, s in enumerate(self.main.result_shardings)] if self.main is not None else []
        self._name_ops()
        self._begin()

    def _name_ops(self) -> None:
        counts = {_CONSTRAINT: 0, dataflow.MANUAL_COMPUTATION: 0}
        for function in self.program.functions:
            for op in ops_in(function.body):
                if op.name in counts:
                    if ORIGIN_NAME not in op.attributes:
                        prefix = "constraint" if op.name == _CONSTRAINT else "mc"
                        op.attributes = {**op.attributes, ORIGIN_NAME: f"{prefix}_{counts[op.name]}"}
                    counts[op.name] += 1

    def _begin(self) -> None:
        """Takes in what the attributes say, and what values are given."""
        for function in self.program.functions:
            for value, attributes in zip(function.arguments, function.argument_attributes, strict=True):
                self._take(value, f"input: {value.index}", value.sharding, _dictionaries(attributes.get(ORIGINS)))
            for op in ops_in(function.body):
                if op.name == _CONSTRAINT:
                    stated = _dictionaries(op.attributes.get(ORIGINS))
                    self._take(op.results[0], _unquoted(op.attributes[ORIGIN_NAME]), op.results[0].sharding, stated)
                elif op.name == dataflow.EDGE:
                    self._begin_edge(op)
                elif ORIGINS in op.attributes:
                    for result, known in zip(op.results, _dictionaries(op.attributes[ORIGINS]), strict=False):
                        self.of[result] = known
        if self.main is not None:
            for slot, attributes in zip(self.results, self.main.result_attributes, strict=True):
                self._take(slot, f"output: {slot.index}", slot.sharding, _dictionaries(attributes.get(ORIGINS)))

    def _begin_edge(self, edge: Op) -> None:
        owner, result = edge.operands[0], edge.results[0]
        op = owner.owner.parent if isinstance(owner.owner, Block) else owner.owner
        known = _dictionaries(edge.attributes.get(ORIGINS))
        if not isinstance(op, Op) or op.name != dataflow.MANUAL_COMPUTATION:
            if known:
                self.of[result] = known[0]
            return
        inside = isinstance(owner.owner, Block)
        stated = op.attributes.get("in_shardings" if inside else "out_shardings") or ()
        name = f"{_unquoted(op.attributes[ORIGIN_NAME])}_{'input' if inside else 'output'}: {owner.index}"
        self._take(result, name, stated[owner.index] if stated else None, known)

    def _take(self, holder: Holder, name: str, sharding: TensorSharding | None, known: list[dict[str, str]]) -> None:
        self.names[holder] = name
        found = {axis: name if origin == _SELF else origin for axis, origin in known[0].items()} if known else {}
        if not known:
            found = {_key(axis): name for axis in axes_of(sharding)}
        if found:
            self.of[holder] = found

    def follow(self, log: list[Step]) -> None:
        """Notes where the axes come from that the steps of a pass added."""
        for step in log:
            target = self._holder(step.target)
            found = self.of.setdefault(target, {})
            if step.reason == "propagate":
                for new in new_axes(step, self.program.meshes):
                    self._pass_on(new.axis, self.of.get(self._holder(step.tensors[new.source]), {}), found)
            elif step.reason == "group" and step.tensors:
                given = next((value for value in step.tensors if value is not step.target and self.of.get(self._holder(value))), None)
                for axis in axes_of(step.new):
                    self._pass_on(axis, {} if given is None else self.of[self._holder(given)], found)
            elif step.op is not None and ORIGIN_NAME in step.op.attributes:
                name = _unquoted(step.op.attributes[ORIGIN_NAME])
                if step.op.name == dataflow.MANUAL_COMPUTATION:
                    name = f"{name}_input: {step.op.operands.index(step.target)}"  # type: ignore[arg-type]
                for axis in axes_of(step.new):
                    found.setdefault(_key(axis), name)

    @staticmethod
    def _pass_on(axis: AxisRef, given: dict[str, str], found: dict[str, str]) -> None:
        key = _key(axis)
        origin = given.get(key)
        if origin is None:
            origin = next((name for other, name in given.items() if overlaps(axis, _axis(other))), None)
        if origin is not None:
            found.setdefault(key, origin)

    def _holder(self, holder: Holder) -> Holder:
        return self.results[holder.index] if isinstance(holder, FunctionResult) else holder

    def write(self) -> None:
        """Sets the attributes."""
        for function in self.program.functions:
            self._write_function(function)
            for op in ops_in(function.body):
                found = [self._shown(result) for result in op.results]
                if any(found):
                    op.attributes = {**op.attributes, ORIGINS: found[0] if op.name in _ONE else tuple(found)}
        if self.main is not None:
            for slot, attributes in zip(self.results, self.main.result_attributes, strict=True):
                if shown := self._shown(slot):
                    attributes[ORIGINS] = shown

    def _write_function(self, function: Function) -> None:
        for value, attributes in zip(function.arguments, function.argument_attributes, strict=True):
            if shown := self._shown(value):
                attributes[ORIGINS] = shown

    def _shown(self, holder: Value | FunctionResult) -> dict[str, str]:
        own = self.names.get(holder)
        return {axis: _SELF if origin == own else origin for axis, origin in self.of.get(holder, {}).items()}


def _key(axis: AxisRef) -> str:
    """`a`, or `a:(1)2` for a part of an axis."""
    return axis.name if axis.is_full else f"{axis.name}:({axis.pre_size}){axis.size}"


def _axis(key: str) -> AxisRef:
    name, mark, part = key.partition(":(")
    return parse_axis_ref(f'"{name}":({part}' if mark else f'"{name}"')


def _unquoted(name: str) -> str:
    return str(name).strip('"')


def _dictionaries(attribute: Any) -> list[dict[str, str]]:
    """The dictionaries of an attribute, which may be text."""
    if attribute is None:
        return []
    if isinstance(attribute, str):
        return [{quoted or bare: origin for quoted, bare, origin in _ENTRY.findall(text[1])} for text in _DICTIONARY.finditer(attribute)]
    return [dict(attribute)] if isinstance(attribute, dict) else [dict(each) for each in attribute]

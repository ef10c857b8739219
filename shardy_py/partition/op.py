"""Specifications of ops: everything that decides their strategies, except layouts."""

# Attributes hold anything, so what their lists hold has no type.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardy_py.dialect import OpShardingRule
from shardy_py.ir import Op, Type, Value
from shardy_py.rules import rule_of
from shardy_py.rules.traits import CONSTANTS

CHEAP = CONSTANTS | {"stablehlo.iota"}
"""Ops that are recomputed in the layout in which their result is read."""


class TensorSpec(NamedTuple):
    """An operand or a result of a specification; `maker` is the op that makes it if that is one of `CHEAP`, else empty."""

    type: Type
    number: int
    maker: str = ""


@dataclass(frozen=True)
class OpSpec:
    """An op without values and shardings; equal ones run alike under equal layouts. Without a rule it runs on whole operands."""

    name: str
    primitive: str | None
    rule: OpShardingRule | None
    operands: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    attributes: Mapping[str, Any] = field(compare=False, repr=False)
    attribute_key: object = field(repr=False)
    rotates: bool = False

    @property
    def result(self) -> TensorSpec:
        """The only result."""
        (only,) = self.results
        return only

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of operands, then of results."""
        return tuple(tensor.type for tensor in (*self.operands, *self.results))


def spec_of(op: Op, origin: Callable[[Value], Value] | None = None) -> OpSpec:
    """The specification of an op."""

    def maker(value: Value) -> str:
        producer = (value if origin is None else origin(value)).defining_op
        return producer.name if producer is not None and producer.name in CHEAP else ""

    count = len(op.operands)
    operands = tuple(TensorSpec(v.type, i, maker(v)) for i, v in enumerate(op.operands))
    results = tuple(TensorSpec(v.type, count + i) for i, v in enumerate(op.results))
    rule = rule_of(op)
    return OpSpec(op.name, op.primitive, rule, operands, results, op.attributes, _key(op.attributes), rotates(op))


def rotates(op: Op) -> bool:
    """Whether a concatenation is of the end of an array and its beginning."""
    makers = [v.defining_op for v in op.operands] if op.name == "stablehlo.concatenate" else []
    tail, head = makers if len(makers) == 2 else (None, None)
    if tail is None or head is None or tail.name != "stablehlo.slice" or head.name != tail.name or tail.operands[0] is not head.operands[0]:
        return False
    dim = op.attributes["dimension"]
    starts, ends = tail.attributes["start_indices"], head.attributes["limit_indices"]
    return starts[dim] == ends[dim] and not head.attributes["start_indices"][dim] and op.result.type == tail.operands[0].type


def _key(attribute: Any) -> object:
    """A hashable key of an attribute; an unhashable one is only equal to itself."""
    if isinstance(attribute, Mapping):
        return tuple((name, _key(value)) for name, value in sorted(attribute.items()))
    if isinstance(attribute, list | tuple):
        return tuple(map(_key, attribute))
    try:
        hash(attribute)
    except TypeError:
        return id(attribute)
    return attribute

"""Specifications of ops: everything that decides their strategies, except layouts."""

# Attributes hold anything, so what their lists hold has no type.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardy_py.dialect import OpShardingRule
from shardy_py.ir import Op, Type, Value
from shardy_py.rules import rule_of
from shardy_py.rules.traits import CONSTANTS, CONSTRAINTS

CHEAP = CONSTANTS | {"stablehlo.iota"}
"""Ops that are recomputed in the layout in which their result is read."""


FORWARDING = CONSTRAINTS | {"stablehlo.optimization_barrier", "sdy.propagation_barrier"}
"""Ops each of whose results is an operand, brought to the layout of the result."""

WHOLE = frozenset(("stablehlo.fft",))
"""Ops that run on whole operands."""


class TensorSpec(NamedTuple):
    """An operand or a result of a specification; `maker` is the op that makes it if that is one of `CHEAP`, else empty."""

    type: Type
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

    @property
    def result(self) -> TensorSpec:
        """The only result."""
        (only,) = self.results
        return only

    @property
    def types(self) -> tuple[Type, ...]:
        """Types of operands, then of results."""
        return tuple(tensor.type for tensor in (*self.operands, *self.results))


def spec_of(op: Op) -> OpSpec:
    """The specification of an op."""

    def maker(value: Value) -> str:
        producer = value.defining_op
        return producer.name if producer is not None and producer.name in CHEAP else ""

    operands = tuple(TensorSpec(v.type, maker(v)) for v in op.operands)
    results = tuple(TensorSpec(v.type) for v in op.results)
    rule = rule_of(op)
    return OpSpec(op.name, op.primitive, rule, operands, results, op.attributes, _key(op.attributes))


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

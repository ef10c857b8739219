"""Templates: the ops that one JAX equation lowers to, written once per signature and then copied for every equation.

A signature is the primitive, its parameters, the types of its operands and which of them are literals. The ops of a
template refer to numbered slots: the operands of the equation come first, then the results of the ops in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.frontends.primitives.avals import physical_shape, type_of_aval
from shardy_py.ir import TensorType, Type


class Unsupported(Exception):
    """A native template does not cover this signature; JAX's own lowering is read instead."""


SLOTS = tuple[int, ...]


@dataclass(slots=True, eq=False)
class OpTemplate:
    """One op with one result, and its rule; a constant has the value of literal operand `literal` of the equation, or -1."""

    name: str
    operands: SLOTS
    result_type: Type
    attributes: dict[str, Any]
    literal: int = -1
    rule: Any = None
    rule_decided: bool = False


@dataclass(slots=True, eq=False)
class OpsTemplate:
    """Ops in order and a slot per result of the equation; the operand's slot where the primitive returns its operand."""

    ops: tuple[OpTemplate, ...]
    outputs: SLOTS


def ints(values: Iterable[Any]) -> tuple[int, ...]:
    """Numbers of any integer type as Python's."""
    return tuple(map(int, values))


def permuted(type: Type, permutation: Iterable[Any]) -> TensorType:
    """The type of a transposed value."""
    return TensorType(tuple(type.shape[d] for d in ints(permutation)), type.dtype)


class Builder:
    """Writes the template of one equation.

    Operand `i` of the equation is slot `i`. A literal operand becomes a rank-0 `sdy.constant` where an op uses it as
    it is, and one constant of the full shape where it is broadcast, as the constant and its broadcast do in JAX.

    Attributes:
        types: Of its operands, PRNG keys as their physical type.
    """

    def __init__(
        self,
        name: str,
        params: dict[str, Any],
        invars: Sequence[Any],
        outvars: Sequence[Any],
        literals: Sequence[int] = (),
        *,
        platform: str = "cpu",
        axis_sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.params = params
        self.platform = platform
        self.axis_sizes = axis_sizes or {}
        self.avals = [v.aval for v in invars]
        self.out_avals = [v.aval for v in outvars]
        self.types: list[Type] = [type_of_aval(a) for a in self.avals]
        self.out_types: list[Type] = [type_of_aval(a) for a in self.out_avals]
        self.literals = frozenset(literals)
        self._slot_types: list[Type] = list(self.types)
        self._ops: list[OpTemplate] = []

    @property
    def operands(self) -> tuple[int, ...]:
        """The slots of all operands."""
        return tuple(range(len(self.avals)))

    @property
    def out_type(self) -> Type:
        """The type of the only result."""
        (only,) = self.out_types
        return only

    def type(self, slot: int) -> Type:
        """The type of the value in a slot."""
        return self._slot_types[slot]

    def op(self, name: str, operands: Sequence[int], result: Type, **attributes: Any) -> int:
        """Appends an op and returns the slot of its result."""
        self._ops.append(OpTemplate(name, tuple(operands), result, attributes))
        self._slot_types.append(result)
        return len(self._slot_types) - 1

    def constant(self, shape: tuple[int, ...], dtype: str, value: object) -> int:
        """Appends a constant with one value everywhere; JAX's rank-0 constant and its broadcast are this one op."""
        return self.op("sdy.constant", (), TensorType(shape, dtype), value=value)

    def like(self, slot: int, value: object) -> int:
        """As `mlir.full_like_aval`: a constant of the type of another value."""
        wanted = self.type(slot)
        return self.constant(wanted.shape, wanted.dtype, value)

    def broadcast(self, slot: int, shape: tuple[int, ...], dimensions: Sequence[int]) -> int:
        """A broadcast_in_dim, or one constant where the operand is a rank-0 literal."""
        source = self.type(slot)
        wanted = TensorType(shape, source.dtype)
        if source.rank == 0 and slot in self.literals:
            constant = self.op("sdy.constant", (), wanted)
            self._ops[-1].literal = slot
            return constant
        return self.op("stablehlo.broadcast_in_dim", (slot,), wanted, broadcast_dimensions=tuple(int(d) for d in dimensions))

    def match(self, slots: Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
        """As `mlir.multi_broadcast_in_dim`: every value of another shape is broadcast to `shape`, aligned right."""
        matched = []
        for slot in slots:
            type_ = self.type(slot)
            if type_.shape != shape:
                slot = self.broadcast(slot, shape, range(len(shape) - type_.rank, len(shape)))
            matched.append(slot)
        return tuple(matched)

    def element_shape(self, aval: Any) -> tuple[int, ...]:
        """The dimensions that a PRNG key adds to the physical type; () for other elements."""
        return physical_shape(aval)[len(aval.shape) :]

    def build(self, outputs: Sequence[int]) -> OpsTemplate:
        """Ends the template; literals used as they are become constants in front, in operand order."""
        used = {s for op in self._ops for s in op.operands} | set(outputs)
        direct = [i for i in sorted(self.literals) if i in used]
        if not direct:
            return OpsTemplate(tuple(self._ops), tuple(outputs))
        n = len(self.avals)
        moved = {i: n + k for k, i in enumerate(direct)}

        def slot(s: int) -> int:
            return moved.get(s, s) if s < n else s + len(direct)

        front = [OpTemplate("sdy.constant", (), self.types[i], {}, i) for i in direct]
        for op in self._ops:
            op.operands = tuple(slot(s) for s in op.operands)
        return OpsTemplate((*front, *self._ops), tuple(slot(s) for s in outputs))


TemplateBuilder = Callable[[Builder], OpsTemplate]

"""Templates: the ops that one JAX equation lowers to, written once per signature and then copied for every equation.

A signature is the primitive, its parameters, the types of its operands and which of them are literals. The ops of a
template refer to numbered slots: the operands of the equation come first, then the results of the ops in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardy_py.dialect import TensorSharding
from shardy_py.frontends.legalize_chlo import expand
from shardy_py.frontends.primitives.avals import physical_shape, type_of_aval
from shardy_py.ir import Block, TensorType, Type


class Unsupported(Exception):
    """A native template does not cover this signature; JAX's own lowering is read instead."""


SLOTS = tuple[int, ...]


class OpTemplate:
    """One op, its rule and its results' shardings; a constant has the value of literal operand `literal` of the equation, or -1."""

    __slots__ = ("attributes", "literal", "name", "operands", "result_types", "rule", "rule_decided", "sharding")

    def __init__(self, name: str, operands: SLOTS, result_types: tuple[Type, ...], attributes: dict[str, Any], literal: int = -1) -> None:
        self.name = name
        self.operands = operands
        self.result_types = result_types
        self.attributes = attributes
        self.literal = literal
        self.rule: Any = None
        self.rule_decided = False
        self.sharding: TensorSharding | None = None


class OpsTemplate:
    """Ops in order and a slot per result of the equation, that of an operand where the primitive gives its operand back."""

    __slots__ = ("ops", "outputs")

    def __init__(self, ops: tuple[OpTemplate, ...], outputs: SLOTS) -> None:
        self.ops = ops
        self.outputs = outputs


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
        sharding_of: Callable[[Any], TensorSharding | None] | None = None,
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
        self._sharding_of = sharding_of
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
        """Appends an op with one result and returns the result's slot."""
        return self.ops(name, operands, (result,), **attributes)[0]

    def ops(self, name: str, operands: Sequence[int], results: Sequence[Type], **attributes: Any) -> tuple[int, ...]:
        """Appends an op with any number of results and returns their slots."""
        if name.startswith("chlo."):
            expanded = self._expanded(name, operands, results, attributes)
            if expanded is not None:
                return expanded
        return self._append(name, operands, results, attributes)

    def _append(self, name: str, operands: Sequence[int], results: Sequence[Type], attributes: dict[str, Any]) -> tuple[int, ...]:
        first = len(self._slot_types)
        self._ops.append(OpTemplate(name, tuple(operands), tuple(results), attributes))
        self._slot_types.extend(results)
        return tuple(range(first, first + len(results)))

    def _expanded(self, name: str, operands: Sequence[int], results: Sequence[Type], attributes: dict[str, Any]) -> tuple[int, ...] | None:
        arguments = Block([self.type(s) for s in operands]).arguments
        expansion = expand(name, arguments, results, attributes)
        if expansion is None:
            return None
        ops, values = expansion
        slots = dict(zip(arguments, operands))
        for op in ops:
            results_of_op = self._append(op.name, [slots[v] for v in op.operands], [v.type for v in op.results], op.attributes)
            slots.update(zip(op.results, results_of_op))
        return tuple(slots[v] for v in values)

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
                slot = self.typed(self.broadcast(slot, shape, range(len(shape) - type_.rank, len(shape))))
            elif self._sharding_of is not None and slot < len(self.avals) and not self._is_typed_as_result(slot):
                slot = self.typed(slot)
            matched.append(slot)
        return tuple(matched)

    def _is_typed_as_result(self, slot: int) -> bool:
        sharding = self.avals[slot].sharding
        return bool(sharding.spec.unreduced or sharding.spec.reduced) or sharding == self.out_avals[0].sharding

    def typed(self, slot: int, aval: Any = None) -> int:
        """As `mlir.lower_with_sharding_in_types`: the sharding in a type, that of the first result by default, as a constraint."""
        if self._sharding_of is None:
            return slot
        sharding = self._sharding_of(self.out_avals[0] if aval is None else aval)
        if sharding is None:
            return slot
        slot = self.op("sdy.sharding_constraint", (slot,), self.type(slot))
        self._ops[-1].sharding = sharding
        return slot

    def step(self, name: str, *operands: int) -> int:
        """An op of the result's type that JAX lowers as an equation of its own."""
        return self.typed(self.op(name, operands, self.out_type))

    def element_shape(self, aval: Any) -> tuple[int, ...]:
        """The dimensions that a PRNG key adds to the physical type; () for other elements."""
        return physical_shape(aval)[len(aval.shape) :]

    def build(self, outputs: Sequence[int], *, typed: bool = True) -> OpsTemplate:
        """Ends the template; literals used as they are become constants in front, in operand order."""
        if typed:
            outputs = [self.typed(s, a) for s, a in zip(outputs, self.out_avals, strict=True)]
        used = {s for op in self._ops for s in op.operands} | set(outputs)
        direct = [i for i in sorted(self.literals) if i in used]
        if not direct:
            return OpsTemplate(tuple(self._ops), tuple(outputs))
        n = len(self.avals)
        moved = {i: n + k for k, i in enumerate(direct)}

        def slot(s: int) -> int:
            return moved.get(s, s) if s < n else s + len(direct)

        front = [OpTemplate("sdy.constant", (), (self.types[i],), {}, i) for i in direct]
        for op in self._ops:
            op.operands = tuple(slot(s) for s in op.operands)
        return OpsTemplate((*front, *self._ops), tuple(slot(s) for s in outputs))


TemplateBuilder = Callable[[Builder], OpsTemplate]

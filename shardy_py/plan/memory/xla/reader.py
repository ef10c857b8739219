"""Reads a program with explicit collectives as the graph of what XLA carries out for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardy_py.cost.liveness.graph import Kind, Node, Region
from shardy_py.cost.liveness.kinds import kind_of
from shardy_py.cost.liveness.xla.fusion import POINTWISE
from shardy_py.ir import Op, Program, Value
from shardy_py.ir.types import TensorType
from shardy_py.plan.memory.reader import Reader, label_of, same_constant
from shardy_py.plan.memory.xla.constants import chosen, folded
from shardy_py.plan.memory.xla.floats import rounds
from shardy_py.rules.traits import CONSTANTS

_EXTREMES = ("stablehlo.maximum", "stablehlo.minimum")
LIBRARY_REDUCTIONS: Mapping[str, frozenset[str]] = {"float16": frozenset(_EXTREMES), "float32": frozenset(("stablehlo.add", *_EXTREMES))}
"""Element type -> reductions that XLA for CPUs leaves to a library."""

LIBRARY_ELEMENTS = 4096
"""Smallest operand, in elements, whose float32 reduction XLA for CPUs leaves to a library."""

Expansion = Callable[["XlaReader", Op, Region], None]
"""Appends the nodes of an op to a region."""


class XlaReader(Reader):
    """Reads a program with explicit collectives: constants are folded, and ops that XLA carries out in several steps are several nodes."""

    def __init__(self, program: Program, sums: Sequence[tuple[str, ...]], expansions: Mapping[str, Expansion], widens: bool) -> None:
        super().__init__(program, sums)
        self.expansions = expansions
        self.widens = widens
        self.splats: dict[Value, Any] = {}
        self.reduced: dict[Op, list[int]] = {}

    def append(self, op: Op, region: Region) -> None:
        """Appends the nodes of an op that computes to a region."""
        if len(op.results) == 1 and not op.regions and self._folded(op, region):
            return
        expand = self.expansions.get(op.name)
        if expand is not None:
            expand(self, op, region)
        elif not self._reshaped_after(op, region):
            region.nodes.append(self.node(op))

    def node(self, op: Op) -> Node:
        """One node for one op, with its regions."""
        node = super().node(op)
        node.expensive = self.widens and len(node.results) == 1 and rounds(op)
        return node

    def kind(self, op: Op) -> Kind:
        """The memory behaviour of an op."""
        kind = super().kind(op)
        return self._reduction(op) if kind is Kind.REDUCE else kind

    def _is(self, value: Value, other: Value) -> int:
        if other in self.splats:
            self.splats[value] = self.splats[other]
        return super()._is(value, other)

    def _reshaped_after(self, op: Op, region: Region) -> bool:
        """Reads an elementwise op on a reshaped operand as a reshape of its result (`ReshapeMover`); whether it did."""
        maker = op.operands[0].defining_op if len(op.operands) == len(op.results) == 1 else None
        if maker is None or maker.name != "stablehlo.reshape" or kind_of(op.name) not in POINTWISE:
            return False
        before = maker.operands[0]
        if before not in self.numbers or before in self.splats:
            return False
        shape, size = self.local_shape(before), self.local_bytes(op.result)
        kind = TensorType(before.type.shape, op.result.type.dtype)
        if math.prod(shape) != math.prod(self.local_shape(op.result)):
            return False
        inner = self.graph.value(size)
        self.graph.array_types[inner] = shape, kind.dtype
        self.graph.origins[inner] = op.result
        key = op.name, self.text(op.attributes), kind, size
        region.nodes.append(Node(kind_of(op.name), [self.numbers[before]], [inner], (), key, label_of(op), op.name, op))
        self.numbers[op.result] = self.emit(op, region, Kind.VIEW, [inner], size, "reshaped")
        return True

    def _folded(self, op: Op, region: Region) -> bool:
        """Folds an op into a splat or one of its operands, if it can; returns whether it has."""
        if op.name in CONSTANTS:
            number = _number(op.attributes["value"])
            if number is not None:
                self.splats[op.result] = number
            return False
        if self.splats.keys().isdisjoint(op.operands):
            return False
        numbers = [self.splats.get(v) for v in op.operands]
        which = chosen(op, numbers)
        if which is not None and op.operands[which].type == op.result.type:
            self._is(op.result, op.operands[which])
            return True
        number = folded(op, numbers)
        if number is None:
            return False
        self.splats[op.result] = number
        kind = Kind.BROADCAST if op.result.type.rank else Kind.LITERAL
        node = Node(kind, [], [self._new(op.result)], (), None, label_of(op), op.name, op)
        node.key = ("sdy.constant", op.result.type, self.local_bytes(op.result), (number, math.copysign(1, number)))
        node.varying_dims = ()
        region.nodes.append(node)
        return True

    def _reduction(self, op: Op) -> Kind:
        if len(op.results) > 1:
            return Kind.REDUCE
        if not isinstance(op.attributes.get("body"), str):
            return Kind.WHOLE
        x = op.operands[0]
        by_library = op.attributes["body"] in LIBRARY_REDUCTIONS.get(x.type.dtype, ())
        return Kind.LIBRARY if by_library and math.prod(self.local_shape(x)) >= LIBRARY_ELEMENTS else Kind.REDUCE

    def emit(self, op: Op, region: Region, kind: Kind, operands: Sequence[int], size: int, key: Any = "", array_type: Any = None) -> int:
        """Appends a node for one step of an op, and returns its result; `key` is "" for the step that makes the op's result."""
        result = self.graph.value(size)
        if array_type is None and len(op.results) == 1 and size == self.local_bytes(op.result):
            array_type = self.array_type(op.result)
        self.graph.array_types[result] = array_type
        if key == "" and len(op.results) == 1 and size == self.local_bytes(op.result):
            self.graph.origins[result] = op.result
        own = self.key(op, [])
        whole = None if own is None else (own, key, size)
        region.nodes.append(Node(kind, list(operands), [result], key=whole, label=label_of(op), source=op))
        return result

    def emit_several(self, op: Op, region: Region, kind: Kind, operands: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """As `emit`, with several results."""
        results = [self.graph.value(size) for size in sizes]
        own = self.key(op, [])
        key = None if own is None else (own, tuple(sizes))
        region.nodes.append(Node(kind, list(operands), results, key=key, label=label_of(op), source=op))
        return results


def _number(value: Any) -> Any:
    """The number that all elements of a constant are; None if they differ, or are many."""
    same = same_constant(value)
    if isinstance(same, tuple):
        return same[0]
    if not isinstance(same, bytes) or not same or not hasattr(value, "reshape"):
        return None
    first = value.reshape(-1)[:1]
    number = first.item()
    return number if first.tobytes() * value.size == same and isinstance(number, bool | int | float) else None

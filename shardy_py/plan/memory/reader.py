"""Reads a program with explicit collectives as a graph of what one device computes and keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardy_py.cost.liveness.fusion import POINTWISE
from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region
from shardy_py.cost.liveness.kinds import kind_of
from shardy_py.dialect import TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.ir import Block, Op, Program, Type, Value
from shardy_py.ir.types import TensorType, element_bits
from shardy_py.passes.dataflow import COMPUTATIONS, MANUAL_COMPUTATION, get_sharding
from shardy_py.plan.in_place import FORWARDING
from shardy_py.plan.memory.constants import chosen, folded
from shardy_py.plan.memory.floats import rounds

_SAME = frozenset((*FORWARDING, "sdy.func_data_flow_edge", "sdy.replicated_to_unreduced")) - {
    "stablehlo.optimization_barrier",
    "sdy.reshard",
}
"""Ops whose result lies where their operand lies."""

_CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant"))


_EXTREMES = ("stablehlo.maximum", "stablehlo.minimum")
LIBRARY_REDUCTIONS: Mapping[str, frozenset[str]] = {"float16": frozenset(_EXTREMES), "float32": frozenset(("stablehlo.add", *_EXTREMES))}
"""Element type -> reductions that XLA for CPUs leaves to a library."""

LIBRARY_ELEMENTS = 4096
"""From how many elements of an operand XLA for CPUs leaves reductions of float32 to a library."""

COMPARED = 1 << 16
"""From how many bytes on constants are not compared with each other."""


Expansion = Callable[["Reader", Op, Region], None]
"""Appends the nodes of an op to a region."""


class Reader:
    """Reads a program with explicit collectives.

    Args:
        program: Its calls are inlined.
        expansions: Op -> the function that appends its nodes, of ops that the compiler carries out in several steps.
        sums: The axes of its `stablehlo.all_reduce` ops, in order.
        widens: Whether the compiler computes with floats of two bytes in float32.
    """

    def __init__(
        self, program: Program, expansions: Mapping[str, Expansion], sums: Sequence[tuple[str, ...]] = (), widens: bool = False
    ) -> None:
        self.program = program
        self.expansions = expansions
        self.graph = Graph()
        self.numbers: dict[Value, int] = {}
        self.known: dict[Value, Any] = {}
        self._pieces: dict[tuple[Type, TensorSharding | None], tuple[tuple[int, ...], int]] = {}
        self._pieces_of: dict[Value, tuple[tuple[int, ...], int]] = {}
        self._keys: dict[int, tuple[Any, Any]] = {}
        self.reduced: dict[Op, list[int]] = {}
        self.sums = iter(sums)
        self.widens = widens

    def read(self, names: Sequence[str]) -> Graph:
        """The graph of the function `main`.

        Args:
            names: Paths of its arguments.
        """
        main = self.program.main
        region = self.graph.main
        for value, name in zip(main.arguments, names):
            number = self._new(value)
            region.arguments.append(number)
            self.graph.names[number] = name
        self._block(main.body, region)
        region.results = [self.numbers[v] for v in main.body.terminator.operands]
        return self.graph

    def local_shape(self, value: Value) -> tuple[int, ...]:
        """The shape of the largest piece that a device has."""
        return self._piece(value)[0]

    def local_bytes(self, value: Value) -> int:
        """Bytes of the largest piece that a device has."""
        return self._piece(value)[1]

    def _piece(self, value: Value) -> tuple[tuple[int, ...], int]:
        of_value = self._pieces_of.get(value)
        if of_value is not None:
            return of_value
        kind, sharding = value.type, get_sharding(value)
        found = self._pieces.get((kind, sharding))
        if found is None:
            shape = kind.shape
            if sharding is not None:
                mesh = sharding.mesh_in(self.program.meshes)
                ways = (num_shards(d.axes, mesh) for d in sharding.dims)
                shape = (*(-(-n // k) for n, k in zip(shape, ways)), *shape[sharding.rank :])  # a maximal sharding has no dimensions
            size = -(-math.prod(shape) * element_bits(kind.dtype) // 8) if isinstance(kind, TensorType) else 0
            found = self._pieces[kind, sharding] = shape, size
        self._pieces_of[value] = found
        return found

    def _new(self, value: Value) -> int:
        number = self.numbers[value] = self.graph.value(self.local_bytes(value))
        self.graph.forms[number] = self.form(value)
        return number

    def form(self, value: Value) -> Any:
        """Shape and element type on a device."""
        return self.local_shape(value), value.type.dtype

    def _block(self, block: Block, region: Region) -> None:
        for op in block.ops[:-1]:
            self._op(op, region)

    def _op(self, op: Op, region: Region) -> None:
        name = op.name
        if name in _SAME:
            for value, operand in zip(op.results, op.operands):
                self._is(value, operand)
            return
        if name in COMPUTATIONS:
            self._inlined(op, region)
            return
        if len(op.results) == 1 and not op.regions and self._folded(op, region):
            return
        expand = self.expansions.get(name)
        if expand is not None:
            expand(self, op, region)
        elif not self._reshaped_after(op, region):
            region.nodes.append(self.node(op))

    def _reshaped_after(self, op: Op, region: Region) -> bool:
        """Whether an op is one on each element of what was reshaped, and was read as a reshape of the op's result (`ReshapeMover`)."""
        made = op.operands[0].defining_op if len(op.operands) == len(op.results) == 1 else None
        if made is None or made.name != "stablehlo.reshape" or kind_of(op.name) not in POINTWISE:
            return False
        before = made.operands[0]
        if before not in self.numbers or before in self.known:
            return False
        shape, size = self.local_shape(before), self.local_bytes(op.result)
        kind = TensorType(before.type.shape, op.result.type.dtype)
        if math.prod(shape) != math.prod(self.local_shape(op.result)):
            return False
        inner = self.graph.value(size)
        self.graph.forms[inner] = shape, kind.dtype
        key = op.name, self._text(op.attributes), kind, size
        region.nodes.append(Node(kind_of(op.name), [self.numbers[before]], [inner], (), key, _label(op), op.name, op))
        self.numbers[op.result] = self.made(op, region, Kind.VIEW, [inner], size, "reshaped")
        return True

    def _folded(self, op: Op, region: Region) -> bool:
        """Whether an op gives a number that is known, or one of its operands, and was read as that."""
        if op.name in _CONSTANTS:
            number = _number(op.attributes["value"])
            if number is not None:
                self.known[op.result] = number
            return False
        numbers = [self.known.get(v) for v in op.operands]
        if not numbers or numbers == [None] * len(numbers):
            return False
        which = chosen(op, numbers)
        if which is not None and op.operands[which].type == op.result.type:
            self._is(op.result, op.operands[which])
            return True
        number = folded(op, numbers)
        if number is None:
            return False
        self.known[op.result] = number
        kind = Kind.BROADCAST if op.result.type.rank else Kind.LITERAL
        node = Node(kind, [], [self._new(op.result)], (), None, _label(op), op.name, op)
        node.key = ("sdy.constant", op.result.type, self.local_bytes(op.result), (number, math.copysign(1, number)))
        node.along = ()
        region.nodes.append(node)
        return True

    def made(self, op: Op, region: Region, kind: Kind, operands: Sequence[int], size: int, key: Any = "", form: Any = None) -> int:
        """Appends a node that is part of how an op is computed; returns its result.

        Args:
            op: The op.
            region: Where to.
            kind: Of the node.
            operands: What it reads.
            size: Bytes of its result.
            key: What it computes, besides what the op does.
            form: Its form; by default that of the op's result where it has its size.
        """
        result = self.graph.value(size)
        if form is None and len(op.results) == 1 and size == self.local_bytes(op.result):
            form = self.form(op.result)
        self.graph.forms[result] = form
        own = self.key(op, [])
        whole = None if own is None else (own, key, size)
        region.nodes.append(Node(kind, list(operands), [result], key=whole, label=_label(op), source=op))
        return result

    def made_several(self, op: Op, region: Region, kind: Kind, operands: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """As `made`, with several results.

        Args:
            op: The op.
            region: Where to.
            kind: Of the node.
            operands: What it reads.
            sizes: Bytes of its results.
        """
        results = [self.graph.value(size) for size in sizes]
        own = self.key(op, [])
        key = None if own is None else (own, tuple(sizes))
        region.nodes.append(Node(kind, list(operands), results, key=key, label=_label(op), source=op))
        return results

    def _inlined(self, op: Op, region: Region) -> None:
        """The body of a computation in place of it; between whole arrays and those of a manual computation nothing is done."""
        body = op.regions[0]
        for argument, operand in zip(body.arguments, op.operands):
            number = self._is(argument, operand)
            if op.name == MANUAL_COMPUTATION:
                self.graph.bytes[number] = min(self.graph.bytes[number], self.local_bytes(argument))
                self.graph.forms[number] = self.form(argument)
        self._block(body, region)
        for result, inner in zip(op.results, body.terminator.operands):
            self._is(result, inner)

    def _is(self, value: Value, other: Value) -> int:
        """Reads one value as another; returns its number."""
        if other in self.known:
            self.known[value] = self.known[other]
        number = self.numbers[value] = self.numbers[other]
        return number

    def node(self, op: Op) -> Node:
        """One node for one op, with what is in its regions."""
        constant = op.name in _CONSTANTS
        kind = kind_of(op.name)
        if constant:
            kind = Kind.BROADCAST if _is_splat(op) and op.result.type.rank else Kind.LITERAL
        if kind is Kind.REDUCE:
            kind = self._reduction(op)
        operands = [self.numbers[v] for v in op.operands]
        regions: list[Region] = []
        if kind in (Kind.LOOP, Kind.BRANCH):
            for block in op.regions:
                inner = Region([self._new(a) for a in block.arguments])
                self._block(block, inner)
                inner.results = [self.numbers[v] for v in block.terminator.operands]
                regions.append(inner)
        results = [self._new(v) for v in op.results]
        node = Node(kind, operands, results, tuple(regions), self.key(op, results), _label(op), op.name, op)
        node.dear = self.widens and len(results) == 1 and rounds(op)
        if kind is Kind.BROADCAST:
            node.along = _along(op)
        if kind is Kind.SUM:
            axes = next(self.sums, None) if op.name == "stablehlo.all_reduce" else None
            if not axes:  # those that the user wrote do not say over which: of one psum they are the same
                axes = id(op.location) if op.name == "stablehlo.all_reduce" else str(op.attributes)
            node.group = op.primitive, op.results[0].type.dtype, axes, _combined_by(op)
            node.key = (node.key, node.group)
        return node

    def _reduction(self, op: Op) -> Kind:
        if len(op.results) > 1:
            return Kind.REDUCE
        if not isinstance(op.attributes.get("body"), str):
            return Kind.WHOLE
        x = op.operands[0]
        by_library = op.attributes["body"] in LIBRARY_REDUCTIONS.get(x.type.dtype, ())
        return Kind.LIBRARY if by_library and math.prod(self.local_shape(x)) >= LIBRARY_ELEMENTS else Kind.REDUCE

    def key(self, op: Op, results: list[int]) -> Any:
        """What an op computes, apart from its operands; None where it has effects."""
        if op.name == "stablehlo.custom_call" and op.attributes.get("has_side_effect"):
            return None
        if op.name in _CONSTANTS:
            return op.name, op.result.type, self.local_bytes(op.result), _same_constant(op.attributes["value"])
        if len(results) == 1:
            key = self.key_of(op.name, op.attributes, op.results[0], self.graph.bytes[results[0]])
            return (key, op.primitive) if op.name == "stablehlo.compare" else key
        return op.name, self._text(op.attributes), tuple(v.type for v in op.results), tuple(self.graph.bytes[r] for r in results)

    def key_of(self, name: str, attributes: dict[str, Any], result: Value, size: int) -> Any:
        """What an op of this name with one result like this computes."""
        return name, self._text(attributes), result.type, size

    def _text(self, attributes: dict[str, Any]) -> str:
        if not attributes:
            return ""
        known = self._keys.get(id(attributes))
        if known is None:
            known = self._keys[id(attributes)] = (attributes, repr(sorted(attributes.items(), key=lambda item: item[0])))
        return known[1]


def _same_constant(value: Any) -> Any:
    """Equal for equal constants of one type; arrays that are not small are only equal to themselves."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int | float):
        return (value, math.copysign(1, value)) if value == value else "nan"
    if getattr(value, "nbytes", COMPARED) < COMPARED and hasattr(value, "tobytes"):
        return value.tobytes()
    return id(value)


def _number(value: Any) -> Any:
    """The number that all elements of a constant are; None if they differ, or are many."""
    same = _same_constant(value)
    if isinstance(same, tuple):
        return same[0]
    if not isinstance(same, bytes) or not same or not hasattr(value, "reshape"):
        return None
    first = value.reshape(-1)[:1]
    number = first.item()
    return number if first.tobytes() * value.size == same and isinstance(number, bool | int | float) else None


def _combined_by(op: Op) -> str:
    """What an all-reduce that a reduction needs does to the parts, for sums and extremes are not carried out at once."""
    made = op.operands[0].defining_op
    body = "" if made is None or op.name != "sdy.all_reduce" else made.attributes.get("body", "")
    return body if isinstance(body, str) else ""


def _along(op: Op) -> tuple[int, ...]:
    """The dimensions along which the elements differ of a constant of one number, an iota, or what is repeated."""
    if op.name == "stablehlo.iota":
        return (op.attributes["iota_dimension"],)
    return tuple(op.attributes.get("broadcast_dimensions", ()))


def _label(op: Op) -> str:
    return op.primitive or op.name.rpartition(".")[2]


def _is_splat(op: Op) -> bool:
    value = op.attributes.get("value")
    if isinstance(value, str):  # MLIR text, as in a plan that was read from a file
        several = value.startswith("dense<[") and "," in value
        return not several and not value.startswith("dense_resource<")
    return getattr(value, "size", 1) <= 1 or getattr(value, "is_splat", False)

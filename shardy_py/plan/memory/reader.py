"""Reads a program with explicit collectives as the graph of one device."""

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
from shardy_py.rules.traits import CONSTANTS

_SAME = frozenset((*FORWARDING, "sdy.func_data_flow_edge", "sdy.replicated_to_unreduced")) - {
    "stablehlo.optimization_barrier",
    "sdy.reshard",
}
"""Ops whose result lies where their operand lies."""


_EXTREMES = ("stablehlo.maximum", "stablehlo.minimum")
LIBRARY_REDUCTIONS: Mapping[str, frozenset[str]] = {"float16": frozenset(_EXTREMES), "float32": frozenset(("stablehlo.add", *_EXTREMES))}
"""Element type -> reductions that XLA for CPUs leaves to a library."""

LIBRARY_ELEMENTS = 4096
"""Smallest operand, in elements, whose float32 reduction XLA for CPUs leaves to a library."""

MIN_UNCOMPARED_BYTES = 1 << 16
"""Constants of at least this many bytes are not compared with each other."""


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
        self.splats: dict[Value, Any] = {}
        self._pieces: dict[tuple[Type, TensorSharding | None], tuple[tuple[int, ...], int]] = {}
        self._pieces_of: dict[Value, tuple[tuple[int, ...], int]] = {}
        self._keys: dict[int, tuple[Any, Any]] = {}
        self.reduced: dict[Op, list[int]] = {}
        self.sums = iter(sums)
        self.widens = widens

    def read(self) -> Graph:
        """The graph of the function `main`."""
        main = self.program.main
        region = self.graph.main
        region.arguments = [self._new(value) for value in main.arguments]
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
        piece = self._pieces.get((kind, sharding))
        if piece is None:
            shape = kind.shape
            if sharding is not None:
                mesh = sharding.mesh_in(self.program.meshes)
                shards = (num_shards(d.axes, mesh) for d in sharding.dims)
                shape = (*(-(-n // k) for n, k in zip(shape, shards)), *shape[sharding.rank :])  # a maximal sharding has no dimensions
            size = -(-math.prod(shape) * element_bits(kind.dtype) // 8) if isinstance(kind, TensorType) else 0
            piece = self._pieces[kind, sharding] = shape, size
        self._pieces_of[value] = piece
        return piece

    def _new(self, value: Value) -> int:
        number = self.numbers[value] = self.graph.value(self.local_bytes(value))
        self.graph.array_types[number] = self.array_type(value)
        self.graph.origins[number] = value
        return number

    def array_type(self, value: Value) -> Any:
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
        key = op.name, self._text(op.attributes), kind, size
        region.nodes.append(Node(kind_of(op.name), [self.numbers[before]], [inner], (), key, _label(op), op.name, op))
        self.numbers[op.result] = self.emit(op, region, Kind.VIEW, [inner], size, "reshaped")
        return True

    def _folded(self, op: Op, region: Region) -> bool:
        """Reads an op that folds to a splat or to one of its operands as that; whether it did."""
        if op.name in CONSTANTS:
            number = _number(op.attributes["value"])
            if number is not None:
                self.splats[op.result] = number
            return False
        numbers = [self.splats.get(v) for v in op.operands]
        if not numbers or numbers == [None] * len(numbers):
            return False
        which = chosen(op, numbers)
        if which is not None and op.operands[which].type == op.result.type:
            self._is(op.result, op.operands[which])
            return True
        number = folded(op, numbers)
        if number is None:
            return False
        self.splats[op.result] = number
        kind = Kind.BROADCAST if op.result.type.rank else Kind.LITERAL
        node = Node(kind, [], [self._new(op.result)], (), None, _label(op), op.name, op)
        node.key = ("sdy.constant", op.result.type, self.local_bytes(op.result), (number, math.copysign(1, number)))
        node.varying_dims = ()
        region.nodes.append(node)
        return True

    def emit(self, op: Op, region: Region, kind: Kind, operands: Sequence[int], size: int, key: Any = "", array_type: Any = None) -> int:
        """Appends a node that is one step of an op; returns its result.

        Args:
            op: The op.
            region: Where nodes go.
            kind: Of the node.
            operands: Values that it reads.
            size: Bytes of its result.
            key: Tells the steps of an op apart; "" is the one that makes its result, up to the order of dimensions.
            array_type: Of the result; by default that of the op's result where it has its size.
        """
        result = self.graph.value(size)
        if array_type is None and len(op.results) == 1 and size == self.local_bytes(op.result):
            array_type = self.array_type(op.result)
        self.graph.array_types[result] = array_type
        if key == "" and len(op.results) == 1 and size == self.local_bytes(op.result):
            self.graph.origins[result] = op.result
        own = self.key(op, [])
        whole = None if own is None else (own, key, size)
        region.nodes.append(Node(kind, list(operands), [result], key=whole, label=_label(op), source=op))
        return result

    def emit_several(self, op: Op, region: Region, kind: Kind, operands: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """As `emit`, with several results.

        Args:
            op: The op.
            region: Where nodes go.
            kind: Of the node.
            operands: Values that it reads.
            sizes: Bytes of its results.
        """
        results = [self.graph.value(size) for size in sizes]
        own = self.key(op, [])
        key = None if own is None else (own, tuple(sizes))
        region.nodes.append(Node(kind, list(operands), results, key=key, label=_label(op), source=op))
        return results

    def _inlined(self, op: Op, region: Region) -> None:
        """Inlines the body of a computation; the boundary of a manual computation takes no copies."""
        body = op.regions[0]
        for argument, operand in zip(body.arguments, op.operands):
            number = self._is(argument, operand)
            if op.name == MANUAL_COMPUTATION:
                self.graph.bytes[number] = min(self.graph.bytes[number], self.local_bytes(argument))
                self.graph.array_types[number] = self.array_type(argument)
        self._block(body, region)
        for result, inner in zip(op.results, body.terminator.operands):
            self._is(result, inner)

    def _is(self, value: Value, other: Value) -> int:
        """Reads one value as another; returns its number."""
        if other in self.splats:
            self.splats[value] = self.splats[other]
        number = self.numbers[value] = self.numbers[other]
        return number

    def node(self, op: Op) -> Node:
        """One node for one op, with its regions."""
        constant = op.name in CONSTANTS
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
        node.expensive = self.widens and len(results) == 1 and rounds(op)
        if kind is Kind.BROADCAST:
            node.varying_dims = _varying_dims(op)
        if kind is Kind.SUM:
            axes = next(self.sums, None) if op.name == "stablehlo.all_reduce" else None
            if not axes:  # all-reduces of one psum of the user's have the same axes, which the op does not name
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
        """Identity of the computation of an op, apart from its operands; None where it has effects."""
        if op.name == "stablehlo.custom_call" and op.attributes.get("has_side_effect"):
            return None
        if op.name in CONSTANTS:
            return op.name, op.result.type, self.local_bytes(op.result), _same_constant(op.attributes["value"])
        if len(results) == 1:
            key = self.key_of(op.name, op.attributes, op.results[0], self.graph.bytes[results[0]])
            return (key, op.primitive) if op.name == "stablehlo.compare" else key
        return op.name, self._text(op.attributes), tuple(v.type for v in op.results), tuple(self.graph.bytes[r] for r in results)

    def key_of(self, name: str, attributes: dict[str, Any], result: Value, size: int) -> Any:
        """The key of an op of this name with one result like this."""
        return name, self._text(attributes), result.type, size

    def _text(self, attributes: dict[str, Any]) -> str:
        if not attributes:
            return ""
        entry = self._keys.get(id(attributes))
        if entry is None:
            entry = self._keys[id(attributes)] = (attributes, repr(sorted(attributes.items(), key=lambda item: item[0])))
        return entry[1]


def _same_constant(value: Any) -> Any:
    """A key that is equal for equal constants of one type; large arrays are only equal to themselves."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int | float):
        return (value, math.copysign(1, value)) if value == value else "nan"
    if getattr(value, "nbytes", MIN_UNCOMPARED_BYTES) < MIN_UNCOMPARED_BYTES and hasattr(value, "tobytes"):
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
    """The reduction of an all-reduce, since all-reduces of sums and of extremes are not combined."""
    reduction = op.operands[0].defining_op
    body = "" if reduction is None or op.name != "sdy.all_reduce" else reduction.attributes.get("body", "")
    return body if isinstance(body, str) else ""


def _varying_dims(op: Op) -> tuple[int, ...]:
    """The dimensions along which the elements of a splat, an iota or a broadcast differ."""
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

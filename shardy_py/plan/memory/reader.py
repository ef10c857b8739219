"""Reads a program with explicit collectives as the graph of one device: a node for every op, a value for every array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region
from shardy_py.cost.liveness.kinds import kind_of
from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Op, Program, Type, Value
from shardy_py.ir.pieces import local_bytes, local_shape
from shardy_py.passes.dataflow import COMPUTATIONS, EDGE, FUNC_EDGE, MANUAL_COMPUTATION, get_sharding
from shardy_py.rules.traits import CONSTANTS

_SAME = frozenset((EDGE, FUNC_EDGE, "sdy.propagation_barrier", "sdy.replicated_to_unreduced", "sdy.sharding_constraint"))
"""Ops whose result lies where their operand lies."""


MIN_UNCOMPARED_BYTES = 1 << 16
"""Constants of at least this many bytes are not compared with each other."""


class Reader:
    """Reads a program with explicit collectives."""

    def __init__(self, program: Program, sums: Sequence[tuple[str, ...]] = ()) -> None:
        self.program = program
        self.graph = Graph()
        self.numbers: dict[Value, int] = {}
        self.sums = iter(sums)
        self._pieces: dict[tuple[Type, TensorSharding | None], tuple[tuple[int, ...], int]] = {}
        self._pieces_of: dict[Value, tuple[tuple[int, ...], int]] = {}
        self._keys: dict[int, tuple[Any, Any]] = {}

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
            meshes = self.program.meshes
            piece = self._pieces[kind, sharding] = local_shape(kind, sharding, meshes), local_bytes(kind, sharding, meshes)
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
        if op.name in _SAME:
            for value, operand in zip(op.results, op.operands):
                self._is(value, operand)
        elif op.name in COMPUTATIONS:
            self._inlined(op, region)
        else:
            self.append(op, region)

    def append(self, op: Op, region: Region) -> None:
        """Appends the nodes of an op that computes to a region."""
        region.nodes.append(self.node(op))

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
        """Maps a value to the node of another; returns its number."""
        number = self.numbers[value] = self.numbers[other]
        return number

    def node(self, op: Op) -> Node:
        """One node for one op, with its regions."""
        kind = self.kind(op)
        operands = [self.numbers[v] for v in op.operands]
        regions: list[Region] = []
        if kind in (Kind.LOOP, Kind.BRANCH):
            for block in op.regions:
                inner = Region([self._new(a) for a in block.arguments])
                self._block(block, inner)
                inner.results = [self.numbers[v] for v in block.terminator.operands]
                regions.append(inner)
        results = [self._new(v) for v in op.results]
        node = Node(kind, operands, results, tuple(regions), self.key(op, results), label_of(op), op.name, op)
        if kind is Kind.BROADCAST:
            node.varying_dims = _varying_dims(op)
        if kind is Kind.SUM:
            axes = next(self.sums, None) if op.name == "stablehlo.all_reduce" else None
            if not axes:  # all-reduces of one psum of the user's have the same axes, which the op does not name
                axes = id(op.location) if op.name == "stablehlo.all_reduce" else str(op.attributes)
            node.group = op.primitive, op.results[0].type.dtype, axes, _combined_by(op)
            node.key = (node.key, node.group)
        return node

    def kind(self, op: Op) -> Kind:
        """The memory behaviour of an op."""
        if op.name in CONSTANTS:
            return Kind.BROADCAST if _is_splat(op) and op.result.type.rank else Kind.LITERAL
        return kind_of(op.name)

    def key(self, op: Op, results: list[int]) -> Any:
        """Identity of the computation of an op, apart from its operands; None where it has effects."""
        if op.name == "stablehlo.custom_call" and op.attributes.get("has_side_effect"):
            return None
        if op.name in CONSTANTS:
            return op.name, op.result.type, self.local_bytes(op.result), same_constant(op.attributes["value"])
        if len(results) == 1:
            key = self.key_of(op.name, op.attributes, op.results[0], self.graph.bytes[results[0]])
            return (key, op.primitive) if op.name == "stablehlo.compare" else key
        return op.name, self.text(op.attributes), tuple(v.type for v in op.results), tuple(self.graph.bytes[r] for r in results)

    def key_of(self, name: str, attributes: dict[str, Any], result: Value, size: int) -> Any:
        """The key of an op with a name and a single result of a type."""
        return name, self.text(attributes), result.type, size

    def text(self, attributes: dict[str, Any]) -> str:
        """Attributes as text, equal for equal ones."""
        if not attributes:
            return ""
        entry = self._keys.get(id(attributes))
        if entry is None:
            entry = self._keys[id(attributes)] = (attributes, repr(sorted(attributes.items(), key=lambda item: item[0])))
        return entry[1]


def same_constant(value: Any) -> Any:
    """A key that is equal for equal constants of one type; large arrays are only equal to themselves."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int | float):
        return (value, math.copysign(1, value)) if value == value else "nan"
    if getattr(value, "nbytes", MIN_UNCOMPARED_BYTES) < MIN_UNCOMPARED_BYTES and hasattr(value, "tobytes"):
        return value.tobytes()
    return id(value)


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


def label_of(op: Op) -> str:
    """The name of an op for users."""
    return op.primitive or op.name.rpartition(".")[2]


def _is_splat(op: Op) -> bool:
    value = op.attributes.get("value")
    if isinstance(value, str):  # MLIR text, as in a plan that was read from a file
        several = value.startswith("dense<[") and "," in value
        return not several and not value.startswith("dense_resource<")
    return getattr(value, "size", 1) <= 1 or getattr(value, "is_splat", False)

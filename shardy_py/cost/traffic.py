"""Bytes that each op moves to and from memory, given the fusions of a compiler.

Pointwise ops, broadcasts, slices and the like are computed where their result is used. A value lies in memory where it is an argument,
where a loop carries it, where an op makes or reads it that is not fused (a matrix product, a sort, a scatter, a collective), and where it
is returned. A constant is part of the op that reads it; an iota is made by each op that reads it and is not fused. An op reads those of its
operands that lie in memory and writes those of its results that do. Slices read the part that they take, updates write the part that they
change: the rest stays in place. A transpose beside a product is part of it.
Memory keeps up with what collectives send, so they are charged for their links alone (`cost/collectives`). Which values lie in memory does
not depend on shardings, so that costs of layouts are sums over ops and moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from shardy_py.cost.compute import POINTWISE, TRANSCENDENTALS, Accessed, larger
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Block, Op, TensorType, Type, Value
from shardy_py.ir.types import element_bits
from shardy_py.passes.dataflow import COMPUTATIONS
from shardy_py.rules.traits import CONSTANTS, DOTS

FUSED = (
    POINTWISE
    | TRANSCENDENTALS
    | {
        f"stablehlo.{name}"
        for name in "bitcast_convert broadcast_in_dim concatenate constant dynamic_slice iota pad reverse slice transpose".split()
    }
    | {"sdy.constant"}
)
"""Ops that are computed where their result is used."""

RESHARDING = frozenset(f"sdy.{name}" for name in "all_gather all_reduce all_slice all_to_all collective_permute reduce_scatter".split())
"""Collectives of the SDY dialect, and slices."""

MOVES = RESHARDING | {"sdy.reshard"}
"""Ops that bring their operand to another layout; they are part of prices of moves."""

FORWARDED = MOVES | frozenset(
    (
        "stablehlo.reshape",
        "stablehlo.optimization_barrier",
        "sdy.propagation_barrier",
        "sdy.sharding_constraint",
        "sdy.sharding_group",
    )
)
"""Ops whose results are their operands, each in its place, if in another layout."""

_SLICES = frozenset(("stablehlo.slice", "stablehlo.dynamic_slice", "stablehlo.gather"))
_READS_FUSED = frozenset(("stablehlo.reduce", "stablehlo.dynamic_update_slice"))
_COLLECTIVES = frozenset(
    f"stablehlo.{name}" for name in "all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter".split()
)
_NO_TRAFFIC = _COLLECTIVES | frozenset(
    ("stablehlo.while", "stablehlo.case", "stablehlo.return", "sdy.return", "func.return", "sdy.data_flow_edge", *COMPUTATIONS, *FORWARDED)
)


class Access(NamedTuple):
    """A read or a write of an op.

    Attributes:
        number: Index of the operand, or, counted on behind these, of the result.
        bound_by: Index of the result whose piece bounds the elements read, as in slices.
        kernel: Whether a kernel of its own writes it: it is more than a scalar, no slice, and not computed behind a product in its kernel.
    """

    number: int
    times: int = 1
    bound_by: int | None = None
    kernel: bool = False


def traffic(accesses: Iterable[Access], types: Sequence[Type], size: Callable[[int], int]) -> Accessed:
    """What an op reads and writes, once; `size` gives the bytes of an operand's or result's piece, or an array of them."""
    accessed, packed, kernels = 0, 0.0, 0
    for access in accesses:
        piece = size(access.number)
        if access.bound_by is not None:
            piece = piece - larger(0, piece - size(access.bound_by))
        accessed = accessed + access.times * piece
        if access.kernel:
            kernels, type_ = 1, types[access.number]
            if isinstance(type_, TensorType) and 1 < (bits := element_bits(type_.dtype)) < 32:
                packed = packed + piece * (8 / bits)
    return Accessed(accessed, packed, kernels)


class Origins:
    """The values that ops forward, each in its place."""

    forwarding = FORWARDED

    def __init__(self) -> None:
        self._origins: dict[Value, Value] = {}

    def origin(self, value: Value) -> Value:
        """The value that this one forwards."""
        origin = self._origins.get(value)
        if origin is None:
            passed: list[Value] = []
            origin = value
            while origin not in self._origins and (before := self._before(origin)) is not None:
                passed.append(origin)
                origin = before
            origin = self._origins.get(origin, origin)
            for one in (*passed, value):
                self._origins[one] = origin
        return origin

    def forwards(self, op: Op) -> bool:
        """Whether an op's results are its operands."""
        return op.name in self.forwarding or is_folded(op)

    def _before(self, value: Value) -> Value | None:
        """The value that an op's result aliases; None if it has its own memory."""
        owner = value.owner
        if isinstance(owner, Op):
            if self.forwards(owner):
                return owner.operands[value.index] if value.index < len(owner.operands) else None
            return owner.regions[0].terminator.operands[value.index] if owner.name in COMPUTATIONS else None
        parent = owner.parent
        return parent.operands[value.index] if isinstance(parent, Op) and parent.name in COMPUTATIONS else None


class Fusion(Origins):
    """The values of a block (a function's body or a device's region) that lie in memory, whatever their shardings."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._origins.update(zip(block.arguments, block.arguments))
        self._materialized: set[Value] = set()
        self._escaping: set[Value] = set()
        if block.ops:
            self._materialized.update(map(self.origin, block.terminator.operands))
            self._escaping |= self._materialized
        for op in block.walk():
            name = op.name
            if name in FUSED or name in FORWARDED or name in _READS_FUSED or name in COMPUTATIONS or name == "sdy.return":
                continue
            origins = [*map(self.origin, op.operands)]
            self._materialized.update(origins)
            if op.regions or name.endswith(".return"):
                self._escaping.update(origins)

    def in_memory(self, value: Value) -> bool:
        """Whether an origin lies in memory."""
        op = value.defining_op
        if op is None or op.name not in FUSED:
            return True
        if op.name == "stablehlo.iota":
            return value in self._escaping
        return value in self._materialized and op.name not in CONSTANTS

    def accesses(self, op: Op) -> tuple[Access, ...]:
        """The reads and writes of an op; those of ops in its regions are their own."""
        name, count = op.name, len(op.operands)
        if name in _NO_TRAFFIC or name in CONSTANTS or is_folded(op):
            return ()
        if name == "stablehlo.dynamic_update_slice":
            return (Access(1, 2 if self.in_memory(self.origin(op.operands[1])) else 1),)
        if name == "stablehlo.scatter":
            inputs = len(op.results)
            return (*map(Access, range(inputs, count - inputs)), *(Access(i, 3) for i in range(count - inputs, count)))
        numbers: dict[Value, int] = {}
        for i, operand in enumerate(op.operands):
            numbers.setdefault(self.origin(operand), i)
        bound_by = count if name in _SLICES else None
        reads: list[Access] = []
        for origin, i in numbers.items():
            if self.in_memory(origin):
                reads.append(Access(i, bound_by=None if i else bound_by))
            elif origin.defining_op is not None and origin.defining_op.name == "stablehlo.iota" and name not in FUSED | _READS_FUSED:
                reads.append(Access(i, 2))  # made for this op, in the layout that it reads
        fused = name in _SLICES or any(v.defining_op is not None and v.defining_op.name in DOTS for v in numbers)
        written = [(i, result) for i, result in enumerate(op.results, count) if self.in_memory(result)]
        return (*reads, *(Access(i, kernel=result.type.rank > 0 and not fused) for i, result in written))


class Traffic(Fusion):
    """The bytes that the ops of a block move."""

    def __init__(self, block: Block, sizes: LocalSizes) -> None:
        super().__init__(block)
        self.sizes = sizes

    def of(self, op: Op) -> Accessed:
        """What an op reads and writes, once."""
        values = (*op.operands, *op.results)
        return traffic(self.accesses(op), [v.type for v in values], lambda number: self.sizes.bytes(values[number]))


def is_folded(op: Op) -> bool:
    """Whether an op transposes the result of a product, or a value that only products read: XLA folds it into the product."""
    if op.name != "stablehlo.transpose":
        return False
    source = op.operands[0]
    while (maker := source.defining_op) is not None and maker.name in MOVES:
        source = maker.operands[0]
    from_product = maker is not None and maker.name in DOTS and len(_users(source)) == 1
    return from_product or all(user.name in DOTS for user in _users(op.results[0]))


def _users(value: Value) -> list[Op]:
    """The readers of a value, once per operand."""
    users: list[Op] = []
    for user, _ in value.uses:
        users += _users(user.results[0]) if user.name in MOVES else [user]
    return users

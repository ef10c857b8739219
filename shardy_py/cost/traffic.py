"""How many bytes each op moves to and from memory, given what a compiler fuses.

Pointwise ops, broadcasts, slices and the like are computed where their result is used. A value lies in memory where it is an argument,
where a loop carries it, where an op makes or reads it that is not fused (a matrix product, a sort, a scatter, a collective), and where it
is returned. An op reads those of its operands that lie in memory and writes those of its results that do. Slices read what they take,
updates write what they change: the rest stays in place. A transpose beside a product is part of it.
Memory keeps up with what collectives send, so they are charged for their links alone (`cost/collectives`).
"""

from __future__ import annotations

from shardy_py.cost.compute import POINTWISE, TRANSCENDENTALS
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import COMPUTATIONS

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

FORWARDED = frozenset(
    (
        "stablehlo.reshape",
        "stablehlo.optimization_barrier",
        "sdy.propagation_barrier",
        "sdy.reshard",
        "sdy.sharding_constraint",
        "sdy.sharding_group",
    )
)
"""Ops whose results are their operands, each in its place."""

_SLICES = frozenset(("stablehlo.slice", "stablehlo.dynamic_slice", "stablehlo.gather"))
_READS_FUSED = frozenset(("stablehlo.reduce", "stablehlo.dynamic_update_slice"))
_SCATTERS = frozenset(("stablehlo.scatter",))
_PRODUCTS = frozenset(("stablehlo.dot", "stablehlo.dot_general"))
_CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant"))
_COLLECTIVES = frozenset(
    f"stablehlo.{name}" for name in "all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter".split()
)
_NO_TRAFFIC = _COLLECTIVES | frozenset(
    ("stablehlo.while", "stablehlo.case", "stablehlo.return", "sdy.return", "func.return", "sdy.data_flow_edge", *COMPUTATIONS, *FORWARDED)
)


class Traffic:
    """The bytes that the ops of a block move.

    Args:
        block: The body of a function, or of the region that a device runs: its arguments and results lie in memory.
        sizes: What devices have of values.
    """

    def __init__(self, block: Block, sizes: LocalSizes) -> None:
        self.sizes = sizes
        self._origins: dict[Value, Value] = dict(zip(block.arguments, block.arguments))
        self._kept: set[Value] = set()
        if block.ops:
            self._kept.update(map(self.origin, block.terminator.operands))
        for op in block.walk():
            name = op.name
            if name in FUSED or name in FORWARDED or name in _READS_FUSED or name in COMPUTATIONS or name == "sdy.return":
                continue
            for operand in op.operands:
                self._kept.add(self.origin(operand))

    def origin(self, value: Value) -> Value:
        """The value that this one is under another name."""
        found = self._origins.get(value)
        if found is None:
            passed: list[Value] = []
            found = value
            while found not in self._origins and (before := _before(found)) is not None:
                passed.append(found)
                found = before
            found = self._origins.get(found, found)
            for one in (*passed, value):
                self._origins[one] = found
        return found

    def in_memory(self, value: Value) -> bool:
        """Whether an origin lies in memory."""
        op = value.defining_op
        if op is None or op.name not in FUSED:
            return True
        return value in self._kept and op.name not in _CONSTANTS

    def bytes_of(self, op: Op) -> int:
        """Bytes that an op reads and writes, once.

        Args:
            op: The op; what stands in its regions is counted by itself.
        """
        name = op.name
        if name in _NO_TRAFFIC or name in _CONSTANTS or _is_folded(op):
            return 0
        sizes = self.sizes
        operands = dict.fromkeys(map(self.origin, op.operands))
        if name == "stablehlo.dynamic_update_slice":
            update = self.origin(op.operands[1])
            return sizes.bytes(op.operands[1]) * (2 if self.in_memory(update) else 1)
        if name in _SCATTERS:
            inputs = len(op.results)
            rest = sum(sizes.bytes(v) for v in op.operands[inputs:])
            return rest + 2 * sum(sizes.bytes(v) for v in op.operands[-inputs:])
        moved = 0
        for operand in operands:
            if self.in_memory(operand):
                moved += sizes.bytes(operand)
        if name in _SLICES and self.in_memory(source := self.origin(op.operands[0])):
            moved += min(0, sizes.bytes(op.results[0]) - sizes.bytes(source))
        for result in op.results:
            if self.in_memory(result):
                moved += sizes.bytes(result)
        return moved


def _before(value: Value) -> Value | None:
    """The value that this one is; None where it is one of its own."""
    owner = value.owner
    if isinstance(owner, Op):
        if owner.name in FORWARDED or _is_folded(owner):
            return owner.operands[value.index] if value.index < len(owner.operands) else None
        return owner.regions[0].terminator.operands[value.index] if owner.name in COMPUTATIONS else None
    parent = owner.parent
    return parent.operands[value.index] if isinstance(parent, Op) and parent.name in COMPUTATIONS else None


def _is_folded(op: Op) -> bool:
    """Whether an op transposes what a product makes, or what only products read: they read and write either order, as XLA folds it."""
    if op.name != "stablehlo.transpose":
        return False
    source = op.operands[0].defining_op
    made_by_product = source is not None and source.name in _PRODUCTS and len(op.operands[0].uses) == 1
    return made_by_product or all(user.name in _PRODUCTS for user, _ in op.results[0].uses)

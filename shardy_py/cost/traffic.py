"""How many bytes each op moves to and from memory, given what a compiler fuses.

Pointwise ops, broadcasts, slices and the like are computed where their result is used. A value lies in memory where it is an argument,
where a loop carries it, where an op makes or reads it that is not fused (a matrix product, a sort, a scatter, a collective), and where it
is returned. An op reads those of its operands that lie in memory and writes those of its results that do. Slices read what they take,
updates write what they change: the rest stays in place.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardy_py.cost.compute import POINTWISE, TRANSCENDENTALS
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Op, Value
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
_CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant"))
_NO_TRAFFIC = frozenset(
    ("stablehlo.while", "stablehlo.case", "stablehlo.return", "sdy.return", "func.return", "sdy.data_flow_edge", *COMPUTATIONS, *FORWARDED)
)


class Traffic:
    """The bytes that ops of a program move.

    Args:
        ops: All of them.
        sizes: What devices have of values.
    """

    def __init__(self, ops: Iterable[Op], sizes: LocalSizes) -> None:
        self.sizes = sizes
        self._origins: dict[Value, Value] = {}
        self._kept: set[Value] = set()
        for op in ops:
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
            while (before := _before(found)) is not None:
                passed.append(found)
                found = before
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
        if name in _NO_TRAFFIC or name in _CONSTANTS:
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
        if owner.name in FORWARDED:
            return owner.operands[value.index] if value.index < len(owner.operands) else None
        return owner.regions[0].terminator.operands[value.index] if owner.name in COMPUTATIONS else None
    parent = owner.parent
    return parent.operands[value.index] if isinstance(parent, Op) and parent.name in COMPUTATIONS else None

"""Plans that propagation makes of a part of the shardings of another plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Value
from shardy_py.plan.record import PlanRecord


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A variable of the function at a place where it may be constrained.

    Attributes:
        holder: The value whose sharding a constraint decides: the same, or what a loop carries or slices.
        op: The op that makes it; the loop, where only this and what follows it read the constrained value.
        operand: The number of the operand of `op` that it is, where it may be constrained in front of this alone, as it is read there.
    """

    value: Value
    holder: Value
    op: Op
    primitive: str
    is_unnamed: bool = False
    operand: int | None = None


class Seeds(Protocol):
    """Plans propagated from the shardings of inputs, results and some variables."""

    def variables(self) -> Sequence[Variable | None]:
        """The variables of the plan's own program; the number of a variable is its place."""
        ...

    def plan(self, pins: Mapping[int, TensorSharding], *, results: bool = True) -> tuple[PlanRecord, Sequence[Variable | None]]:
        """The plan by propagation under XLA's partitioner, and its variables."""
        ...

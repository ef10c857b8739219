"""The explicit program of a plan: every op runs on pieces, and every movement of data is a collective in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.plan.collectives import Collective

RESULTS = -1
"""Index of an operand that stands for the results of an op."""


@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """Maps the ops and values of a derived program to those of the plan's program."""

    program: Program
    ops: Mapping[Op, Op] = field(default_factory=dict[Op, Op])
    values: Mapping[Value, Value] = field(default_factory=dict[Value, Value])

    def op(self, op: Op) -> Op:
        """The op of the plan's program."""
        return self.ops.get(op, op)

    def value(self, value: Value) -> Value:
        """The value of the plan's program."""
        return self.values.get(value, value)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The cause of a movement of data, in terms of the plan's program.

    Attributes:
        operand: Index of the operand that moves; `RESULTS` for a result.
    """

    op: Op
    operand: int
    value: Value
    source: TensorSharding | None
    target: TensorSharding | None
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """One collective of an explicit program.

    Attributes:
        step: The op of the explicit program that it is, or that runs it inside, as an op with windows fetches its halo; None where XLA
            merges collectives of a region, so that the op of each is unknown.
        scatters: Whether it is an all-reduce of which each device keeps a piece of its own, which becomes a reduce-scatter on GPUs and
            TPUs.
    """

    collective: Collective
    step: Op | None
    origin: Origin | None = None
    hoisted: bool = False
    scatters: bool = False

    @property
    def on_accelerator(self) -> Collective:
        """The collective on GPUs and TPUs."""
        return replace(self.collective, kind="reduce_scatter") if self.scatters else self.collective


@dataclass(frozen=True, slots=True, eq=False)
class Explicit:
    """A program in which movements of data are ops; its values have the shardings of the pieces that ops read and make."""

    program: Program
    transfers: tuple[Transfer, ...]
    values: Mapping[Value, Value]

"""The explicit program of a plan: every op runs on pieces, and every movement of data is a collective in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.plan.collectives import Collective

RESULTS = -1
"""In place of the number of an operand."""


@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """The ops and values of a plan's program that those of another form of it come from.

    Attributes:
        program: The plan's program.
        ops: Op of the other form -> op of the program; ops that are not in it are the program's own.
        values: The same for values.
    """

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
    """Why data moves, in terms of the plan's program.

    Attributes:
        op: The op that it moves for.
        operand: Which of its operands is moved; `RESULTS` where it is a result.
        value: The value that moves.
        source: The sharding before.
        target: The sharding afterwards; both None of what the op moves while it runs.
        depth: How many bodies (scan, while, cond, `shard_map`) it stands in.
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
        collective: What moves.
        step: The op of the explicit program that it is, or that makes it while it runs, as one with windows fetches what they need; None
            where XLA merges collectives of a region, so that the op of each is not known.
        origin: Why it moves, where XLA's partitioner makes it; the collectives of one movement share it.
        early: Whether it moves once in front of the loop that the op is in.
        scatters: Whether it is an all-reduce of which each device keeps a piece of its own, which XLA makes a reduce-scatter of on GPUs
            and TPUs.
    """

    collective: Collective
    step: Op | None
    origin: Origin | None = None
    early: bool = False
    scatters: bool = False

    @property
    def on_accelerator(self) -> Collective:
        """The collective on GPUs and TPUs."""
        return replace(self.collective, kind="reduce_scatter") if self.scatters else self.collective


@dataclass(frozen=True, slots=True, eq=False)
class Explicit:
    """A program in which movements of data are ops.

    Attributes:
        program: Its values have the shardings of the pieces that ops read and make.
        transfers: Its collectives, in the order in which they are asked for.
        values: Value of `program` -> value of the plan's program that it is, in the layout in which its op makes it.
    """

    program: Program
    transfers: tuple[Transfer, ...]
    values: Mapping[Value, Value]

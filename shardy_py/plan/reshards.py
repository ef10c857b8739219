"""Data movement under a plan: one reshard or reduction with its reason, its collectives and its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import short_location
from shardy_py.ir import Op, Program, Type, Value
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, MANUAL_COMPUTATION, WHILE
from shardy_py.plan.collectives import Collective, format_bytes, received_by, trips_text
from shardy_py.plan.values import typed
from shardy_py.rules.traits import TERMINATORS


@dataclass(frozen=True, slots=True)
class Reshard:
    """One movement of data: a value is resharded, or partial sums are reduced.

    A device receives of a collective among n, with the piece of the value that it has before:

    * `all_gather`: n-1 times the piece
    * `reduce_scatter` and `all_to_all`: (n-1)/n of the piece
    * `all_reduce`: 2 (n-1)/n of the piece, as a reduce-scatter and an all-gather
    * `collective_permute`, and a `reshard` to a mesh with other axes: a whole piece
    * `all_slice`: nothing; each device keeps a part of what it has

    Attributes:
        type: Its global type; inside a `shard_map`, that of one shard.
        source: The sharding before; axes of a sum still to be taken are its unreduced axes.
        target: The sharding afterwards.
        collectives: Its collectives, in order.
        reason: Its cause: `operand of dot_general`, `sharding constraint`, `function result result[0]`, ...; of a sum in
            a region `reduction over model`.
        depth: Number of bodies (scan, while, cond, computations) around it.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> print(*plan.reshards)
        %0 float32[8,8]: all_reduce(x)  384 B  reduction over x
    """

    type: Type
    source: TensorSharding | None
    target: TensorSharding | None
    collectives: tuple[Collective, ...]
    reason: str
    depth: int = 0

    @property
    def value(self) -> str:
        """Path or name of the value that moves, as in `Plan.values`.

        An argument of a computation, and a value that a loop carries unchanged, has the name of its operand; so has a slice of a scan's
        operand in a region. Small sums that a region sends together are named one after the other, `%3, %7`.
        """
        return self.collectives[0].value

    @property
    def location(self) -> str:
        """File and line of the user's code; empty where unknown."""
        return self.collectives[0].location

    @property
    def primitive(self) -> str:
        """The JAX primitive that asks for it; empty for results of the function."""
        return self.collectives[0].primitive

    @property
    def trips(self) -> int | None:
        """Number of executions in one call, as of `Collective`."""
        return self.collectives[0].trips

    @property
    def bytes_per_device(self) -> int:
        """Bytes that each device receives when it runs once."""
        return sum(c.received_bytes for c in self.collectives)

    @property
    def steps(self) -> str:
        """Kinds and axes of its collectives, `all_slice(data), all_gather(model)`."""
        return ", ".join(c.title for c in self.collectives)

    @property
    def total_bytes_per_device(self) -> int | None:
        """Bytes that each device receives in one call; None where the number of trips is unknown."""
        return None if self.trips is None else self.bytes_per_device * self.trips

    @property
    def call_bytes(self) -> int:
        """Bytes that each device receives in one call, a loop with an unknown number of trips taken for one."""
        return received_by(self.collectives)

    @property
    def change(self) -> str:
        """Its type with the sharding before, and if that differs with the one afterwards."""
        before, after = typed(self.type, self.source), typed(self.type, self.target)
        return before if before == after else f"{before} -> {after}"

    def __str__(self) -> str:
        where = short_location(self.location)
        head = f"{self.value} {self.change}: {self.steps}".lstrip()
        return "  ".join(part for part in (head, format_bytes(self.bytes_per_device) + trips_text(self.trips), where, self.reason) if part)


def primitive_of(op: Op) -> str:
    """The JAX primitive of an op that data moves for; empty for results of the function."""
    if op.name == "func.return":
        return ""
    if op.name in TERMINATORS:
        op = op.parent or op
    return op.primitive or op.name.rpartition(".")[2]


def reason_of(op: Op, result: str) -> str:
    """The reason that an operand of an op is moved for, in the words of JAX."""
    name = primitive_of(op)
    if op.name == "func.return":
        return f"function result {result}".rstrip()
    if op.name in TERMINATORS:
        parent = op.parent
        if parent is not None and parent.name == WHILE:
            return f"next trip of {name}"
        return f"result of {_title(parent, name)}"
    if op.name == WHILE:
        return f"entry of {name}"
    if op.name in COMPUTATIONS:
        return f"argument of {_title(op, name)}"
    return f"operand of {name}"


def _title(op: Op | None, name: str) -> str:
    """The name of a computation or branch."""
    if op is None:
        return name
    if op.name == MANUAL_COMPUTATION:
        return "shard_map"
    if op.name == CASE:
        return "cond"
    return op.attributes.get("name") or name


@dataclass(frozen=True, eq=False)
class Explicit:
    """A copy of a plan's program in which every movement of data is an op.

    Attributes:
        values: Its values -> those of the plan's program; movements make more.
        causes: The ops that move data -> the op of the plan's program for which they do.
        collectives: Those that send something, with their ops.
    """

    program: Program
    values: Mapping[Value, Value]
    causes: Mapping[Op, Op]
    reshards: tuple[Reshard, ...]
    collectives: tuple[tuple[Collective, Op], ...]

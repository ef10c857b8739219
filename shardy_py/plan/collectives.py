"""The collectives of a program that runs on shards: bytes and trips of each, and the totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardy_py.cost.collectives import KINDS as KINDS
from shardy_py.cost.collectives import received_bytes as received_bytes
from shardy_py.dialect.format import aligned, short_location
from shardy_py.plan.movements import format_bytes


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as every device runs it.

    Attributes:
        kind: One of `KINDS`.
        axes: The mesh axes it is over, major to minor.
        group_size: Number of devices that exchange data with each other.
        operand_bytes: Bytes of the operand on one device.
        trips: Number of executions in one call: 1 outside of loops, else the product of the trip counts; None where one is unknown. Each
            branch of a cond counts as if it ran.
        dtype: Element type of the operand, in JAX's spelling.
        shape: Shape of the operand on one device.
        value: Name of the value that moves, as that of `Reshard`; the primitive that makes the operand where the plan lists no such value.
        primitive: The JAX primitive that asks for it; empty for results of the function.
        location: `file:line` of the user's code; empty where unknown.
        module: The named scopes of what makes the parts of a sum, else of what reads the result; as those of `PlannedValue`.
        backward: Whether it is of a backward pass.

    Example:
        >>> gather = Collective("all_gather", ("model",), 4, 256, trips=6, dtype="float32", shape=(8, 8), value="w")
        >>> gather.received_bytes, gather.total_bytes
        (768, 4608)
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    operand_bytes: int
    trips: int | None = 1
    dtype: str = ""
    shape: tuple[int, ...] = ()
    value: str = ""
    primitive: str = ""
    location: str = ""
    module: str = ""
    backward: bool = False

    @property
    def received_bytes(self) -> int:
        """Bytes that a device receives each time it runs; see `Reshard` for the formulas."""
        return received_bytes(self.kind, self.group_size, self.operand_bytes)

    @property
    def total_bytes(self) -> int | None:
        """Bytes that a device receives in one call; None where the number of trips is unknown."""
        return None if self.trips is None else self.received_bytes * self.trips

    @property
    def runs(self) -> int:
        """Number of executions in one call, an unknown number of trips taken for one."""
        return 1 if self.trips is None else self.trips

    @property
    def call_bytes(self) -> int:
        """Bytes that a device receives in one call, an unknown number of trips taken for one."""
        return self.received_bytes * self.runs

    @property
    def operand(self) -> str:
        """Type and shape of the operand, `float32[8,8]`; empty where unknown."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" if self.dtype else ""

    def __str__(self) -> str:
        return lines([self])[0]


def received_by(collectives: Iterable[Collective]) -> int:
    """Bytes that a device receives in one call, over some collectives."""
    return sum(c.call_bytes for c in collectives)


def trips_text(trips: int | None) -> str:
    """The number of trips behind the bytes of one; empty for a single one.

    Example:
        >>> trips_text(3), trips_text(1), trips_text(None)
        (' x3', '', ' each trip')
    """
    return " each trip" if trips is None else f" x{trips}" if trips != 1 else ""


@dataclass(frozen=True, slots=True)
class Total:
    """All collectives of one kind.

    Attributes:
        kind: The kind.
        count: Number of them in the program.
        bytes: Bytes that a device receives in one call; loops with an unknown trip count count once.
        exact: Whether all trip counts are known.
    """

    kind: str
    count: int
    bytes: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.count} {self.kind}  {'' if self.exact else 'at least '}{format_bytes(self.bytes)}"


def summary(collectives: Iterable[Collective]) -> tuple[Total, ...]:
    """Count and bytes per kind, in the order of `KINDS`; kinds that do not occur are left out.

    Example:
        >>> print(*summary([Collective("all_reduce", ("x",), 2, 512), Collective("all_reduce", ("x",), 2, 256, trips=None)]))
        2 all_reduce  at least 768 B
    """
    totals: dict[str, Total] = {}
    for c in collectives:
        old = totals.get(c.kind, Total(c.kind, 0, 0, True))
        totals[c.kind] = Total(c.kind, old.count + 1, old.bytes + c.call_bytes, old.exact and c.trips is not None)
    order = (*KINDS, *(kind for kind in totals if kind not in KINDS))
    return tuple(totals[kind] for kind in order if kind in totals)


def lines(collectives: Sequence[Collective]) -> list[str]:
    """One line per collective, their columns aligned: kind and axes, operand, bytes received and trips, place, primitive.

    Example:
        >>> print(Collective("all_gather", ("x", "y"), 8, 64, 3, "float32", (4, 4), "w", "dot_general", "/home/me/train.py:12"))
        all_gather(x,y)  w float32[4,4]  448 B x3  train.py:12  dot_general
    """
    return aligned([_cells(c) for c in collectives])


def _cells(c: Collective) -> tuple[str, ...]:
    return (
        f"{c.kind}({','.join(c.axes)})",
        " ".join(part for part in (c.value, c.operand) if part),
        format_bytes(c.received_bytes) + trips_text(c.trips),
        short_location(c.location),
        c.primitive,
    )

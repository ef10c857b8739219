"""The collectives of a program that runs on shards: bytes and trips of each, and the totals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.cost.collectives import KINDS as KINDS
from shardy_py.cost.collectives import received_bytes as received_bytes
from shardy_py.dialect import AxisRef
from shardy_py.dialect.format import aligned, format_axis, short_location
from shardy_py.errors import ShardyError
from shardy_py.passes.export.collective_bytes import received as received


def format_bytes(count: int) -> str:
    """A number of bytes in binary units.

    Example:
        >>> format_bytes(0), format_bytes(1536), format_bytes(5 << 30)
        ('0 B', '1.5 KiB', '5 GiB')
    """
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{value / 1024:.4g} TiB"


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as every device runs it.

    Attributes:
        kind: One of `KINDS`; of Shardy's reshards also `reshard`, where a value goes to a mesh with other axes, and `all_slice`,
            `sharded_to_unreduced` and `replicated_to_unreduced`, which move nothing.
        axes: The mesh axes it is over, major to minor; none of one that exchanges pieces between any devices.
        group_size: Number of devices that exchange data with each other.
        operand_bytes: Bytes of the operand on one device.
        trips: Number of executions in one call: 1 outside of loops, else the product of the trip counts; None where one is unknown. Each
            branch of a cond counts as if it ran.
        dtype: Element type of the operand, in JAX's spelling.
        shape: Shape of the operand on one device.
        value: Name of the value that moves, as in `Reshard`; the primitive that makes the operand where the plan lists no such value.
        primitive: The JAX primitive that asks for it; empty for results of the function.
        location: `file:line` of the user's code; empty where unknown.
        module: The named scopes of what makes the parts of a sum, else of what reads the result; as in `PlannedValue`.
        backward: Whether it is of a backward pass.
        overlapped: Whether it runs beside products that do not wait for it, see `Options.overlap`: a permute is a step of a ring, a gather
            is of the next trip of its loop.

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
    overlapped: bool = False

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
    def title(self) -> str:
        """Kind and axes, `all_gather(model)`; an overlapped permute is a `ring_permute`, an overlapped gather a `gather_ahead`."""
        kind = _BESIDE.get(self.kind, self.kind) if self.overlapped else self.kind
        return f"{kind}({','.join(self.axes)})" if self.axes else kind

    @property
    def operand(self) -> str:
        """Type and shape of the operand, `float32[8,8]`; empty where unknown."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" if self.dtype else ""

    def __str__(self) -> str:
        return lines([self])[0]


_BESIDE = {"all_gather": "gather_ahead", "collective_permute": "ring_permute"}
"""Kind -> the name of an overlapped collective."""


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

    Example:
        >>> print(Total("all_gather", 2, 4096, True))
        2 all_gather  4 KiB
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
        c.title,
        " ".join(part for part in (c.value, c.operand) if part),
        format_bytes(c.received_bytes) + trips_text(c.trips),
        short_location(c.location),
        c.primitive,
    )


_PART = re.compile(r"(.*):\((\d+)\)(\d+)", re.DOTALL)


def axes_of(collective: Collective, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """The mesh axes that a collective is over, each with the number of devices along it that take part.

    A collective without axes, which exchanges pieces between any devices, is over all of them.

    Example:
        >>> axes_of(Collective("all_gather", ("x:(2)2", "y"), 8, 64), {"x": 4, "y": 4})
        [('x', 2), ('y', 4)]
    """
    if not collective.axes:
        return [(axis, size) for axis, size in sizes.items() if size > 1]
    spelled = {format_axis(AxisRef(axis)): axis for axis in sizes}
    devices: dict[str, int] = {}
    for written in collective.axes:
        part = None if written in spelled else _PART.fullmatch(written)
        name = written if part is None else part[1]
        axis = spelled.get(name, name)
        if axis in sizes:
            devices[axis] = devices.get(axis, 1) * (sizes[axis] if part is None else int(part[3]))
    return list(devices.items())


@dataclass(frozen=True, slots=True)
class ModuleCollectives:
    """The collectives of a module, those of modules inside it included.

    Attributes:
        module: Its path; empty for the whole function.
        forward: Count and bytes per kind of those outside of backward passes; of the whole function, those of its update too.
        backward: The same of backward passes, with what is computed again for these.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> plan.collectives_by_module()[""].forward
        (Total(kind='all_reduce', count=1, bytes=384, exact=True),)
    """

    module: str
    forward: tuple[Total, ...]
    backward: tuple[Total, ...]


class CollectivesByModule(dict[str, ModuleCollectives]):
    """Path of a module that has collectives -> these, the whole function first, modules behind the one that they stand in.

    `str` gives a table.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> print(plan.collectives_by_module())
        module  forward              backward
        (all)   1 all_reduce  384 B  none
    """

    def __str__(self) -> str:
        rows = [("module", "forward", "backward")]
        for each in self.values():
            parts = each.module.split("/")
            label = "  " * len(parts) + parts[-1] if each.module else "(all)"
            rows.append((label, _text(each.forward), _text(each.backward)))
        return "\n".join(aligned(rows))


def by_module(collectives: Iterable[Collective], depth: int | None = None) -> CollectivesByModule:
    """Adds up the collectives of each module, of `depth` levels if it is not None. Raises ShardyError if the depth is less than 0."""
    if depth is not None and (not isinstance(depth, int) or depth < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShardyError(f"depth is {depth!r}", where="Plan.collectives_by_module", why="it counts levels", fix="0, 1, 2, ... or None")
    passes: dict[tuple[str, ...], tuple[list[Collective], list[Collective]]] = {(): ([], [])}
    for collective in collectives:
        path = tuple(collective.module.split("/")) if collective.module else ()
        for level in range(len(path[:depth]) + 1):
            passes.setdefault(path[:level], ([], []))[collective.backward].append(collective)
    first = {path: number for number, path in enumerate(passes)}
    ordered = sorted(passes, key=lambda path: [first[path[: level + 1]] for level in range(len(path))])
    return CollectivesByModule({(name := "/".join(path)): ModuleCollectives(name, *map(summary, passes[path])) for path in ordered})


def _text(totals: tuple[Total, ...]) -> str:
    return ", ".join(map(str, totals)) or "none"

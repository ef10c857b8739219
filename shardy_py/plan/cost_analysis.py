"""The cost of a call of a planned function on one device: operations, bytes, communication, and their time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.links import AxisLinks, Level, levels_of
from shardy_py.dialect import Mesh
from shardy_py.dialect.format import printable, short_location, sizes_text
from shardy_py.dialect.grouping import grouped
from shardy_py.plan.collectives import Collective, axes_of, format_bytes
from shardy_py.plan.report import LISTED, Report, table

EXPOSED = 1 / 8
"""The part of feeding, or of the call before if that is shorter, that the other does not hide; an estimate."""


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds between two bounds: `low` where all that may overlap does, `high` where nothing does."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = seconds_text(self.low), seconds_text(self.high)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class OpCost:
    """The cost of one op in one call, all trips of loops together.

    Attributes:
        value: Name of the first value it makes, as in `Plan.values`; `region %3` where it runs in a region.
        flops: Operations on one device.
        transcendentals: Elements of functions such as exp.
        seconds: By the roofline; None without hardware.
        trips: Number of executions; one where a trip count is unknown.
        host_bytes: Bytes that it moves between the host and the device.
    """

    value: str
    primitive: str
    location: str
    module: str
    flops: float
    transcendentals: float
    bytes_accessed: float
    seconds: float | None
    trips: int
    host_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The cost of one collective in one call, all trips of loops together.

    Attributes:
        bytes: Bytes that a device receives.
        seconds: None without hardware.
        links: Names of the links it uses.
    """

    collective: Collective
    bytes: int
    seconds: float | None
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the costs that belongs to one op, module, source line or set of mesh axes.

    Attributes:
        communicated_bytes: Bytes that a device receives.
        compute_seconds: By the roofline; None without hardware.
        communication_seconds: None without hardware.
    """

    name: str
    flops: float
    bytes_accessed: float
    communicated_bytes: int
    compute_seconds: float | None
    communication_seconds: float | None

    @property
    def seconds(self) -> float:
        """Both; 0 without hardware."""
        return (self.compute_seconds or 0.0) + (self.communication_seconds or 0.0)


@dataclass(frozen=True, repr=False, eq=False)
class CostAnalysis(Report, Mapping[str, float]):
    """The cost of one call on one device.

    As a mapping it has the names that `jax.stages.Compiled.cost_analysis()` uses, `flops`, `transcendentals`, `bytes accessed` and, given
    hardware, `optimal_seconds`, and beside them `communicated bytes`.

    Attributes:
        name: The function.
        mesh: The mesh.
        hardware: None where only operations and bytes were asked for.
        links: The links that each axis of the mesh lies on.
        ops: Ops that cost something, in program order. Of the branches of a cond the costliest counts.
        collectives: The collectives, in the order of `Plan.collectives`. Given hardware, an all-reduce of which each device keeps only a
            piece is a reduce-scatter, as XLA makes it on GPUs and TPUs; `Plan.collectives` has what it makes on CPUs.
        path_seconds: The longest chain of ops and collectives that wait for each other; None without hardware.
        exact: Whether all trip counts are known; a loop with an unknown one counts once.
        unknown: Primitives that have no formula, such as kernels: their operations are missing, their bytes are counted.
        fed_bytes: Bytes between the host and one device: arguments that no result replaces come in every call of a training step, and
            results that replace none go back. See `shardy_py.plan.feeding`.
        hidden_seconds: Seconds of overlapped collectives that ops hide: of each at most as long as the ops of the loop body, or of the
            function, that it stands in take.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> cost = plan.cost_analysis("h100")
        >>> cost["flops"], cost.communicated_bytes, str(cost.step_seconds)
        (256, 384, '8 us')
    """

    name: str
    mesh: Mesh
    hardware: Hardware | None
    links: AxisLinks
    ops: tuple[OpCost, ...]
    collectives: tuple[CollectiveCost, ...]
    path_seconds: float | None
    exact: bool
    unknown: tuple[str, ...]
    fed_bytes: int = 0
    hidden_seconds: float = 0.0

    @functools.cached_property
    def flops(self) -> float:
        """Operations on one device, a multiplication and an addition being two."""
        return sum(op.flops for op in self.ops)

    @functools.cached_property
    def transcendentals(self) -> float:
        """Elements of functions such as exp."""
        return sum(op.transcendentals for op in self.ops)

    @functools.cached_property
    def bytes_accessed(self) -> float:
        """Bytes to and from the memory of one device."""
        return sum(op.bytes_accessed for op in self.ops)

    @functools.cached_property
    def communicated_bytes(self) -> int:
        """Bytes that one device receives."""
        return sum(c.bytes for c in self.collectives)

    @functools.cached_property
    def host_bytes(self) -> float:
        """Bytes that ops of the program move between the host and one device."""
        return sum(op.host_bytes for op in self.ops)

    @functools.cached_property
    def compute_seconds(self) -> float | None:
        """Seconds of all ops, one after the other."""
        return self._seconds(self.ops)

    @functools.cached_property
    def communication_seconds(self) -> float | None:
        """Seconds of all collectives, one after the other."""
        return self._seconds(self.collectives)

    def _seconds(self, costs: Iterable[OpCost | CollectiveCost]) -> float | None:
        return None if self.hardware is None else sum(cost.seconds or 0.0 for cost in costs)

    @functools.cached_property
    def step_seconds(self) -> Range | None:
        """Bounds on the time of a call.

        At most: all ops and all collectives one after the other, without what ops hide (`hidden_seconds`); with what is fed during the
        call before: the longer of both, and an eighth of the other.
        At least: the longest of all ops, of the collectives that share links, of the critical path, and of what is fed.
        """
        busy, feeding = self._busy_seconds, self.feeding_seconds
        if busy is None or feeding is None:
            return None
        return Range(max(busy.low, feeding), max(busy.high, feeding) + EXPOSED * min(busy.high, feeding))

    @functools.cached_property
    def feeding_seconds(self) -> float | None:
        """Seconds of `fed_bytes`; None without hardware, 0 where it does not say how fast the link to the host is."""
        return None if self.hardware is None else self.fed_bytes / (self.hardware.host_bandwidth or math.inf)

    @functools.cached_property
    def _busy_seconds(self) -> Range | None:
        """The same without what is fed."""
        if self.compute_seconds is None or self.communication_seconds is None:
            return None
        busy: dict[str, float] = {}
        for c in self.collectives:
            for used in self._resources(c.collective):
                busy[used] = busy.get(used, 0.0) + (c.seconds or 0.0)
        high = self.compute_seconds + self.communication_seconds - self.hidden_seconds
        return Range(min(high, max(self.compute_seconds, self.path_seconds or 0.0, *busy.values(), 0.0)), high)

    @property
    def exposed_seconds(self) -> Range | None:
        """Bounds on the seconds of communication that computation does not overlap.

        At most: all collectives wait, but for those that the plan places beside work that does not wait for them (`Options.overlap`),
        which cost what the work of their loop body does not hide. At least: only collectives that the next op waits for.
        """
        busy, compute = self._busy_seconds, self.compute_seconds
        return None if busy is None or compute is None else Range(busy.low - compute, busy.high - compute)

    @functools.cached_property
    def by_op(self) -> tuple[Share, ...]:
        """Shares of the JAX primitives, the costliest first; a collective belongs to the one that asks for it."""
        return self._shares(lambda op: op.primitive, lambda c: c.primitive or "result")

    @functools.cached_property
    def by_line(self) -> tuple[Share, ...]:
        """Shares of the lines of source code, the costliest first."""
        return self._shares(lambda op: op.location, lambda c: c.location)

    @functools.cached_property
    def by_module(self) -> tuple[Share, ...]:
        """Shares of the named scopes (modules), the costliest first."""
        return self._shares(lambda op: op.module, lambda c: c.module)

    @functools.cached_property
    def by_axis(self) -> tuple[Share, ...]:
        """Shares of the sets of mesh axes that collectives are over, the costliest first."""
        groups = grouped(self.collectives, lambda c: ",".join(c.collective.axes) or "any")
        return _sorted(replace(self._share(axes, (), group), compute_seconds=None) for axes, group in groups.items())

    def _shares(self, of_op: Callable[[OpCost], str], of_collective: Callable[[Collective], str]) -> tuple[Share, ...]:
        ops, collectives = grouped(self.ops, of_op), grouped(self.collectives, lambda c: of_collective(c.collective))
        names = dict.fromkeys((*ops, *collectives))
        return _sorted(self._share(name, ops.get(name, ()), collectives.get(name, ())) for name in names)

    def _share(self, name: str, ops: Sequence[OpCost], collectives: Sequence[CollectiveCost]) -> Share:
        flops, accessed, received = sum(op.flops for op in ops), sum(op.bytes_accessed for op in ops), sum(c.bytes for c in collectives)
        return Share(name, flops, accessed, received, self._seconds(ops), self._seconds(collectives))

    def _resources(self, collective: Collective) -> tuple[str, ...]:
        """The resources that a collective occupies: a device's port to a switch, or the links along an axis."""
        sizes = dict(self.mesh.shape)
        used: dict[str, None] = {}
        for axis, taken in axes_of(collective, sizes):
            for level in levels_of([(axis, taken)], self.links, sizes):
                used[level.links.name if level.links.kind == "switch" else f"{level.links.name} {axis}"] = None
        return tuple(used)

    @functools.cached_property
    def _table(self) -> dict[str, float]:
        table = {"flops": self.flops, "transcendentals": self.transcendentals, "bytes accessed": self.bytes_accessed}
        table["communicated bytes"] = float(self.communicated_bytes)
        if self.step_seconds is not None:
            table["optimal_seconds"] = self.step_seconds.low
        return table

    def __getitem__(self, name: str) -> float:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def as_text(self, limit: int = LISTED) -> str:
        """Totals and tables.

        Args:
            limit: Rows of each table.
        """
        lines = table(_head(self), summary_rows(self))
        if self.hardware is not None and self.links:
            lines.insert(1, f"  {layout_text(self)}")
        lines += [f"  note: {remark}" for remark in _remarks(self)]
        for title, heads, rows in _tables(self, limit):
            lines += table(title, [heads, *rows], [i for i, head in enumerate(heads) if head in _NUMBERS])
        return printable("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, with a version."""
        machine, step, exposed = self.hardware, self.step_seconds, self.exposed_seconds
        return {
            "format": FORMAT,
            "version": VERSION,
            "mesh": dict(self.mesh.shape),
            "hardware": None if machine is None else asdict(machine) | {"flops": dict(machine.flops), "sources": dict(machine.sources)},
            "links": {axis: [asdict(level) for level in levels] for axis, levels in self.links.items()},
            **{name: getattr(self, name) for name in _FIGURES},
            "exposed_seconds": None if exposed is None else [exposed.low, exposed.high],
            "step_seconds": None if step is None else [step.low, step.high],
            "unknown": list(self.unknown),
            **{name: [asdict(entry) for entry in getattr(self, name)] for name in _LISTS},
        }


_FIGURES = (
    *("name", "flops", "transcendentals", "bytes_accessed", "communicated_bytes", "compute_seconds", "communication_seconds"),
    *("host_bytes", "fed_bytes", "feeding_seconds", "exact"),
)
_LISTS = ("by_op", "by_module", "by_line", "by_axis", "collectives")


def _sorted(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda s: (-s.seconds, -s.communicated_bytes, -s.flops, -s.bytes_accessed, s.name)))


FORMAT = "shardy_py.cost"
VERSION = 1

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, heads of columns, rows."""

_E = TypeVar("_E")


def seconds_text(seconds: float) -> str:
    """Seconds as text, in a unit of fitting size.

    Example:
        >>> seconds_text(0.00125), seconds_text(3e-6), seconds_text(75.0), seconds_text(0)
        ('1.25 ms', '3 us', '75 s', '0 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{_short(seconds / scale)} {unit}"
    return f"{_short(seconds / 1e-9)} ns" if seconds > 0 else "0 s"


def count_text(count: float) -> str:
    """A number of operations with a unit.

    Example:
        >>> count_text(989.4e12), count_text(12)
        ('989 T', '12')
    """
    for unit, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{_short(count / scale)} {unit}"
    return _short(count)


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def summary_rows(cost: CostAnalysis) -> list[tuple[str, str]]:
    """Title and figure of each total."""
    rows = [
        ("operations", f"{count_text(cost.flops)}FLOP" if cost.flops >= 1e3 else f"{count_text(cost.flops)} FLOP"),
        ("memory traffic", format_bytes(int(cost.bytes_accessed))),
        ("communicated", format_bytes(cost.communicated_bytes)),
    ]
    rows += [("to and from host", format_bytes(int(cost.host_bytes)))] if cost.host_bytes else []
    rows += [("fed", format_bytes(cost.fed_bytes))] if cost.fed_bytes else []
    compute, communication, exposed, step = cost.compute_seconds, cost.communication_seconds, cost.exposed_seconds, cost.step_seconds
    if cost.hardware is not None and compute is not None and communication is not None and exposed is not None and step is not None:
        rows += [("compute", seconds_text(compute)), ("communication", seconds_text(communication))]
        rows.append(("  of it exposed", str(exposed)))
        rows += [("feeding", seconds_text(cost.feeding_seconds))] if cost.feeding_seconds else []
        rows.append(("step", str(step)))
        peak = cost.hardware.matrix_flops("bfloat16")  # by which utilization is told
        if step.high and peak:
            low, high = cost.flops / peak / step.high, cost.flops / peak / max(step.low, 1e-30)
            rows.append(("share of peak", f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"))
    return rows


def _remarks(cost: CostAnalysis) -> list[str]:
    """Notes on the limits of the figures."""
    notes = []
    if not cost.exact:
        notes.append("a loop's trip count is unknown: its body counts once")
    if cost.unknown:
        notes.append(f"no formula for {', '.join(cost.unknown)}: operations in it are missing")
    return notes


def layout_text(cost: CostAnalysis) -> str:
    """The links of each axis as text: `data=16 on dcn, model=8 on nvlink`."""
    return ", ".join(
        f"{axis}={size} on {' and '.join(_level(level, alone=len(cost.links[axis]) == 1) for level in cost.links[axis])}"
        for axis, size in cost.mesh.shape.items()
        if cost.links.get(axis)
    )


def _level(level: Level, alone: bool) -> str:
    links = level.links
    dims = f" {'x'.join(map(str, links.dims))}" if len(links.dims) > 1 else ""
    return f"{links.name}{dims}" if alone else f"{links.name} ({level.size})"


_NUMBERS = frozenset(("FLOP", "memory", "received", "trips", "time", "compute", "communication"))
"""Columns that are aligned on the right."""


def _tables(cost: CostAnalysis, limit: int) -> Iterator[Table]:
    """By axis, by collective, by op, by module where there are any, by source line."""
    timed = cost.hardware is not None
    time = ("time",) if timed else ()
    if cost.by_axis:
        rows = [(s.name, format_bytes(s.communicated_bytes), *(seconds_text(s.seconds) for _ in time)) for s in cost.by_axis]
        yield "by mesh axis", ("axes", "received", *time), rows
        costliest = sorted(cost.collectives, key=lambda c: (-(c.seconds or 0.0), -c.bytes))
        yield "collectives", *_first(("collective", "value", "received", "trips", *time, "where", "for"), costliest, limit, _collective)
    heads = ("", "FLOP", "memory", "received", *(("compute", "communication") if timed else ()))
    yield "by op", *_first(heads, cost.by_op, limit, _share)
    if any(share.name for share in cost.by_module):
        yield "by module", *_first(heads, cost.by_module, limit, _share)
    yield "by source line", *_first(heads, cost.by_line, limit, _share)


def _first(heads: tuple[str, ...], entries: Sequence[_E], limit: int, row: Callable[[_E], tuple[str, ...]]) -> tuple[Any, Any]:
    """Heads and the first rows of a table, with the count of the others."""
    rows = [row(entry) for entry in entries[:limit]]
    if len(entries) > limit:
        rows.append((f"... and {len(entries) - limit} more", *("",) * (len(heads) - 1)))
    return heads, rows


def _collective(cost: CollectiveCost) -> tuple[str, ...]:
    c = cost.collective
    trips = "unknown" if c.trips is None else str(c.trips)
    times = () if cost.seconds is None else (seconds_text(cost.seconds),)
    return c.title, c.value, format_bytes(cost.bytes), trips, *times, _where(c.location), c.primitive


def _share(share: Share) -> tuple[str, ...]:
    times = (seconds_text(seconds) for seconds in (share.compute_seconds, share.communication_seconds) if seconds is not None)
    sizes = format_bytes(int(share.bytes_accessed)), format_bytes(share.communicated_bytes)
    return _where(share.name) or "(none)", count_text(share.flops), *sizes, *times


def _where(location: str) -> str:
    """A location without its directories; a module unchanged."""
    return short_location(location) if location.startswith("/") else location


def _head(cost: CostAnalysis) -> str:
    on = "" if cost.hardware is None else f" of {cost.hardware.name}"
    return f"cost of {cost.name} per device, on mesh {sizes_text(cost.mesh.shape)}{on}"

"""What a call of a planned function costs on one device: operations, bytes, communication, and how long they take."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.links import AxisLinks, levels_of
from shardy_py.dialect import Mesh
from shardy_py.dialect.format import printable
from shardy_py.plan.collective_axes import axes_of
from shardy_py.plan.collectives import Collective


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds between two bounds.

    Attributes:
        low: Where all that may overlap does.
        high: Where nothing does.
    """

    low: float
    high: float

    def __str__(self) -> str:
        from shardy_py.plan.cost_text import seconds_text

        low, high = seconds_text(self.low), seconds_text(self.high)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one op costs in one call, all trips of loops together.

    Attributes:
        value: Name of the first value it makes, as in `Plan.values`; `region %3` where it runs in a region.
        primitive: The JAX primitive.
        location: `file:line` of the user's code; empty where unknown.
        module: The named scopes it stands in.
        flops: Operations on one device.
        transcendentals: Elements of functions such as exp.
        bytes_accessed: Bytes to and from memory.
        seconds: By the roofline; None without hardware.
        trips: How often it runs; once where a trip count is unknown.
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


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What one collective costs in one call, all trips of loops together.

    Attributes:
        collective: What moves, as in `Plan.collectives`.
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
        name: The primitive, module, `file:line` or axes.
        flops: Operations.
        bytes_accessed: Bytes to and from memory.
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
class CostAnalysis(Mapping[str, float]):
    """What one call costs on one device.

    As a mapping it has the names that `jax.stages.Compiled.cost_analysis()` uses, `flops`, `transcendentals`, `bytes accessed` and, given
    hardware, `optimal_seconds`, and beside them `communicated bytes`.

    Attributes:
        name: The function.
        mesh: The mesh.
        hardware: None where only operations and bytes were asked for.
        links: How the axes of the mesh lie on its links.
        ops: Ops that cost something, in program order. Of the branches of a cond the costliest counts.
        collectives: The collectives, in the order of `Plan.collectives`. Given hardware, an all-reduce of which each device keeps only a
            piece is a reduce-scatter, as XLA makes it on GPUs and TPUs; `Plan.collectives` has what it makes on CPUs.
        path_seconds: The longest chain of ops and collectives that wait for each other; None without hardware.
        exact: Whether all trip counts of loops are known; what is in one that is not counts once.
        unknown: Primitives that have no formula, such as kernels: their operations are missing, their bytes are counted.
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
    def compute_seconds(self) -> float | None:
        """Seconds of all ops, one after the other."""
        return None if self.hardware is None else sum(op.seconds or 0.0 for op in self.ops)

    @functools.cached_property
    def communication_seconds(self) -> float | None:
        """Seconds of all collectives, one after the other."""
        return None if self.hardware is None else sum(c.seconds or 0.0 for c in self.collectives)

    @functools.cached_property
    def step_seconds(self) -> Range | None:
        """How long a call takes.

        At most: all ops and all collectives one after the other. At least: the longest of all ops, of the collectives that share links, and
        of what has to wait for each other.
        """
        if self.compute_seconds is None or self.communication_seconds is None:
            return None
        busy: dict[str, float] = {}
        for c in self.collectives:
            for used in self._resources(c.collective):
                busy[used] = busy.get(used, 0.0) + (c.seconds or 0.0)
        high = self.compute_seconds + self.communication_seconds
        return Range(min(high, max(self.compute_seconds, self.path_seconds or 0.0, *busy.values(), 0.0)), high)

    @property
    def exposed_seconds(self) -> Range | None:
        """Seconds of communication during which a device does not compute: between what cannot be overlapped, and all."""
        step, compute = self.step_seconds, self.compute_seconds
        if step is None or compute is None:
            return None
        return Range(step.low - compute, step.high - compute)

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
        """What is sent over each set of mesh axes, the costliest first."""
        return _sorted(
            Share(axes, 0.0, 0.0, sum(c.bytes for c in found), None, self._sum(found))
            for axes, found in _grouped(self.collectives, lambda c: ",".join(c.collective.axes) or "any").items()
        )

    def _sum(self, collectives: Iterable[CollectiveCost]) -> float | None:
        return None if self.hardware is None else sum(c.seconds or 0.0 for c in collectives)

    def _shares(self, of_op: Callable[[OpCost], str], of_collective: Callable[[Collective], str]) -> tuple[Share, ...]:
        ops = _grouped(self.ops, of_op)
        collectives = _grouped(self.collectives, lambda c: of_collective(c.collective))
        return _sorted(
            Share(
                name,
                sum(op.flops for op in ops.get(name, ())),
                sum(op.bytes_accessed for op in ops.get(name, ())),
                sum(c.bytes for c in collectives.get(name, ())),
                None if self.hardware is None else sum(op.seconds or 0.0 for op in ops.get(name, ())),
                self._sum(collectives.get(name, ())),
            )
            for name in dict.fromkeys((*ops, *collectives))
        )

    def _resources(self, collective: Collective) -> tuple[str, ...]:
        """What a collective keeps busy: a device's port to a switch, or the links along an axis."""
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

    def as_text(self, limit: int = 12) -> str:
        """Totals and tables.

        Args:
            limit: Rows of each table.
        """
        from shardy_py.plan.cost_text import cost_text

        return printable(cost_text(self, limit))

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, with a version."""
        from shardy_py.plan.cost_text import cost_dict

        return cost_dict(self)

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON text.

        Args:
            indent: Spaces per level; None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    def _repr_html_(self) -> str:
        from shardy_py.plan.cost_text import cost_html

        return cost_html(self)

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return self.as_text()


_T = TypeVar("_T")


def _grouped(items: Iterable[_T], name: Callable[[_T], str]) -> dict[str, list[_T]]:
    groups: dict[str, list[_T]] = {}
    for item in items:
        groups.setdefault(name(item), []).append(item)
    return groups


def _sorted(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda s: (-s.seconds, -s.communicated_bytes, -s.flops, -s.bytes_accessed, s.name)))

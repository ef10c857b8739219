"""What a compiler made of a plan: memory, and collectives beside the planned ones."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardy_py.dialect.format import printable, short_location
from shardy_py.ir.types import element_bits
from shardy_py.plan.collectives import KINDS, Collective, format_bytes, received_bytes, trips_text
from shardy_py.plan.donation import arrangement
from shardy_py.plan.executed import collectives_of
from shardy_py.plan.memory.analysis import MemoryAnalysis, summary_rows
from shardy_py.plan.record import Analysis, PlanRecord
from shardy_py.plan.report import LISTED, Report, table

TOLERANCE = 0.05
"""The part of the planned bytes by which compiled ones may differ: the compiler pads, and merges small collectives."""

Shape = tuple[str, tuple[int, ...]]
"""Element type in XLA's spelling (`f32`, `bf16`, `pred`), and dimensions."""


@dataclass(frozen=True)
class CompiledCollective:
    """One collective op of a compiled program.

    Attributes:
        kind: As that of `Collective`.
        group_size: Number of devices that exchange data with each other; of a `collective_permute` 2.
        operands: One per tensor that moves. XLA makes one op of several all-reduces; the pieces of an `all_to_all`, one per device of
            the group, are put together again.
        trips: Number of executions in one call; None where it is unknown.
        op_name: The JAX primitive that asks for it, with the names around it.
        location: `file:line` of the user's code; empty where unknown.
        is_hidden: Whether other ops compute between its start and its end. Devices wait for the others.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> step = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x")), out_shardings=jax.P())
        >>> compiled = step.plan(jnp.ones((8, 8)), jnp.ones((8, 8))).compile_for()
        >>> [(each.kind, each.group_size, each.trips) for each in compiled.collectives]
        [('all_reduce', 4, 1)]
    """

    kind: str
    group_size: int
    operands: tuple[Shape, ...]
    trips: int | None
    op_name: str
    location: str
    is_hidden: bool = False

    @property
    def pieces(self) -> tuple[int, ...]:
        """Bytes of each operand on one device."""
        return tuple(map(shape_bytes, self.operands))

    @property
    def received_bytes(self) -> int:
        """Bytes that a device receives each time it runs."""
        return sum(received_bytes(self.kind, self.group_size, piece) for piece in self.pieces)

    @property
    def total_bytes(self) -> int | None:
        """Bytes that a device receives in one call; None where the number of trips is unknown."""
        return None if self.trips is None else self.received_bytes * self.trips

    @property
    def call_bytes(self) -> int:
        """Bytes that a device receives in one call, an unknown number of trips taken for one."""
        return self.received_bytes * (1 if self.trips is None else self.trips)

    def __str__(self) -> str:
        size = format_bytes(self.received_bytes) + trips_text(self.trips)
        return " ".join(part for part in (f"{size} {self.kind}", short_location(self.location)) if part)


def shape_bytes(shape: Shape) -> int:
    """Bytes of an array of XLA's.

    Example:
        >>> shape_bytes(("bf16", (8, 4))), shape_bytes(("pred", (3,))), shape_bytes(("f32", ()))
        (64, 3, 4)
    """
    dtype, dims = shape
    bits = re.search(r"\d+", dtype)
    return -(-math.prod(dims) * (8 if dtype == "pred" else 0 if bits is None else int(bits[0])) // 8)


@dataclass(frozen=True, repr=False)
class CompiledProgram(Report):
    """The answer of `Plan.compile_for`.

    Attributes:
        plan: The plan that was compiled: itself, or for devices of another platform the plan of the same function for these.
        target: What it was compiled for: `v5e:2x4`, `8 cpu devices`.
        memory: By the compiler, and the memory of a device if it is known; None where the compiler refused, as TPU's does with a program
            that does not fit.
        collectives: In the order of the program, bodies of loops once.
        cycles: Line of the user's code -> cycles of a call, by the compiler's estimate, the most first; of TPU only.
        taken: Numbers of the compiled program's parameters whose memory results take.
        seconds: The time that the compiler took.
        text: The compiled program (HLO).
        refusal: The first lines of what the compiler says where it finds no program that fits.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> step = sp.auto_shard(lambda x, w: x @ w, mesh={"data": 4}, in_shardings=(None, jax.P("data")), out_shardings=jax.P())
        >>> compiled = step.plan(jnp.ones((8, 8)), jnp.ones((8, 8))).compile_for()
        >>> compiled.fits, compiled.problems, compiled.received
        (True, (), {'all_reduce': 384})
    """

    plan: PlanRecord = field(repr=False)
    target: str
    memory: MemoryAnalysis | None
    collectives: tuple[CompiledCollective, ...]
    cycles: Mapping[str, int]
    taken: frozenset[int]
    seconds: float
    text: str
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether the compiler found a program, and its peak is within the memory of a device if that is known."""
        return self.memory is not None and self.memory.fits is not False

    @property
    def _planned(self) -> tuple[Collective, ...] | None:
        return None if self.plan.lowering == "jit" else collectives_of(self.plan)

    @functools.cached_property
    def planned(self) -> Mapping[str, int] | None:
        """Kind -> bytes that a device is to receive in a call, of the types that are sent; None where XLA's partitioner runs the plan."""
        if self._planned is None:
            return None
        platform = self.plan.platform
        return _by_kind((c.kind, received_bytes(c.kind, c.group_size, wire_bytes(c, platform)) * c.runs) for c in self._planned)

    @property
    def differences(self) -> list[str]:
        """Collectives that were planned and not compiled, and the reverse, a line each with its place, the largest first."""
        return [] if self._planned is None else differences(self._planned, self.collectives, platform=self.plan.platform)

    @property
    def received(self) -> Mapping[str, int]:
        """Kind -> bytes that a device receives in a call."""
        return _by_kind((c.kind, c.call_bytes) for c in self.collectives)

    @property
    def hidden_bytes(self) -> int:
        """Bytes of `received` that arrive while the device computes."""
        return sum(c.call_bytes for c in self.collectives if c.is_hidden)

    @functools.cached_property
    def problems(self) -> tuple[str, ...]:
        """What CI should stop for, a line each: it does not fit, other bytes than planned, arguments that were donated in vain."""
        return (*self._memory_problems(), *self._communication_problems(), *self._donation_problems())

    def _memory_problems(self) -> list[str]:
        if self.memory is None:
            return [f"does not fit: {self.refusal}"]
        return [] if self.fits else [": ".join(summary_rows(self.memory)[-1])]

    def _communication_problems(self) -> list[str]:
        if self.planned is None or self.memory is None:
            return []
        planned, received, problems = self.planned, self.received, list[str]()
        lost = planned.get("reduce_scatter", 0) - received.get("reduce_scatter", 0)
        added = received.get("all_reduce", 0) - planned.get("all_reduce", 0)
        if lost > TOLERANCE * planned.get("reduce_scatter", 0) and added > 0:
            problems.append(f"reduce_scatter became all_reduce: {format_bytes(lost)} less of one, {format_bytes(added)} more of the other")
        want, has = sum(planned.values()), sum(received.values())
        if abs(has - want) > TOLERANCE * want:
            problems.append(f"a device receives {format_bytes(has)} in a call, {format_bytes(want)} were planned")
        return problems

    def _donation_problems(self) -> list[str]:
        plan = self.plan
        order = arrangement(plan.donation, plan.program, plan.outputs).donated
        problems: list[str] = []
        for d in plan.donation:
            if d.aliased is None:
                problems += [] if d.kind in ("unused", "off") else [f"donation not taken: {d}"]
                continue
            number = d.input - sum(n < d.input for n in plan.dropped) if list(order) == sorted(order) else order.index(d.input)
            if self.memory is not None and number not in self.taken:
                problems.append(f"donation not taken: {d.path} was to become {d.aliased}")
        return problems

    @property
    def headline(self) -> str:
        """Peak, bytes received and problems in a line, which a plan's text, page and comparisons have.

        Example:
            >>> import jax, jax.numpy as jnp, shardy_py as sp
            >>> plan = sp.auto_shard(jnp.sum, mesh={"data": 4}, in_shardings=jax.P("data")).plan(jnp.ones(1024))
            >>> plan.compile_for(hardware="v5e").headline
            'peak 1.07 KiB of 16 GiB, 6 B received in a call, 6 B planned; no problems'
        """
        if self.memory is None:
            return f"does not fit: {self.refusal}"
        room = self.memory.hardware_bytes
        peak = f"peak {format_bytes(self.memory.peak_memory_in_bytes)}{'' if room is None else f' of {format_bytes(room)}'}"
        planned = "" if self.planned is None else f", {format_bytes(sum(self.planned.values()))} planned"
        received = f"{format_bytes(sum(self.received.values()))} received in a call{planned}"
        return f"{peak}, {received}; {'; '.join(self.problems) or 'no problems'}"

    def as_text(self, limit: int = LISTED) -> str:
        """Memory, collectives by kind beside the planned ones, the largest with their lines, problems.

        Args:
            limit: Number of collectives and of lines to list.
        """
        how = "refused by the compiler" if self.memory is None else f"compiled in {self.seconds:.1f} s"
        lines = [f"{self.plan.name} for {self.target}, {how}"]
        lines += [f"problem  {line}" for line in self.problems] or ["no problems"]
        lines += table("on each device", summary_rows(self.memory)) if self.memory is not None else []
        if self.memory is not None and (self.collectives or self.planned):
            lines += table("received in a call", self._kind_rows(), [1, 2, 3])
            largest = sorted(self.collectives, key=lambda c: -c.call_bytes)[:limit]
            lines += ["largest collectives", *(f"  {c}{'  hidden' if c.is_hidden else ''}" for c in largest)]
        if self._communication_problems():
            lines += ["differences from the plan", *(f"  {line}" for line in self.differences[:limit])]
        cycles = [(f"{n:,}", short_location(where)) for where, n in list(self.cycles.items())[:limit]]
        lines += table("cycles by line, as the compiler estimates", cycles, [0])
        return printable("\n".join(lines))

    def _kind_rows(self) -> list[tuple[str, ...]]:
        planned, received = self.planned or {}, self.received
        hidden = _by_kind((c.kind, c.call_bytes) for c in self.collectives if c.is_hidden)
        rows: list[tuple[str, ...]] = [("", "" if self.planned is None else "planned", "compiled", "hidden" if hidden else "")]
        for kind in (kind for kind in KINDS if kind in planned or kind in received):
            cells = ((self.planned is not None, planned), (True, received), (bool(hidden), hidden))
            rows.append((kind, *(format_bytes(column.get(kind, 0)) if is_shown else "" for is_shown, column in cells)))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Everything but the plan and the text, with a version."""
        collectives = [{**asdict(c), "received_bytes": c.received_bytes, "total_bytes": c.total_bytes} for c in self.collectives]
        memory = None if self.memory is None else self.memory.to_dict()
        head = {"format": "shardy_py.compiled", "version": 1, "name": self.plan.name, "target": self.target, "seconds": self.seconds}
        received = {"planned": self.planned, "received": self.received, "hidden_bytes": self.hidden_bytes, "collectives": collectives}
        return {**head, "fits": self.fits, "problems": list(self.problems), "memory": memory, **received, "cycles": dict(self.cycles)}


@Analysis
def compiled_of(plan: PlanRecord) -> dict[str, CompiledProgram]:
    """The last answer of `Plan.compile_for` for each target: of texts, pages and comparisons of this plan, not of files."""
    return {}


def _by_kind(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for kind, size in sizes:
        total[kind] = total.get(kind, 0) + size
    return total


_Key = tuple[str, int, int, int | None]

_PACKED = ("int4", "uint4", "int2", "uint2")


def differences(predicted: Iterable[Collective], compiled: Iterable[CompiledCollective], *, platform: str = "cpu") -> list[str]:
    """Differences of planned and compiled collectives, a line each, largest first; on `"cpu"` XLA moves narrow types as wider ones."""
    planned: dict[_Key, list[str]] = {}
    for c in predicted:
        if c.group_size > 1:
            group = 0 if c.kind == "collective_permute" else c.group_size
            where = " ".join(part for part in (short_location(c.location), c.value, c.primitive) if part)
            planned.setdefault((c.kind, group, wire_bytes(c, platform), c.trips), []).append(where)
    actual: dict[_Key, list[str]] = {}
    for op in compiled:
        if op.kind == "collective_permute" or op.group_size > 1:
            group = 0 if op.kind == "collective_permute" else op.group_size
            for piece in op.pieces:
                where = " ".join(part for part in (short_location(op.location), op.op_name) if part)
                actual.setdefault((op.kind, group, piece, op.trips), []).append(where)
    lines: list[tuple[int, str]] = []
    for key in dict.fromkeys((*planned, *actual)):
        ours, theirs = planned.get(key, []), actual.get(key, [])
        if len(ours) != len(theirs):
            more, title = (ours, "planned, not compiled") if len(ours) > len(theirs) else (theirs, "compiled, not planned")
            lines.append((key[2], f"{title}: {_described(key, abs(len(ours) - len(theirs)))}{_places(more)}"))
    return [line for _, line in sorted(lines, key=lambda entry: -entry[0])]


def wire_bytes(c: Collective, platform: str = "cpu") -> int:
    """Bytes of a collective's operand as they are sent.

    XLA's compiler for CPUs turns bfloat16 into float32, 8 bit floats into float16 and packed integers into 8 bit ones, for all kinds of
    collectives.

    Example:
        >>> wire_bytes(Collective("all_gather", ("x",), 4, 128, dtype="bfloat16", shape=(8, 8)))
        256
    """
    if platform != "cpu" or not c.dtype:
        return c.operand_bytes
    elements = math.prod(c.shape)
    if c.dtype in _PACKED:
        return elements
    if c.dtype == "bfloat16" or (c.dtype.startswith("float") and element_bits(c.dtype) <= 8):
        return elements * (4 if c.dtype == "bfloat16" else 2)
    return c.operand_bytes


def _described(key: _Key, count: int) -> str:
    kind, group, size, trips = key
    among = f" among {group}" if group else ""
    trips_text = ", trips unknown" if trips is None else f", {trips} trips" if trips != 1 else ""
    return f"{count} {kind} of {size} B{among}{trips_text}"


def _places(places: list[str]) -> str:
    named = list(dict.fromkeys(filter(None, places)))
    return f" ({'; '.join(named[:3])}{'; ...' if len(named) > 3 else ''})" if named else ""

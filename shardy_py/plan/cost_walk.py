"""Goes through a planned program: what each op costs, how often it runs, and the longest chain of ops that wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from shardy_py.cost.compute import Work, work_of
from shardy_py.cost.sizes import LocalSizes
from shardy_py.cost.traffic import Traffic
from shardy_py.dialect import Mesh
from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, WHILE
from shardy_py.plan.trips import trip_count

Edge = tuple[Op, int]
"""An op and the number of one of its operands; -1 stands for its results."""

RESULTS = -1


@dataclass(frozen=True, slots=True)
class Run:
    """One op that costs something.

    Attributes:
        op: The op.
        work: What it computes, once.
        bytes: Bytes that it moves to and from memory, once.
        trips: How often it runs; those of a loop whose trip count is not known count once.
    """

    op: Op
    work: Work
    bytes: int
    trips: int


@dataclass(eq=False)
class Walked:
    """What a walk found.

    Attributes:
        runs: Ops that cost something, in program order; of the branches of a cond those of the costliest.
        path: Seconds of the longest chain of ops and collectives that wait for each other; 0 without `seconds`.
        exact: Whether all trip counts are known.
        unknown: JAX primitives whose computation is not known, in order.
    """

    runs: list[Run] = field(default_factory=list)
    path: float = 0.0
    exact: bool = True
    unknown: dict[str, None] = field(default_factory=dict)


def walk(
    block: Block,
    meshes: Mapping[str, Mesh],
    seconds: Callable[[Work, int], float] | None = None,
    delays: Mapping[Edge, float] | None = None,
) -> Walked:
    """What the ops of a block cost on one device.

    Args:
        block: The body of a planned function, with final shardings; or that of a region, whose values are those of one device.
        meshes: Where named meshes are looked up.
        seconds: How long so much work and so many bytes take; without it no path is looked for.
        delays: Seconds that collectives take between an op's operand, or its results, and the op.
    """
    walker = _Walker(block, meshes, seconds, delays or {})
    walker.block(block, 1)
    found = walker.found
    found.path = walker.longest
    return found


class _Walker:
    def __init__(
        self, block: Block, meshes: Mapping[str, Mesh], seconds: Callable[[Work, int], float] | None, delays: Mapping[Edge, float]
    ) -> None:
        self.sizes = LocalSizes(meshes)
        self.traffic = Traffic(block, self.sizes)
        self.seconds = seconds
        self.delays = delays
        self.delayed = {op for op, _ in delays}
        self.found = Walked()
        self.finish: dict[Value, float] = {}
        self.early: set[Value] = set()
        self.longest = 0.0

    def block(self, block: Block, trips: int) -> None:
        """Runs the ops of a block; `longest` becomes the time of its last op."""
        for op in block.ops:
            if op.regions:
                self.with_regions(op, trips)
            else:
                self.single(op, trips)

    def single(self, op: Op, trips: int) -> None:
        moved = self.traffic.bytes_of(op)
        work = work_of(op, self.sizes)
        if moved or work.flops or work.transcendentals:
            self.found.runs.append(Run(op, work, moved, trips))
        if not work.known:
            self.found.unknown[op.primitive or op.name] = None
        if self.seconds is not None and op.results:
            self.pass_on(op, self.seconds(work, moved))

    def ready(self, op: Op) -> float:
        """When the operands of an op are there."""
        finish = self.finish
        if op in self.delayed:
            waits = (finish.get(v, 0.0) + self.delays.get((op, i), 0.0) for i, v in enumerate(op.operands) if v not in self.early)
            return max(waits, default=0.0)
        return max((finish.get(v, 0.0) for v in op.operands), default=0.0)

    def pass_on(self, op: Op, took: float) -> None:
        """Says when the results of an op are there."""
        if self.early and all(v in self.early or v not in self.finish for v in op.operands):
            # Independent of what the trip before makes: it can be computed, and sent, while that runs.
            self.early.update(op.results)
            return
        if op in self.delayed:
            took += self.delays.get((op, RESULTS), 0.0)
        end = self.ready(op) + took
        for result in op.results:
            self.finish[result] = end
        self.longest = max(self.longest, end)

    def with_regions(self, op: Op, trips: int) -> None:
        if op.name == WHILE:
            self.loop(op, trips)
        elif op.name in COMPUTATIONS:
            body = op.regions[0]
            for i, (argument, operand) in enumerate(zip(body.arguments, op.operands)):
                if operand in self.early:
                    self.early.add(argument)
                else:
                    self.finish[argument] = self.finish.get(operand, 0.0) + self.delays.get((op, i), 0.0)
            self.block(body, trips)
            for result, value in zip(op.results, body.terminator.operands):
                if value in self.early:
                    self.early.add(result)
                else:
                    self.finish[result] = self.finish.get(value, 0.0) + self.delays.get((op, RESULTS), 0.0)
        elif op.name == CASE:
            self.branches(op, trips)
        else:
            self.single(op, trips)

    def inside(self, block: Block, trips: int, early: set[Value]) -> float:
        """The longest chain in a block by itself.

        Args:
            block: The block.
            trips: How often it runs.
            early: The arguments that do not depend on the trip before; nor does what is computed outside.
        """
        kept = self.finish, self.early, self.longest
        self.finish, self.early, self.longest = {a: 0.0 for a in block.arguments if a not in early}, early, 0.0
        self.block(block, trips)
        longest = self.longest
        self.finish, self.early, self.longest = kept
        return longest

    def loop(self, op: Op, trips: int) -> None:
        condition, body = op.regions
        count = trip_count(op)
        if count is None:
            self.found.exact = False
        times = 1 if count is None else count
        ends = body.terminator.operands
        early = {a for a, end in zip(body.arguments, ends) if end is a or (not a.type.rank and a.type.dtype.startswith("int"))}
        before = len(self.found.runs)
        path = self.inside(condition, trips * (times + 1), set()) * (times + 1)
        path += self.inside(body, trips * times, early) * times
        if not times:
            del self.found.runs[before:]
        self.pass_on(op, path)

    def branches(self, op: Op, trips: int) -> None:
        runs = self.found.runs
        longest, best = 0.0, []
        for region in op.regions:
            self.found.runs = []
            longest = max(longest, self.inside(region, trips, set()))
            best = max(best, self.found.runs, key=_weight)
        self.found.runs = [*runs, *best]
        self.pass_on(op, longest)


def _weight(runs: list[Run]) -> float:
    """How costly a branch is; a byte counts as a hundred operations."""
    return sum((run.work.flops + run.work.transcendentals + 100 * run.bytes) * run.trips for run in runs)


def trips_within(block: Block, trips: int | None = 1) -> Iterator[tuple[Op, int | None]]:
    """Every op of a block and of the regions in it with the number of times it runs; None where that is unknown.

    Args:
        block: Where to begin.
        trips: How often the block itself runs.
    """
    for op in block.ops:
        yield op, trips
        if op.regions:
            within = trips
            if op.name == WHILE:
                count = trip_count(op)
                within = None if count is None or trips is None else count * trips
            for region in op.regions:
                yield from trips_within(region, within)

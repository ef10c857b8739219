"""Walks a planned program: the cost and trip count of each op, and the longest chain of ops that wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shardy_py.cost.compute import Accessed, Work, work_of
from shardy_py.cost.sizes import LocalSizes
from shardy_py.cost.traffic import Traffic
from shardy_py.dialect import Mesh
from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, WHILE
from shardy_py.plan.trips import trip_count


class Run(NamedTuple):
    """One op with a cost."""

    op: Op
    work: Work
    accessed: Accessed
    trips: int


class BlockCosts:
    """The costs of the ops of a block on one device.

    Args:
        seconds: Time of an amount of work and bytes, by which the costliest branch is told; without it no path is computed, and a byte
            counts as a hundred operations.
        delays: Time for which the results of an op are on their way.

    Attributes:
        runs: Ops that cost something, in program order; of the branches of a cond those of the costliest.
        path: The longest chain of ops that wait for each other.
    """

    def __init__(
        self,
        block: Block,
        meshes: Mapping[str, Mesh],
        seconds: Callable[[Work, Accessed], float] | None = None,
        delays: Mapping[Op, float] | None = None,
    ) -> None:
        self.sizes = LocalSizes(meshes)
        self.traffic = Traffic(block, self.sizes)
        self.seconds = seconds
        self.delays = delays or {}
        self.runs: list[Run] = []
        self.other_branches: list[Run] = []
        self.exact = True
        self.unknown: dict[str, None] = {}
        self.finish: dict[Value, float] = {}
        self.independent: set[Value] = set()
        self.path = 0.0
        self._block(block, 1)

    def _block(self, block: Block, trips: int) -> None:
        """Runs the ops of a block; `path` becomes the time of its last op."""
        for op in block.ops:
            if op.regions:
                self._with_regions(op, trips)
            else:
                self._single(op, trips)

    def _single(self, op: Op, trips: int) -> None:
        accessed = self.traffic.of(op)
        work = work_of(op, self.sizes)
        if accessed.bytes or work.flops or work.transcendentals or work.host:
            self.runs.append(Run(op, work, accessed, trips))
        if not work.has_formula:
            self.unknown[op.primitive or op.name] = None
        if self.seconds is not None and op.results:
            self._pass_on(op, self.seconds(work, accessed))

    def _pass_on(self, op: Op, took: float) -> None:
        """Sets the time at which the results of an op are ready."""
        if self.independent and all(v in self.independent or v not in self.finish for v in op.operands):
            # Independent of the trip before: it can be computed, and sent, while that trip runs.
            self.independent.update(op.results)
            return
        end = max((self.finish.get(v, 0.0) for v in op.operands), default=0.0) + took + self.delays.get(op, 0.0)
        for result in op.results:
            self.finish[result] = end
        self.path = max(self.path, end)

    def _with_regions(self, op: Op, trips: int) -> None:
        if op.name == WHILE:
            self._loop(op, trips)
        elif op.name in COMPUTATIONS:
            body = op.regions[0]
            for argument, operand in zip(body.arguments, op.operands):
                if operand in self.independent:
                    self.independent.add(argument)
                else:
                    self.finish[argument] = self.finish.get(operand, 0.0)
            self._block(body, trips)
            for result, value in zip(op.results, body.terminator.operands):
                if value in self.independent:
                    self.independent.add(result)
                else:
                    self.finish[result] = self.finish.get(value, 0.0)
        elif op.name == CASE:
            self._branches(op, trips)
        else:
            self._single(op, trips)

    def _inside(self, block: Block, trips: int, independent: set[Value]) -> float:
        """The longest chain in a block by itself."""
        state = self.finish, self.independent, self.path
        self.finish, self.independent, self.path = {a: 0.0 for a in block.arguments if a not in independent}, independent, 0.0
        self._block(block, trips)
        longest = self.path
        self.finish, self.independent, self.path = state
        return longest

    def _loop(self, op: Op, trips: int) -> None:
        condition, body = op.regions
        count = trip_count(op)
        if count is None:
            self.exact = False
        times = 1 if count is None else count
        ends = body.terminator.operands
        independent = {a for a, end in zip(body.arguments, ends) if end is a or (not a.type.rank and a.type.dtype.startswith("int"))}
        before = len(self.runs)
        path = self._inside(condition, trips * (times + 1), set()) * (times + 1)
        path += self._inside(body, trips * times, independent) * times
        if not times:
            del self.runs[before:]
        self._pass_on(op, path)

    def _branches(self, op: Op, trips: int) -> None:
        runs = self.runs
        longest, branches = 0.0, list[list[Run]]()
        for region in op.regions:
            self.runs = []
            longest = max(longest, self._inside(region, trips, set()))
            branches.append(self.runs)
        costliest = max(branches, key=self._cost, default=[])
        self.runs = [*runs, *costliest]
        self.other_branches += [run for branch in branches if branch is not costliest for run in branch]
        self._pass_on(op, longest)

    def _cost(self, runs: list[Run]) -> float:
        """The cost of a branch."""
        if self.seconds is None:
            return sum((run.work.flops + run.work.transcendentals + 100 * run.accessed.bytes) * run.trips for run in runs)
        return sum(self.seconds(run.work, run.accessed) * run.trips for run in runs)

"""The problem of a program: a table of prices for every op, and a move for every layout in which a value is read.

Prices are those of `partition/tables`, of which a plan's `cost_analysis` is the sum; nothing here has a formula of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Block, Op, Value
from shardy_py.ir.types import Type
from shardy_py.partition.layouts import Layout, layout_of, local_shape
from shardy_py.partition.op import CHEAP, FORWARDING
from shardy_py.partition.price import piece_bytes
from shardy_py.partition.tables import Reads, reads_of
from shardy_py.passes.dataflow import CASE, MANUAL_COMPUTATION, WHILE
from shardy_py.plan.cost_analysis import EXPOSED
from shardy_py.plan.feeding import NOTHING, Feeding
from shardy_py.plan.progress import report
from shardy_py.plan.trips import trip_count
from shardy_py.planner.op_tables import Joint, OpTables, TooLarge, reduced_shares
from shardy_py.planner.problem import Limit, Problem, Table, cost_of_entries, dearer, entries, weight
from shardy_py.planner.space import Space

Array = Any


TIE = 1e-6
"""The part of a lower bound of the step by which an argument or result that lies whole is dearer than one that is cut to nothing.

Solutions are full of plans of equal cost, since slicing is free; of these local moves take the one whose arguments take the least memory,
then are cut along their first dimensions. Much less is lost in rounding."""

LESS = 1e-4
"""The part of a step by which a plan that is fed for less time has to be shorter to be searched for."""

DIMENSION_TIE = 0.2
"""The part of `TIE` for each dimension in front of one of an argument that is cut."""


class CountedScope:
    """A block, or the body of a call, in the block around it, with its executions, and those that work is counted with.

    `changing` are the values that each trip of a loop changes; None of a branch.
    """

    def __init__(self, trips: int | None, runs: float, changing: set[Value] | None, around: CountedScope | None = None) -> None:
        self.trips = trips
        self.runs = runs
        self.changing = changing
        self.around = around

    def outward(self) -> Iterator[CountedScope]:
        """This scope and those around it, the innermost first."""
        scope: CountedScope | None = self
        while scope is not None:
            yield scope
            scope = scope.around

    def hoisted(self, value: Value) -> CountedScope:
        """The outermost scope that code can be moved to, out of loops and not out of branches, in which a value does not change."""
        return next(s for s in self.outward() if s.changing is None or value in s.changing)

    def within(self, home: CountedScope) -> CountedScope:
        """The outermost scope that code can be moved to, up to one."""
        return next(s for s in self.outward() if s is home or s.changing is None)

    def spread(self, op: Op) -> None:
        """Marks the results of an op as changing where its operands change."""
        for scope in self.outward():
            inner = op.walk() if op.regions else (op,)
            if scope.changing and any(v in scope.changing for each in inner for v in each.operands):
                scope.changing.update(op.results)
                return


def wholeness(layout: Layout, mesh: Mesh) -> float:
    """How far an argument is from one that is cut to nothing along its first dimension."""
    pieces = math.prod(part.size_in(mesh) for axes in layout for part in axes)
    return 1 / pieces + DIMENSION_TIE * sum(dim for dim, axes in enumerate(layout) if axes)


@dataclass(eq=False)
class Model:
    """The problem of a program.

    Attributes:
        problem: Its classes are numbers in `variables`.
        constant: Seconds that no choice changes.
    """

    space: Space
    variables: tuple[int, ...]
    problem: Problem
    constant: float
    values: dict[Value | int, int]
    layouts: dict[int, tuple[Layout, ...]]
    feeding: Limit
    _entries: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict[tuple[int, ...], tuple[int, ...]])

    def entries(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Per table, the number of the entry of an assignment; -1 where the table forbids it."""
        key = tuple(chosen)
        if key not in self._entries:
            self._entries[key] = entries(self.problem, key)
        return self._entries[key]

    def seconds(self, chosen: Sequence[int]) -> float:
        """The seconds of a call of an assignment, of which the problem has all unless what is fed takes longer."""
        feeding = weight(self.feeding, self.entries(chosen)) - self.feeding.limit
        return self.fed_seconds(self.cost_seconds(chosen), feeding)

    def tied(self, problem: Problem) -> Problem:
        """A problem with these tables in which plans of equal cost differ."""
        mesh, costs = self.space.mesh, [np.zeros(len(table.costs)) for table in problem.tables]
        unit = TIE * (self.constant + sum(float(table.costs.min()) for table in problem.tables if len(table.costs)))
        for table, layouts in self.layouts.items():
            costs[table] = unit * np.array([wholeness(layout, mesh) for layout in layouts])
        return dearer(problem, costs)

    def cost_seconds(self, chosen: Sequence[int]) -> float:
        """The cost of an assignment, with the part that no choice changes."""
        return cost_of_entries(self.problem, self.entries(chosen)) + self.constant

    def fed_seconds(self, seconds: float, feeding: float | None = None) -> float:
        """The seconds of a step from the seconds of the problem (part of feeding) and all of feeding, by default the least there is."""
        if feeding is None:
            feeding = sum(float(weights.min()) for weights in self.feeding.weights) - self.feeding.limit
        return max(seconds, EXPOSED * seconds + (1 - EXPOSED**2) * feeding)

    def fed_within(self, most: float, least: float) -> Limit:
        """The limit of all plans that take less than some seconds, where the problem takes at least some."""
        return replace(self.feeding, limit=((1 - LESS) * most - EXPOSED * least) / (1 - EXPOSED**2) + self.feeding.limit)

    def assignment(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Per class of the space, the number of its strategy."""
        assignment = [0] * len(self.space.strategies)
        for variable, strategy in zip(self.variables, chosen, strict=True):
            assignment[variable] = strategy
        return tuple(assignment)


@dataclass(eq=False)
class _Draft:
    """A table that is being added up."""

    strategies: Array
    costs: Array
    moves: list[Array] = field(default_factory=list[Array])


def model_of(op_tables: OpTables, space: Space, most: float = math.inf, among: Array = None, feeding: Feeding = NOTHING) -> Model:
    """The problem of a program; raises TooLarge if its tables have more than `most` entries together."""
    if not math.isinf(most):
        _Builder(op_tables, space, most, among, prices=False).main()  # prices take ten times as long as to see that there are too many
    builder = _Builder(op_tables, space, most, among)
    builder.main()
    return builder.model(feeding)


class _Builder:
    """Adds up tables and moves."""

    def __init__(self, op_tables: OpTables, space: Space, most: float, among: Array, prices: bool = True) -> None:
        self.op_tables = op_tables
        self.among = among
        self.prices = prices
        self.room = most
        self.ops_seen = 0
        self.program = op_tables.program
        self.space = space
        self.machine = op_tables.machine
        self.mesh = self.machine.mesh
        self.reduced_shares = reduced_shares(self.program)
        self.variables: dict[int, int] = {c: i for i, c in enumerate(space.free)}
        self.home: dict[Value, CountedScope] = {}
        self.drafts: dict[tuple[tuple[int, ...], int], _Draft] = {}
        self.moves: dict[tuple[Value, CountedScope, Layout, Layout], int] = {}
        self.move_costs: list[float] = []
        self.joints: dict[object, tuple[tuple[int, ...], Joint]] = {}

    # ------------------------------------------------------------------ walking

    def main(self) -> None:
        """The body of the function, and its results."""
        main = self.program.main
        scope = CountedScope(1, 1, None)
        for argument in main.arguments:
            self.home[argument] = scope
        self.block(main.body, scope)
        for number, value in enumerate(main.body.terminator.operands):
            self.to_layout_of(main.body.terminator, value, number, main.result_types[number], scope)

    def block(self, block: Block, scope: CountedScope) -> None:
        """The ops of a block but its terminator."""
        for op in block.ops[:-1]:
            self.ops_seen += 1
            report("pricing ops", self.ops_seen / self.op_tables.count)
            self.op(op, scope)

    def op(self, op: Op, scope: CountedScope) -> None:
        """One op."""
        name = op.name
        if name == WHILE:
            self.loop(op, scope)
        elif name == CASE:
            self.branches(op, scope)
        elif name == MANUAL_COMPUTATION:
            for value, sharding in zip(op.operands, op.attributes["in_shardings"]):
                self.to_sharding(op, value, sharding, scope)
            self.results(op, scope)
        elif name in FORWARDING:  # what is behind a barrier is a value of its own, and is moved again
            for operand, result in zip(op.operands, op.results):
                self.to_layout_of(op, operand, result, result.type, scope)
            self.results(op, scope)
        elif not op.regions and (op.results or op in self.op_tables.counted):
            self.results(op, scope)
            self.plain(op, scope)

    def results(self, op: Op, scope: CountedScope) -> None:
        """Notes where the results of an op are at home, and whether they change."""
        for result in op.results:
            self.home[result] = scope
        scope.spread(op)

    def loop(self, op: Op, scope: CountedScope) -> None:
        """A loop: operands are moved once, results of the body on every trip."""
        count = trip_count(op)
        ends = op.regions[1].terminator.operands
        for operand, result in zip(op.operands, op.results):
            self.to_layout_of(op, operand, result, result.type, scope)
        for region, more in zip(op.regions, (1, 0)):  # the condition runs once more than the body
            trips = None if count is None or scope.trips is None else scope.trips * (count + more)
            runs = scope.runs * ((1 if count is None else count) + more) if count != 0 else 0
            inner = CountedScope(trips, runs, set(region.arguments), scope)
            self.home.update(dict.fromkeys(region.arguments, inner))
            self.block(region, inner)
            if region is op.regions[1]:
                for end, result in zip(ends, op.results):
                    self.to_layout_of(region.terminator, end, result, result.type, inner)
        self.results(op, scope)

    def branches(self, op: Op, scope: CountedScope) -> None:
        """The branches of a cond, of which a call runs the longest: an average takes no longer, and any that may be it counts."""
        seconds = [sum(self.op_tables.counted.get(each, 0.0) for each in region.walk()) for region in op.regions]
        for region, own in zip(op.regions, seconds):
            share = own / sum(seconds) if sum(seconds) else 1 / len(seconds)
            inner = CountedScope(scope.trips, scope.runs * share, None if scope.changing is None else set(), scope)
            self.block(region, inner)
            for end, result in zip(region.terminator.operands, op.results):
                self.to_layout_of(region.terminator, end, result, result.type, inner)
        self.results(op, scope)

    # ------------------------------------------------------------------ tables

    def plain(self, op: Op, scope: CountedScope) -> None:
        """The prices of an op, and the moves of its operands."""
        is_counted = op in self.op_tables.counted
        if op.name in CHEAP and not is_counted:
            return
        local, joint = self.joint(tuple(self.space.classes[v] for v in (*op.operands, *op.results)))
        key, draft = self.draft(local, joint)
        if not self.prices:
            return
        price = self.op_tables.priced(op, joint)
        once = scope.hoisted(op.results[0]) if op.results else scope
        sent = price.communication_seconds
        deferred = (1 - self.reduced_shares.get(op, 1.0)) * price.reduction_seconds
        costs = (sent - deferred) * (once.trips or 1)
        if is_counted:
            costs = costs + (price.seconds - sent) * scope.runs
        draft.costs = draft.costs + costs
        for value, reads in zip(op.operands, price.reads):
            if reads is not None and reads.moves:
                self.move(op, key, draft, value, scope, reads)

    def move(self, op: Op, key: tuple[tuple[int, ...], int], draft: _Draft, value: Value, scope: CountedScope, reads: Reads) -> None:
        """A column of moves of an operand."""
        once = (scope.hoisted(value).trips or 1) * 1.0
        place = scope.within(self.home[value])
        if op.name == "stablehlo.dynamic_slice":
            place = scope  # loops of a region slice what they scan, and each loop gathers its slices
        numbers = np.full((len(reads.domain), len(reads.targets)), -1)
        for a, b, seconds in reads.moves:
            move = (value, place, reads.domain[a], reads.targets[b])
            number = self.moves.get(move)
            if number is None:
                number = self.moves[move] = len(self.move_costs)
                self.move_costs.append(seconds * once)
            numbers[a, b] = number
        draft.moves.append(numbers[reads.own, reads.read])

    def to_layout_of(self, op: Op, value: Value, target: Value | int, type_: Type, scope: CountedScope) -> None:
        """Moves a value to the layout of another."""
        own, other = self.space.classes[value], self.space.classes[target]
        if own == other or not type_.rank:
            return
        local, joint = self.joint((own, other))
        self.bring(op, value, scope, local, joint, joint.domains[1], joint.index[1])

    def to_sharding(self, op: Op, value: Value, sharding: TensorSharding, scope: CountedScope) -> None:
        """Moves a value to a sharding."""
        if value.type.rank:
            local, joint = self.joint((self.space.classes[value],))
            target = layout_of(sharding, value.type.rank, self.mesh)
            self.bring(op, value, scope, local, joint, (target,), np.zeros(len(joint.strategies), int))

    def bring(
        self, op: Op, value: Value, scope: CountedScope, local: Sequence[int], joint: Joint, targets: Sequence[Layout], read: Array
    ) -> None:
        """Moves of a value from its layout to others."""
        maker = value.defining_op
        if maker is not None and maker.name in CHEAP:
            return
        key, draft = self.draft(local, joint)
        if not self.prices:
            return
        reads = reads_of(value.type, joint.domains[0], joint.index[0], targets, read, self.machine)
        if reads.moves:
            self.move(op, key, draft, value, scope, reads)

    def draft(self, local: Sequence[int], joint: Joint) -> tuple[tuple[tuple[int, ...], int], _Draft]:
        """The table of some classes under some joint strategies."""
        key = (tuple(local), id(joint))
        draft = self.drafts.get(key)
        if draft is None:
            draft = self.drafts[key] = _Draft(joint.strategies, np.zeros(len(joint.strategies)))
            self.room -= len(joint.strategies)
            if self.room < 0:
                raise TooLarge
        return key, draft

    def joint(self, classes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], Joint]:
        """The joint strategies of some values by the classes of their dimensions: no axis twice in a value."""
        if (joint := self.joints.get(classes)) is not None:
            return joint
        local = tuple(dict.fromkeys(c for each in classes for c in each))
        numbers = {c: i for i, c in enumerate(local)}
        shape = tuple(tuple(numbers[c] for c in each) for each in classes)
        domains = tuple(self.space.strategies[c] for c in local)
        rows = None if self.among is None else np.unique(self.among[:, local], axis=0)
        return self.joints.setdefault(classes, (local, self.op_tables.joint(shape, domains, self.room, rows)))

    # ------------------------------------------------------------------ result

    def merged_moves(self) -> Array:
        """Joins the moves that the same entries need, such as the moves of layers that are alike; returns the costs of what is left."""
        drafts = self.drafts.values()
        *starts, total = itertools.accumulate((len(draft.costs) for draft in drafts), initial=0)
        columns = [
            (column * total + np.arange(start, start + len(column)))[column >= 0] for start, d in zip(starts, drafts) for column in d.moves
        ]
        keys = np.unique(np.concatenate([np.zeros(0, np.int64), *columns]))
        bounds = np.searchsorted(keys, np.arange(len(self.move_costs) + 1) * total).tolist()
        numbers: dict[bytes, int] = {}
        merged = np.array([numbers.setdefault((keys[a:b] % total).tobytes(), len(numbers)) for a, b in itertools.pairwise(bounds)] + [-1])
        for draft in drafts:
            draft.moves = [merged[column] for column in draft.moves]
        return np.bincount(merged[:-1], self.move_costs, len(numbers))

    def model(self, feeding: Feeding) -> Model:
        """The problem, in which each value that is fed has the price of its piece."""
        space, tables, constant = self.space, list[Table](), self.op_tables.manual_seconds
        costs = self.merged_moves()
        values: dict[Value | int, int] = {}
        layouts: dict[int, tuple[Layout, ...]] = {}
        needed: dict[int, None] = {}
        for key, draft in self.drafts.items():
            table = self.table(key[0], draft)
            if table.classes:
                tables.append(table)
            else:
                constant += float(draft.costs[0])
                needed.update(dict.fromkeys(int(m) for m in table.moves[0] if m >= 0))
        # A move that no choice spares is paid once, whoever needs it besides.
        constant += float(sum(costs[m] for m in needed))
        costs[list(needed)] = 0.0
        main = self.program.main
        fed: set[Value | int] = {*(main.arguments[n] for n in feeding.arguments), *feeding.results}
        second, feeding_weights, least = self.machine.hardware.host_bandwidth or math.inf, dict[int, Array](), 0.0
        for value, type_ in (*((a, a.type) for a in main.arguments), *enumerate(main.result_types)):
            local, joint = self.joint((space.classes[value],))
            domain = joint.domains[0]
            bytes_ = np.array([piece_bytes(type_, math.prod(local_shape(type_.shape, layout, self.mesh))) for layout in domain])
            seconds = bytes_[joint.index[0]] / second * (value in fed)
            table = self.table(local, _Draft(joint.strategies, EXPOSED * seconds))
            if table.classes and type_.rank:
                feeding_weights |= {len(tables): seconds} if value in fed else {}
                values[value] = len(tables)
                layouts[len(tables)] = tuple(joint.domains[0][i] for i in joint.index[0])
                tables.append(table)
            else:
                constant += EXPOSED * float(seconds[0])
                least -= float(seconds[0])
        sizes = tuple(len(space.strategies[c]) for c in space.free)
        problem = Problem(sizes, tuple(tables), costs)
        row = Limit(tuple(feeding_weights), tuple(feeding_weights.values()), least)
        return Model(space, space.free, problem, constant, values, layouts, row)

    def table(self, local: Sequence[int], draft: _Draft) -> Table:
        """A draft as a table of variables."""
        free = [i for i, c in enumerate(local) if c in self.variables]
        moves = _stacked(draft.moves, len(draft.costs))
        variables = tuple(self.variables[local[i]] for i in free)
        return Table(variables, draft.strategies[:, free], draft.costs, moves, np.zeros((len(draft.costs), 0)))


def _stacked(columns: Sequence[Array], height: int) -> Array:
    """Distinct columns side by side."""
    distinct = {column.tobytes(): column for column in columns}
    return np.array(list(distinct.values()), np.int64).reshape(len(distinct), height).T

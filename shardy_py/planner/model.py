"""The problem of a program: a table of prices for every op, and a move for every layout in which a value is read.

Prices are those of `partition/tables`, of which a plan's `cost_analysis` is the sum; nothing here has a formula of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import numpy as np

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.ir import Block, Op, Value
from shardy_py.ir.types import Type
from shardy_py.partition.layouts import Layout, layout_of, local_shape, parts
from shardy_py.partition.op import CHEAP
from shardy_py.partition.policies import FORWARDING
from shardy_py.partition.price import piece_bytes
from shardy_py.passes.dataflow import CASE, MANUAL_COMPUTATION, NAMED_COMPUTATION, WHILE
from shardy_py.plan.cost_analysis import EXPOSED
from shardy_py.plan.feeding import NOTHING, Feeding
from shardy_py.plan.progress import report
from shardy_py.plan.trips import Trips, trip_count
from shardy_py.planner.op_tables import Joint, OpTables, Reads, Results, TooLarge, costly, reduced_shares, results_of
from shardy_py.planner.problem import Limit, Problem, Table, cost, entries, weight
from shardy_py.planner.space import HANDING_ON, Space
from shardy_py.rules.traits import CONSTRAINTS

Array = Any


TIE = 1e-6
"""The part of a lower bound of the step by which an argument or result that lies whole is dearer than one that is cut to nothing.

Solutions are full of plans of equal cost, since slicing is free; of these the one is taken whose arguments take the least memory, then
are cut along their first dimensions, and whose values lie where they are used. Much less is lost in the solver's tolerance."""

LESS = 1e-4
"""The part of a step by which a plan that is fed for less time has to be shorter to be searched for."""

DIMENSION_TIE = 0.2
"""The part of `TIE` for each dimension in front of one of an argument that is cut."""

PLACE_TIE = 0.05
"""The part of `TIE` for each value that an op reads or makes otherwise than it lies."""


class CountedScope(Trips):
    """A scope of `plan/trips` in a program that has not been partitioned, with the executions that work is counted with."""

    def __init__(self, trips: int | None, runs: int, changing: set[Value] | None, around: Self | None = None) -> None:
        super().__init__(trips, changing, around)
        self.runs = runs


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The seconds of a branch's ops, per entry of tables and constant; what is sent counts in every branch, and is in the problem."""

    tables: Mapping[int, Array]
    constant: float
    conds: Conds

    def seconds(self, chosen: Sequence[int]) -> float:
        """The seconds of the branch."""
        own = sum(float(costs[chosen[table]]) for table, costs in self.tables.items())
        return self.constant + own + sum(costliest(branches, chosen).seconds(chosen) for branches in self.conds)


Conds = tuple[tuple[Branch, ...], ...]


def costliest(branches: Sequence[Branch], chosen: Sequence[int]) -> Branch:
    """The branch that takes longest, the first of equals."""
    return max(branches, key=lambda branch: branch.seconds(chosen))


def counted(conds: Conds, chosen: Sequence[int]) -> Iterator[Branch]:
    """The costliest branch of every cond under an assignment, nested conds included."""
    for branches in conds:
        branch = costliest(branches, chosen)
        yield branch
        yield from counted(branch.conds, chosen)


def with_branches(problem: Problem, branches: Sequence[Branch]) -> Problem:
    """A problem with the seconds of some branches added to those of its tables."""
    if not branches:
        return problem
    costs = [table.costs for table in problem.tables]
    for branch in branches:
        for table, seconds in branch.tables.items():
            costs[table] = costs[table] + seconds
    return replace(problem, tables=tuple(replace(table, costs=each) for table, each in zip(problem.tables, costs)))


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Layouts in which an op reads or makes a value; -1 where it reads the value's own."""

    table: int
    own: Array
    targets: Sequence[Layout]
    read: Array


@dataclass(eq=False)
class Model:
    """The problem of a program.

    Attributes:
        unbranched: The problem without the ops of branches of conds; its classes are numbers in `variables`.
        unbranched_constant: Seconds that no choice changes, without those of branches.
    """

    space: Space
    variables: tuple[int, ...]
    unbranched: Problem
    unbranched_constant: float
    conds: Conds
    counted: tuple[Branch, ...]
    values: dict[Value | int, int]
    layouts: dict[int, tuple[Layout, ...]]
    reads: dict[tuple[Op, Value], Read]
    makes: dict[Value, Read]
    feeding: Limit

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem with one branch of each cond, so that no assignment costs more than its plan."""
        return with_branches(self.unbranched, self.counted)

    @property
    def constant(self) -> float:
        """Seconds that no choice changes."""
        return self.unbranched_constant + sum(branch.constant for branch in self.counted)

    def seconds(self, chosen: Sequence[int]) -> float:
        """The seconds of a call of an assignment: of each cond the branch counts that then takes longest."""
        return self.counting(chosen).problem_seconds(chosen)

    def problem_seconds(self, chosen: Sequence[int]) -> float:
        """The seconds of an assignment, of which the problem has all unless what is fed takes longer."""
        feeding = weight(self.feeding, entries(self.unbranched, chosen)) - self.feeding.limit
        return self.fed_seconds(self.cost_seconds(chosen), feeding)

    def cost_seconds(self, chosen: Sequence[int]) -> float:
        """The cost of an assignment, with the part that no choice changes."""
        return cost(self.problem, chosen) + self.constant

    def fed_seconds(self, seconds: float, feeding: float | None = None) -> float:
        """The seconds of a step by those of the problem, which has a part of feeding, and all of feeding; by default the least there is."""
        if feeding is None:
            feeding = sum(float(weights.min()) for weights in self.feeding.weights) - self.feeding.limit
        return max(seconds, EXPOSED * seconds + (1 - EXPOSED**2) * feeding)

    def fed_within(self, most: float, least: float) -> Limit:
        """The limit of all plans that take less than some seconds, where the problem takes at least some."""
        return replace(self.feeding, limit=((1 - LESS) * most - EXPOSED * least) / (1 - EXPOSED**2) + self.feeding.limit)

    def counting(self, chosen: Sequence[int]) -> Model:
        """The model whose problem has the branches that take longest under an assignment; itself where it has."""
        if not self.conds:
            return self
        branches = tuple(counted(self.conds, entries(self.unbranched, chosen)))
        return self if branches == self.counted else replace(self, counted=branches)

    def assignment(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Per class of the space, the number of its strategy."""
        assignment = [0] * len(self.space.strategies)
        for variable, strategy in zip(self.variables, chosen, strict=True):
            assignment[variable] = strategy
        return tuple(assignment)


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """A move of each entry of a table; `numbers` is -1 between layouts without one."""

    key: object
    numbers: Array
    own: Array
    other: Array

    def renumbered(self, numbers: Array) -> Array:
        """The new number of the move of each entry; -1, which indexes the last of `numbers`, where there is none."""
        return numbers[self.numbers][self.own, self.other]


@dataclass(eq=False)
class _Draft:
    """A table that is being added up; `at_hand` are the moves that an entry makes unnecessary."""

    strategies: Array
    costs: Array
    ties: Array
    moves: list[_Column] = field(default_factory=list["_Column"])
    at_hand: list[_Column] = field(default_factory=list["_Column"])


@dataclass(eq=False)
class _Branch:
    """A branch of a cond that is being added up."""

    seconds: dict[tuple[tuple[int, ...], int], Array] = field(default_factory=dict[tuple[tuple[int, ...], int], Array])
    conds: list[list[_Branch]] = field(default_factory=list["list[_Branch]"])

    def finished(self, places: Mapping[tuple[tuple[int, ...], int], int]) -> Branch:
        """The branch."""
        tables = {places[key]: seconds for key, seconds in self.seconds.items() if key in places}
        constant = sum(float(seconds[0]) for key, seconds in self.seconds.items() if key not in places)
        return Branch(tables, constant, tuple(tuple(each.finished(places) for each in branches) for branches in self.conds))


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
        self.branch: _Branch | None = None
        self.conds: list[list[_Branch]] = []
        self.reduced_shares = reduced_shares(self.program)
        self.variables: dict[int, int] = {c: i for i, c in enumerate(space.free)}
        self.origin: dict[Value, Value] = {}
        self.home: dict[Value, CountedScope] = {}
        self.drafts: dict[tuple[tuple[int, ...], int], _Draft] = {}
        self.moves: dict[tuple[Value, CountedScope, Layout, Layout], int] = {}
        self.move_costs: list[float] = []
        self.reads: list[tuple[Op, Value, tuple[tuple[int, ...], int], Reads]] = []
        self.results_at_hand: list[tuple[tuple[tuple[int, ...], int], Value, Results]] = []

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
        elif name == NAMED_COMPUTATION:
            (body,) = op.regions
            self.forward(op, op.operands, body.arguments, scope)
            self.block(body, scope)
            self.forward(body.terminator, body.terminator.operands, op.results, scope)
        elif name == MANUAL_COMPUTATION:
            for value, sharding in zip(op.operands, op.attributes["in_shardings"]):
                self.to_sharding(op, value, sharding, scope)
            self.results(op, scope)
        elif name in FORWARDING:  # what is behind a barrier is a value of its own, and is moved again
            for operand, result in zip(op.operands, op.results):
                self.to_layout_of(op, operand, result, result.type, scope)
                if name in CONSTRAINTS:
                    self.operand_at_hand(operand, result)
            self.results(op, scope)
        elif name in HANDING_ON:
            self.forward(op, op.operands, op.results, scope)
        elif not op.regions and (op.results or op in self.op_tables.counted):
            self.results(op, scope)
            self.plain(op, scope)

    def results(self, op: Op, scope: CountedScope) -> None:
        """Notes where the results of an op are at home, and whether they change."""
        for result in op.results:
            self.home[result] = scope
        scope.spread(op, self.origin)

    def forward(self, op: Op, values: Sequence[Value], targets: Sequence[Value], scope: CountedScope) -> None:
        """Forwarded values: the same value if layouts are equal by construction, else one to move to."""
        for value, target in zip(values, targets):
            if self.space.classes[value] == self.space.classes[target]:
                self.origin[target] = self.origin.get(value, value)
            else:
                self.to_layout_of(op, value, target, target.type, scope)
                self.home[target] = scope
                for around in scope.outward():
                    if around.changing and self.origin.get(value, value) in around.changing:
                        around.changing.add(target)
                        break

    def loop(self, op: Op, scope: CountedScope) -> None:
        """A loop: operands are moved once, results of the body on every trip."""
        count = trip_count(op)
        ends = op.regions[1].terminator.operands
        varies = [ends[i] is not a for i, a in enumerate(op.regions[1].arguments)]
        for operand, result in zip(op.operands, op.results):
            self.to_layout_of(op, operand, result, result.type, scope)
        for region, more in zip(op.regions, (1, 0)):  # the condition runs once more than the body
            trips = None if count is None or scope.trips is None else scope.trips * (count + more)
            runs = scope.runs * ((1 if count is None else count) + more) if count != 0 else 0
            changing = {a for a, changes in zip(region.arguments, varies) if changes}
            inner = CountedScope(trips, runs, changing, scope)
            for argument, operand, changes in zip(region.arguments, op.operands, varies):
                self.home[argument] = inner
                if not changes and self.space.classes[argument] == self.space.classes[operand]:
                    self.origin[argument] = self.origin.get(operand, operand)
            self.block(region, inner)
            if region is op.regions[1]:
                for end, result, changes in zip(ends, op.results, varies):
                    if changes:
                        self.to_layout_of(region.terminator, end, result, result.type, inner)
        self.results(op, scope)

    def branches(self, op: Op, scope: CountedScope) -> None:
        """The branches of a cond."""
        around, branches = self.branch, list[_Branch]()
        (self.conds if around is None else around.conds).append(branches)
        for region in op.regions:
            inner = CountedScope(scope.trips, scope.runs, None if scope.changing is None else set(), scope)
            self.branch = _Branch()
            branches.append(self.branch)
            self.block(region, inner)
            for end, result in zip(region.terminator.operands, op.results):
                self.to_layout_of(region.terminator, end, result, result.type, inner)
        self.branch = around
        self.results(op, scope)

    # ------------------------------------------------------------------ tables

    def plain(self, op: Op, scope: CountedScope) -> None:
        """The prices of an op, and the moves of its operands."""
        is_counted = op in self.op_tables.counted
        if op.name in CHEAP and not is_counted:
            return
        local, joint = self.joint([self.space.classes[v] for v in (*op.operands, *op.results)])
        key, draft = self.draft(local, joint)
        if not self.prices:
            return
        priced = self.op_tables.priced(op, lambda value: self.origin.get(value, value), joint)
        price = priced.table
        once = scope.hoist_scope(op.results[0]) if op.results else scope
        sent = price.communication_seconds
        deferred = (1 - self.reduced_shares.get(op, 1.0)) * price.reduction_seconds
        costs = (sent - deferred) * (once.trips or 1) + self.handed_out(op) * (scope.trips or 1)  # a callback runs on every trip
        if is_counted:
            seconds = (price.seconds - sent) * scope.runs
            if self.branch is None:
                costs = costs + seconds
            else:
                self.branch.seconds[key] = self.branch.seconds.get(key, 0.0) + seconds
        draft.costs = draft.costs + costs
        draft.ties = draft.ties + PLACE_TIE * priced.misplaced
        for value, reads in zip(op.operands, priced.reads):
            if reads is not None and reads.moves:
                self.move(op, key, draft, value, scope, reads)
        self.results_at_hand.extend((key, value, results) for value, results in zip(op.results, priced.results))

    def handed_out(self, op: Op) -> float:
        """Seconds to broadcast results of an op on one device, by a sum with zeros of the others."""
        total = 0.0
        for result in op.results:
            if result.uses and result.sharding is not None and result.sharding.mesh_in(self.program.meshes).is_maximal:
                whole: Layout = ((),) * result.type.rank
                axes = tuple(part for axis in self.mesh.axes if axis.size > 1 for part in parts(AxisRef(axis.name), self.mesh))
                total += self.machine.settle(result.type, whole, whole, axes).seconds
        return total

    def move(self, op: Op, key: tuple[tuple[int, ...], int], draft: _Draft, value: Value, scope: CountedScope, reads: Reads) -> None:
        """A column of moves of an operand."""
        origin = self.origin.get(value, value)
        once = (scope.hoist_scope(origin).trips or 1) * 1.0
        home = self.home[origin]
        place = scope.place(lambda outer: outer is home)
        if op.name == "stablehlo.dynamic_slice":
            place = scope  # loops of a region slice what they scan, and each loop gathers its slices
        numbers = np.full((len(reads.domain), len(reads.targets)), -1)
        for a, b, seconds in reads.moves:
            move = (origin, place, reads.domain[a], reads.targets[b])
            number = self.moves.get(move)
            if number is None:
                number = self.moves[move] = len(self.move_costs)
                self.move_costs.append(seconds * once)
            numbers[a, b] = number
        draft.moves.append(_Column(reads.key, numbers, reads.own, reads.read))
        self.reads.append((op, origin, key, reads))

    def to_layout_of(self, op: Op, value: Value, target: Value | int, type_: Type, scope: CountedScope) -> None:
        """Moves a value to the layout of another."""
        own, other = self.space.classes[value], self.space.classes[target]
        if own == other or not type_.rank:
            return
        local, joint = self.joint([own, other])
        self.bring(op, value, scope, local, joint, joint.candidates.domains[1], joint.candidates.index[1])

    def operand_at_hand(self, operand: Value, result: Value) -> None:
        """Notes that a value needs no move back to the layout from which a constraint has brought it."""
        if result.type.rank:
            local, joint = self.joint([self.space.classes[operand], self.space.classes[result]])
            (key, _), candidates = self.draft(local, joint), joint.candidates
            (source, target), (source_numbers, target_numbers) = candidates.domains, candidates.index
            self.results_at_hand.append((key, result, results_of(id(joint), target, target_numbers, source, source_numbers)))

    def to_sharding(self, op: Op, value: Value, sharding: TensorSharding, scope: CountedScope) -> None:
        """Moves a value to a sharding."""
        if value.type.rank:
            local, joint = self.joint([self.space.classes[value]])
            target = layout_of(sharding, value.type.rank, self.mesh)
            self.bring(op, value, scope, local, joint, (target,), np.zeros(len(joint.strategies), int))

    def bring(
        self, op: Op, value: Value, scope: CountedScope, local: Sequence[int], joint: Joint, targets: Sequence[Layout], read: Array
    ) -> None:
        """Moves of a value from its layout to others."""
        origin = self.origin.get(value, value)
        maker = origin.defining_op
        if maker is not None and maker.name in CHEAP:
            return
        key, draft = self.draft(local, joint)
        if not self.prices:
            return
        domain, own = joint.candidates.domains[0], joint.candidates.index[0]
        seconds = np.full((len(domain), len(targets)), np.nan)
        for a, b in set(zip(own.tolist(), read.tolist())):  # of templates few pairs are needed, each of which may be a search
            seconds[a, b] = self.machine.reshard(value.type, domain[a], targets[b]).seconds
        reads = Reads((id(joint), tuple(targets)), domain, own, targets, read, costly(seconds))
        if reads.moves:
            self.move(op, key, draft, value, scope, reads)

    def draft(self, local: Sequence[int], joint: Joint) -> tuple[tuple[tuple[int, ...], int], _Draft]:
        """The table of some classes under some joint strategies."""
        key = (tuple(local), id(joint))
        draft = self.drafts.get(key)
        if draft is None:
            zeros = np.zeros(len(joint.strategies))
            draft = self.drafts[key] = _Draft(joint.strategies, zeros, zeros)
            self.room -= len(zeros)
            if self.room < 0:
                raise TooLarge
        return key, draft

    def joint(self, classes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], Joint]:
        """The joint strategies of some values by the classes of their dimensions: no axis twice in a value."""
        local = tuple(dict.fromkeys(c for each in classes for c in each))
        numbers = {c: i for i, c in enumerate(local)}
        shape = tuple(tuple(numbers[c] for c in each) for each in classes)
        domains = tuple(self.space.strategies[c] for c in local)
        rows = None if self.among is None else np.unique(self.among[:, local], axis=0)
        return local, self.op_tables.joint(shape, domains, self.room, rows)

    # ------------------------------------------------------------------ result

    def note_results_at_hand(self) -> None:
        """Marks moves that readers save, since the op makes a result in the layout they read."""
        moved = {value for value, *_ in self.moves}
        for key, value, results in self.results_at_hand:
            if value not in moved:
                continue
            numbers, home = np.full((len(results.domain), len(results.targets)), -1), self.home[value]
            for a, b, source, target in results.moves:
                numbers[a, b] = self.moves.get((value, home, source, target), -1)
            if (numbers >= 0).any():
                self.drafts[key].at_hand.append(_Column(results.key, numbers, results.own, results.makes))

    def merge_moves(self) -> tuple[Array, Array]:
        """Merges moves that the same entries need or make unnecessary: per move its new number, and the new costs."""
        sums = np.zeros(len(self.move_costs), np.uint64)  # of a hash of each use, so that equal sets of uses have equal sums
        uses: dict[object, int] = {}
        seen: set[tuple[int, bytes]] = set()
        for number, draft in enumerate(self.drafts.values()):
            for kind, columns in enumerate((draft.moves, draft.at_hand)):
                for column in columns:
                    use = uses.setdefault((number, kind, column.key), len(uses))
                    if (use, column.numbers.tobytes()) not in seen:
                        seen.add((use, column.numbers.tobytes()))
                        rows, columns_ = np.nonzero(column.numbers >= 0)
                        np.add.at(sums, column.numbers[rows, columns_], _hashed(use, rows, columns_))
        _, first, of_sum = np.unique(sums, return_index=True, return_inverse=True)
        numbers = np.argsort(np.argsort(first))[of_sum.reshape(-1)]
        return numbers, np.bincount(numbers, self.move_costs, len(first))

    def model(self, feeding: Feeding) -> Model:
        """The problem, in which each value that is fed has the price of its piece."""
        space, tables, constant = self.space, list[Table](), self.op_tables.manual_seconds
        self.note_results_at_hand()
        numbers, costs = self.merge_moves()
        numbers = np.append(numbers, -1)
        values: dict[Value | int, int] = {}
        layouts: dict[int, tuple[Layout, ...]] = {}
        places: dict[tuple[tuple[int, ...], int], int] = {}
        needed: dict[int, None] = {}
        for key, draft in self.drafts.items():
            table = self.table(key[0], draft, numbers)
            if table.classes:
                places[key] = len(tables)
                tables.append(table)
            else:
                constant += float(draft.costs[0])
                needed.update(dict.fromkeys(int(m) for m in table.moves[0] if m >= 0))
                costs[[int(m) for m in table.at_hand[0] if m >= 0]] = 0.0
        # A move that no choice spares is paid once, whoever needs it besides.
        constant += float(sum(costs[m] for m in needed))
        costs[list(needed)] = 0.0
        main = self.program.main
        fed: set[Value | int] = {*(main.arguments[n] for n in feeding.arguments), *feeding.results}
        second, feeding_weights, least = self.machine.hardware.host_bandwidth or math.inf, dict[int, Array](), 0.0
        for value, type_ in (*((a, a.type) for a in main.arguments), *enumerate(main.result_types)):
            local, joint = self.joint([space.classes[value]])
            domain, size = joint.candidates.domains[0], max(math.prod(type_.shape), 1)
            elements = np.array([math.prod(local_shape(type_.shape, layout, self.mesh)) for layout in domain])
            bytes_: Array = piece_bytes(type_, cast("Any", elements))
            seconds = bytes_[joint.candidates.index[0]] / second * (value in fed)
            cut_dims = np.array([sum(dim for dim, axes in enumerate(layout) if axes) for layout in domain], float)
            ties = (elements / size + DIMENSION_TIE * cut_dims)[joint.candidates.index[0]]
            table = self.table(local, _Draft(joint.strategies, EXPOSED * seconds, ties), numbers)
            if table.classes and type_.rank:
                feeding_weights |= {len(tables): seconds} if value in fed else {}
                values[value] = len(tables)
                layouts[len(tables)] = tuple(joint.candidates.domains[0][i] for i in joint.candidates.index[0])
                tables.append(table)
            else:
                constant += EXPOSED * float(seconds[0])
                least -= float(seconds[0])
        unit = TIE * (constant + sum(float(table.costs.min()) for table in tables if len(table.costs)))
        tables = [replace(table, ties=table.ties * unit) for table in tables]
        sizes = tuple(len(space.strategies[c]) for c in space.free)
        problem = Problem(sizes, tuple(tables), costs)
        reads = {(op, value): _read(places[key], each) for op, value, key, each in self.reads if key in places}
        makes = {
            value: Read(places[key], results.own, results.targets, results.makes)
            for key, value, results in self.results_at_hand
            if key in places and value.defining_op is not None and value.defining_op.name not in CONSTRAINTS
        }
        conds = tuple(tuple(branch.finished(places) for branch in branches) for branches in self.conds)
        row = Limit(tuple(feeding_weights), tuple(feeding_weights.values()), least)
        model = Model(space, space.free, problem, constant, conds, (), values, layouts, reads, makes, row)
        return model.counting([0] * len(sizes))

    def table(self, local: Sequence[int], draft: _Draft, numbers: Array) -> Table:
        """A draft as a table of variables."""
        free = [i for i, c in enumerate(local) if c in self.variables]
        moves, at_hand = (_stacked([c.renumbered(numbers) for c in columns], len(draft.costs)) for columns in (draft.moves, draft.at_hand))
        variables = tuple(self.variables[local[i]] for i in free)
        return Table(variables, draft.strategies[:, free], draft.costs, moves, draft.ties, at_hand)


def _hashed(use: int, rows: Array, columns: Array) -> Array:
    """Numbers of 64 bits that are as good as random, the same for equal arguments."""
    bits = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + columns.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    bits += np.uint64(use * 0x165667B19E3779F9 & 0xFFFFFFFFFFFFFFFF)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def _stacked(columns: Sequence[Array], height: int) -> Array:
    """Distinct columns side by side."""
    distinct = {column.tobytes(): column for column in columns}
    return np.array(list(distinct.values()), np.int64).reshape(len(distinct), height).T


def _read(table: int, reads: Reads) -> Read:
    """The entries in which an op reads a value in another layout than its own."""
    targets = {layout: n for n, layout in enumerate(reads.targets)}
    own = np.array([targets.get(layout, -1) for layout in reads.domain])
    return Read(table, reads.own, reads.targets, np.where(own[reads.own] == reads.read, -1, reads.read))

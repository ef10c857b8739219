"""Searches for the shardings of a program: model, solver, and the judge of finished plans."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardy_py.dialect import TensorSharding
from shardy_py.errors import UserError
from shardy_py.ir import Program, Value
from shardy_py.partition.price import Machine
from shardy_py.passes.collection import no_collection
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.memory.analysis import lifetimes
from shardy_py.plan.progress import report
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import CHOSEN, Search
from shardy_py.planner.assignment import least as least_of
from shardy_py.planner.assignment import solve
from shardy_py.planner.errors import infeasible, least_bytes
from shardy_py.planner.evaluation import Evaluation, cut, descend
from shardy_py.planner.inlined import inlined
from shardy_py.planner.judge import Candidate, objective, peak_of, preferred
from shardy_py.planner.memory import bytes_of, fixed_bytes, peak_bytes
from shardy_py.planner.model import LESS, Model, model_of
from shardy_py.planner.op_tables import OpTables, TooLarge
from shardy_py.planner.options import Planner
from shardy_py.planner.problem import Limit, Problem, Solution, limited, weight
from shardy_py.planner.propagated import Outcome, Seeds, Trial, Trials
from shardy_py.planner.space import Annotations, Resolution, Space, assign, groups_of, resolutions, shardings_of, spaces_of, transferred
from shardy_py.planner.templates import (
    Neighbours,
    Template,
    UserTemplate,
    batch_of,
    copies_of,
    followed,
    in_space,
    neighbours_of,
    templates,
)

ROUNDS = 6
"""Searches under a budget, each with the limits of the fullest steps of all plans before."""

MARGIN = 0.01
"""The part of the budget that limits of temporaries leave free: other plans have their fullest moments at other steps."""

ENTRIES = 40_000
"""Entries of a model per second of the time limit: where there would be more, dimensions are cut as in the best templates."""

JUDGED, KEPT = 16, 3
"""Templates that are finished before there is a model, at most, and those of the best whose sets of axes the model has."""

FINISHED_OPS = 500
"""Ops of templates that are finished then, per second of the time limit: work is counted, so that all machines finish the same."""

ROUND_SHARE = 0.5
"""The part of the time that is left for a search whose plan may be over the budget; the rest is for the next one."""

TRIED = 4
"""Templates that are finished whatever the time where no plan fits, those that take least first."""

PEAKS = 8
"""Steps of a plan that become limits at once."""

STARTS = 1
"""Templates to start from, the cheapest: the linear program needs none, but a good start ends it early, and is the plan without time."""

REACH = 0.2
"""How much dearer than the plan, by the model, a template may be to be run as a region: of experts models and regions differ by so much."""

LARGE = 50_000
"""Entries of a problem that the linear program may not end in time."""

SOLVER_GAP = 0.1
"""The part of the user's gap that the solver may leave."""

Collect = Callable[[Search | None], PlanRecord]
"""Makes the plan of the program's shardings as they are."""

ASSIGNMENT_SHARE = 0.5
"""The part of the time in which whole assignments are searched where the plan is one that propagation gives."""

Propagate = Callable[[Sequence[TensorSharding], Mapping[int, TensorSharding]], PlanRecord]
"""Makes the plan that propagation gives from shardings of all arguments, and of some results by their numbers."""

FAR = 2.0
"""How many times the cheapest plan another may take, by the model, so that the model says how it runs where that is best."""

NEAR = 1.02
"""How many times the cheapest plan another may take, by the model, and still be the answer: of it both regions are made."""

TRUST = 0.05
"""The part by which the region of any other plan may take more than the model says without another being made, as the model says."""

Region = Callable[[Search | None, float], PlanRecord]
"""Makes the plan of the program's shardings as a region of local arrays: the first one that takes at most so many seconds, or the best."""

Replan = Callable[[Resolution, Sequence[int], float], PlanRecord]
"""Makes the plan of an assignment of a space of such a resolution: per class, the number of its strategy; seconds as of `Region`."""


@dataclass(eq=False)
class Searcher:
    """A search in progress.

    Attributes:
        replan: Makes the plan of an assignment on a program of its own, for an alternative.
        region: None under `lowering="jit"`.
        propagate: Makes plans in which values inside follow by propagation; None where they are sharded too.
        finished: All plans that were finished, of which the cheapest that fits is the result.
    """

    base: PlanRecord
    annotations: Annotations
    planner: Planner
    collect: Collect
    replan: Replan
    seeds: Callable[[PlanRecord], Seeds]
    mesh_name: str
    began: float
    user_templates: tuple[UserTemplate, ...] = ()
    timings: dict[str, float] = field(default_factory=dict[str, float])
    region: Region | None = None
    propagate: Propagate | None = None
    outcomes: tuple[Outcome, ...] = ()
    share: float = 1.0
    is_late: bool = False
    finished: list[Candidate] = field(default_factory=list[Candidate])
    finishing: float = 0.0
    judgments: list[tuple[Space, tuple[int, ...], Candidate]] = field(default_factory=list[tuple[Space, tuple[int, ...], Candidate]])

    # ------------------------------------------------------------------ the whole search

    def run(self) -> tuple[Candidate, float]:
        """The best plan in the largest space that there is time for, and a lower bound of it. Raises PlannerInfeasible if none fits."""
        most = ENTRIES * max(self.planner.time_limit_s, 1.0)
        with no_collection():
            for stage in self.stages():
                try:
                    self.prepare(stage, LARGE if stage.layers else most if stage.mixes else None)
                except TooLarge:
                    continue
                return self.solved()
        raise AssertionError("the smallest space is searched whatever its size")

    def stages(self) -> Iterator[Resolution]:
        """Spaces, the largest first; small ones know what the best templates, or all of them, do."""
        whole = resolutions(self.base.mesh)
        yield from whole
        op_tables = self.enter(whole[-1])
        report("finishing templates")
        used = [set(self.cuts(chosen)) for chosen in self.judged(op_tables)[:KEPT]]
        for count in range(len(used), 0, -1):
            cuts = set().union(*used[:count])
            yield Resolution(tuple(names for names in whole[-1].cuts if frozenset(names) in cuts or not names), layers=False)
        yield replace(whole[-1], mixes=False)

    def judged(self, op_tables: OpTables) -> list[tuple[int, ...]]:
        """Assignments of the templates, those that fit first, the cheapest first.

        All are priced by a model that knows nothing else. The cheapest and the smallest in turn are finished, until enough fit.
        """
        space, names, arguments = self.space, self.assignments, self.program.main.arguments
        model = model_of(op_tables, space, among=np.array(list(names)))
        seconds = {chosen: model.seconds([chosen[c] for c in model.variables]) for chosen in names}
        bytes_ = {chosen: sum(bytes_of(a.type, space.layout(a, chosen), space.mesh) for a in arguments) for chosen in names}
        order = sorted(names, key=lambda chosen: (not self.planner.fits(bytes_[chosen]), seconds[chosen]))
        smallest = sorted(order, key=lambda chosen: bytes_[chosen])
        figures: dict[tuple[int, ...], tuple[bool, float]] = {}
        most = min(JUDGED, math.ceil(FINISHED_OPS * self.planner.time_limit_s / op_tables.count))
        for chosen in _in_turn(order, smallest):
            if len(figures) == most or sum(not is_over for is_over, _ in figures.values()) == KEPT:
                break
            candidate = self.finish(names[chosen], (), chosen, seconds[chosen])
            self.judgments.append((space, chosen, candidate))
            is_over = not self.planner.fits(candidate.peak)
            figures[chosen] = is_over, float(candidate.peak) if is_over else candidate.seconds
        return sorted(order, key=lambda chosen: figures.get(chosen, (True, math.inf)))

    def cuts(self, chosen: Sequence[int]) -> Iterator[frozenset[str]]:
        """The sets of axes over which an assignment of all classes cuts dimensions."""
        return (frozenset(part.name for part in strategies[s]) for strategies, s in zip(self.space.strategies, chosen))

    def is_sharded(self, assignment: Sequence[int]) -> bool:
        """Whether an assignment cuts anything."""
        return any(self.cuts(self.model.assignment(assignment)))

    def solved(self) -> tuple[Candidate, float]:
        """The best plan of the current space, and the lower bound of the upper end of a step."""
        started = time.monotonic()
        self.share = 1.0 if self.propagate is None else ASSIGNMENT_SHARE
        best, bound = self.within_budget()
        self.share = 1.0
        best = self.cheapest(best, bound) if self.propagate is None else self.best_propagated(best, bound)
        self.timings["solve"] = time.monotonic() - started
        return best, bound

    def prepare(self, resolution: Resolution | None = None, most: float | None = None) -> None:
        """The space and the model; raises TooLarge if it has more than `most` entries."""
        started = time.monotonic()
        op_tables = self.enter(resolution)
        among = None if self.space.resolution.mixes else np.array(list(self.assignments))
        self.model: Model = model_of(op_tables, self.space, math.inf if most is None else most, among, self.base.feeding)
        for space, chosen, candidate in self.judgments:
            moved = transferred(chosen, (self.program, space), (self.program, self.space))
            if transferred(moved, (self.program, self.space), (self.program, space)) == chosen:
                self.finished.append(replace(candidate, assignment=tuple(moved[c] for c in self.model.variables)))
        self.timings["model"] = time.monotonic() - started

    def enter(self, resolution: Resolution | None) -> OpTables:
        """The space of a resolution, without a model."""
        self.program, self.copies, op_tables, spaces = self._parts
        self.space: Space = spaces(resolution)
        for of_space in ("templates", "own_templates", "neighbours", "fixed", "entries", "batch", "evaluation", "_assignments"):
            self.__dict__.pop(of_space, None)
        return op_tables

    @functools.cached_property
    def _parts(self) -> tuple[Program, Mapping[Value, Value], OpTables, Callable[[Resolution | None], Space]]:
        """The inlined program, its values by the plan's values, and the sources of models and of spaces."""
        machine = Machine(self.base.mesh, self.planner.machine, {**self.base.lattices, **(self.planner.links or {})})
        program, copies = inlined(self.base.program)
        spaces = spaces_of(program, self.base.mesh, self.annotations, groups_of(self.annotations, self.base.program, copies))
        return program, copies, OpTables(program, machine), spaces

    def freed(self, places: tuple[str, ...]) -> Searcher:
        """The same search without the constraints of some lines, on the same program and tables."""
        annotations = replace(self.annotations, freed=places)
        spaces = spaces_of(self.program, self.base.mesh, annotations, groups_of(annotations, self.base.program, self.copies))
        other = replace(self, annotations=annotations, timings={}, finished=[])
        other.__dict__["_parts"] = (*self._parts[:-1], spaces)
        return other

    @property
    def left(self) -> float:
        """Seconds that are left until the last plan has to be finished."""
        return max(0.0, self.began + self.share * self.planner.time_limit_s - self.finishing - time.monotonic())

    # ------------------------------------------------------------------ candidates

    def candidate(self, name: str, assignment: Sequence[int]) -> Candidate:
        """An assignment as a finished plan."""
        chosen = tuple(map(int, assignment))
        candidate = self.finish(name, chosen, self.model.assignment(chosen), self.model.seconds(chosen))
        self.finished.append(candidate)
        return candidate

    def finish(self, name: str, variables: tuple[int, ...], chosen: Sequence[int], predicted: float) -> Candidate:
        """An assignment of all classes as a finished plan; the model has it at `predicted` seconds."""
        started = time.monotonic()
        assign(self.base.program, self.space, shardings_of(self.space, chosen, self.mesh_name), self.copies)
        plan = replace(self.collect(CHOSEN), partitioner=None)
        rivals = (each for each in (*self.finished, *(judged for _, _, judged in self.judgments)) if self.planner.fits(each.peak))
        enough = _enough(predicted, min((each.seconds for each in rivals), default=math.inf))
        run = plan if self.region is None else self.region(CHOSEN, enough)
        candidate = Candidate(name, variables, plan, run, objective(run, self.planner), peak_of(run, self.planner))
        self.finishing = max(self.finishing, time.monotonic() - started)
        return candidate

    def shardings(self, trial: Trial) -> tuple[list[TensorSharding], dict[int, TensorSharding]]:
        """The shardings of all arguments, and of results by their numbers, that a plan follows from."""
        sharding = shardings_of(self.space, self.model.assignment(trial.assignment), self.mesh_name)
        handed_on = {result for _, result in self.annotations.alike}
        numbers = [n for n in range(len(self.program.main.result_types)) if trial.results or n in handed_on]
        return [sharding(argument) for argument in self.program.main.arguments], {n: sharding(n) for n in numbers}

    def propagated(self, trial: Trial) -> Candidate:
        """The plan that propagation gives from the arguments and results of an assignment."""
        assert self.propagate is not None
        run = self.propagate(*self.shardings(trial))
        plan = run if run.partitioner is None else replace(run, partitioner=None)
        return Candidate(trial.name, trial.assignment, plan, run, objective(run, self.planner), peak_of(run, self.planner), trial.results)

    def best_propagated(self, best: Candidate, bound: float) -> Candidate:
        """The best plan that propagation gives, next to an assignment and templates. Raises PlannerInfeasible if none fits."""
        started = time.monotonic()
        report("propagating")
        starts = [Trial("", best.assignment, True), Trial("", best.assignment)]
        starts += [Trial(template.name, tuple(map(int, self.start(template)))) for template in self.templates]
        enough = bound * (1 - self.planner.overlap) / (1 - self.planner.gap) if self.planner.gap < 1 else math.inf
        trials = Trials(self.model, self.program.main.arguments, self.outcome, enough, lambda: self.left > 0)
        outcome = trials.run(starts)
        self.is_late |= not self.left
        self.outcomes = tuple(trials.outcomes.values())
        candidate = self.propagated(outcome.trial)
        if outcome.over:
            raise infeasible(
                candidate.run,
                candidate.name,
                self.planner,
                self.least_bytes(),
                f"let values inside be constrained (constraints=True), {format_bytes(best.peak)}",
            )
        self.timings["propagate"] = time.monotonic() - started
        return candidate

    def plan_of(self, trial: Trial, cheapest: float = math.inf) -> PlanRecord:
        """The plan that runs an assignment, on a copy of the program, beside one that takes so many seconds."""
        if self.propagate is not None:
            return self.propagate(*self.shardings(trial))
        enough = _enough(self.model.seconds(trial.assignment), cheapest)
        return self.replan(self.space.resolution, self.model.assignment(trial.assignment), enough)

    def outcome(self, trial: Trial) -> Outcome:
        """The figures of the plan that propagation gives."""
        candidate = self.propagated(trial)
        return Outcome(trial, candidate.seconds, 0 if self.planner.budget is None else max(0, candidate.peak - self.planner.budget))

    def assign(self, chosen: Sequence[int]) -> None:
        """Sets the shardings of the program."""
        assign(self.base.program, self.space, shardings_of(self.space, self.model.assignment(chosen), self.mesh_name), self.copies)

    # ------------------------------------------------------------------ templates

    @functools.cached_property
    def templates(self) -> tuple[Template, ...]:
        """The built-in templates, and behind them those of the user's."""
        return (*templates(self.program, self.space, self.annotations, self.neighbours, self.batch), *self.own_templates)

    @functools.cached_property
    def _assignments(self) -> dict[object, tuple[int, ...]]:
        """Assignments of templates by name: as they follow, and as they are finished."""
        return {}

    @property
    def assignments(self) -> dict[tuple[int, ...], str]:
        """The names of the templates by their assignments of all classes."""
        names: dict[tuple[int, ...], str] = {}
        for template in self.templates:
            names.setdefault(self.followed(template), template.name)
        return names

    @functools.cached_property
    def own_templates(self) -> tuple[Template, ...]:
        """The user's templates, without those that a coarser space has no plans of; raises UserError if no space has."""
        paths = [value.path for value in self.base.inputs]
        finest = self.space.resolution == resolutions(self.base.mesh)[0]
        templates: list[Template] = []
        for template in self.user_templates:
            try:
                templates.append(in_space(template, self.program, self.space, paths, self.copies))
            except UserError:
                if finest:
                    raise
        return tuple(templates)

    @functools.cached_property
    def neighbours(self) -> Neighbours:
        """Per class, the classes that its strategies are propagated to."""
        return neighbours_of(self.program, self.space)

    def start(self, template: Template) -> list[int]:
        """The assignment of a template."""
        chosen = self.followed(template)
        return [chosen[c] for c in self.model.variables]

    def followed(self, template: Template) -> tuple[int, ...]:
        """The assignment of all classes in which arguments are sharded as in a template, and all else follows; data before parameters."""
        if (cached := self._assignments.get(template.name)) is not None:
            return cached
        arguments = self.program.main.arguments
        fed = self.batch
        data, every = ([c for argument in some for c in self.space.classes[argument]] for some in (fed, arguments))
        copies = () if template.carried is None else copies_of([a for a in arguments if a not in fed], self.space)
        order = [*data, *(template.carried or ())]
        chosen = followed(self.space, self.neighbours, template.strategies, order, copies, every, partly=template.partly)
        return self._assignments.setdefault(template.name, chosen)

    def start_of(self, template: Template) -> tuple[int, ...]:
        """The assignment of a template as it is finished: small data that lie whole are cut."""
        key = template.name, True
        if key not in self._assignments:
            self._assignments[key] = self.with_data_cut(self.evaluation, tuple(self.start(template)))
        return self._assignments[key]

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The costs of assignments without limits."""
        return Evaluation(self.model.problem)

    def with_data_cut(self, evaluation: Evaluation, assignment: tuple[int, ...]) -> tuple[int, ...]:
        """An assignment that cuts the arguments that are fed, and those that are a large part of all, to the extent that the gap allows."""
        arguments = self.program.main.arguments
        large = sum(argument.type.bytes for argument in arguments) / 100
        inputs = [a for n, a in enumerate(arguments) if n in self.base.feeding.arguments or a.type.bytes > large]
        return cut(self.model, evaluation, assignment, inputs, self.planner.gap)

    def cheapest(self, best: Candidate, bound: float) -> Candidate:
        """The cheapest of a plan and the templates that fit and are not much dearer by the model, each as it runs.

        The model prices ops one by one. A region also shares copies between readers and fuses otherwise, so that a template may
        run faster than a plan that is cheaper by the model. Beside a plan far from the bound, templates are finished as long as there
        is time; beside one that shards nothing, one that does is finished in any case.
        """
        done, model = {each.assignment for each in self.finished}, self.model
        starts = {start: template.name for template in reversed(self.templates) if (start := self.start_of(template)) not in done}
        order = [start for start in starts if weight(self.fixed, model.entries(start)) <= self.fixed.limit]
        order.sort(key=self.model.seconds)
        seconds, is_sharded = self.model.seconds(best.assignment), self.is_sharded(best.assignment)
        most = seconds * (1 + REACH) if bound >= (1 - REACH) * seconds else math.inf
        for start in order:
            shards_first = not is_sharded and self.is_sharded(start)
            if not self.left or (self.model.seconds(start) >= most and not shards_first):
                self.is_late |= not self.left
                continue
            is_sharded |= shards_first
            self.candidate(starts[start], start)
        return preferred([best, *(each for each in self.finished if self.planner.fits(each.peak))], self.planner)

    # ------------------------------------------------------------------ memory

    @functools.cached_property
    def fixed(self) -> Limit:
        """The limit of arguments and results."""
        arguments, results = self.free
        return fixed_bytes(self.program, self.model, results, arguments, self.planner.budget or math.inf)

    @property
    def free(self) -> tuple[set[int], set[int]]:
        """Numbers of the arguments and of the results that take no memory of a device: unused, in an argument's place, on the host."""
        base = self.base
        arguments, results = ({i for i, value in enumerate(values) if value.memory_kind} for values in (base.inputs, base.outputs))
        return arguments | set(base.dropped), results | {d.output for d in base.donation if d.output is not None}

    def limited(self, limits: Sequence[Limit] = ()) -> Problem:
        """The problem without the limits that no assignment can break: fewer limits are solved faster."""
        every = (self.fixed, *limits)
        return limited(self.model.problem, [one for one in every if sum(float(weights.max()) for weights in one.weights) > one.limit])

    @functools.cached_property
    def entries(self) -> int:
        """Entries of all tables."""
        return sum(len(table.costs) for table in self.model.problem.tables)

    def fullest(self, candidate: Candidate) -> list[Limit]:
        """The limits at the fullest steps of a plan that is over the budget.

        Buffers of a region hold no values of the model, so the steps are those of the plan without one, and the limits lower by as much
        as the region's peak is above its.
        """
        peaks = lifetimes(candidate.plan, self.planner.hardware).peaks(PEAKS)
        above = 0 if candidate.run is candidate.plan else candidate.peak - peaks[0].bytes
        over = [peak for peak in peaks if not self.planner.fits(peak.bytes + above)] or list(peaks[:1])
        chosen = self.model.entries(candidate.assignment)
        budget = (1 - MARGIN) * (self.planner.budget or math.inf) - above
        return [peak_bytes(self.model, self.fixed, peak, budget, chosen, self.copies) for peak in over]

    def within_budget(self) -> tuple[Candidate, float]:
        """The best plan within the budget, and its lower bound. Raises PlannerInfeasible if no plan that was tried fits."""
        starts = self.starts()
        for template in self.own_templates if self.propagate is None else ():
            if math.isfinite(self.model.seconds(start := self.start_of(template))):
                self.candidate(template.name, start)
        limits: list[Limit] = []
        bound, least_seconds, most = 0.0, 0.0, math.inf
        for round_ in range(ROUNDS):
            solution = self.solution(self.limited(limits), starts)
            least = solution.bound + self.model.constant
            if round_ == 0:
                bound, least_seconds = self.model.fed_seconds(least), least
            elif len(limits) == 1 and limits[0].tables == self.model.feeding.tables:  # all that take less than `most` keep it
                bound = max(bound, min(most, self.model.fed_seconds(least)))
            if math.isinf(solution.cost):
                break
            problem = self.limited(limits)
            # Within the gap much is left to chance, such as the dimension along which a small input is cut.
            polished = descend(Evaluation(self.model.tied(problem)), solution.assignment) if self.is_sharded(solution.assignment) else None
            best = tuple(map(int, polished.assignment)) if polished and polished.allowed else solution.assignment
            candidate = self.candidate("", self.with_data_cut(Evaluation(problem), best))
            seconds = self.model.seconds(candidate.assignment)
            is_fed_longest = max(bound, self.model.cost_seconds(candidate.assignment)) < (1 - LESS) * seconds
            if self.planner.fits(candidate.peak) and not is_fed_longest:
                break
            limits += [] if self.planner.fits(candidate.peak) else self.fullest(candidate)
            if is_fed_longest:
                shortest = tuple(min((candidate.assignment, *starts), key=self.model.seconds))
                most = self.model.seconds(shortest)
                if shortest != candidate.assignment:
                    self.candidate("", shortest)
                limits = [
                    *(each for each in limits if each.tables != self.model.feeding.tables),
                    self.model.fed_within(most, least_seconds),
                ]
            template = self.cheapest_template()
            starts = [
                solution.assignment,
                *([] if template is None else [template.assignment]),
                *starts[: STARTS + len(self.own_templates)],
            ]
            if not self.left:
                self.is_late = True
                break
        best = self.cheapest_template()
        if best is None:
            solution = least_of(self.model.problem, replace(self.fixed, limit=math.inf), starts[:1], seconds=max(self.left, 1.0), gap=0.05)
            best = self.candidate("least bytes of arguments", solution.assignment)
        if not self.planner.fits(best.peak):
            smallest = min(self.finished, key=lambda each: each.peak)
            raise infeasible(smallest.run, smallest.name, self.planner, self.least_bytes())
        return best, bound

    def cheapest_template(self) -> Candidate | None:
        """The cheapest plan that fits of those that were finished.

        Where none fits yet, templates are finished until one does: the cheapest by the model and those whose arguments and results take
        least, in turn.
        """
        seen = {each.assignment for each in self.finished}
        starts = {start: template.name for template in self.templates if (start := self.start_of(template)) not in seen}
        seconds = {start: self.model.seconds(start) for start in starts}
        bytes_ = {start: weight(self.fixed, self.model.entries(start)) for start in starts if seconds[start] < math.inf}
        most = self.fixed.limit
        cheap = sorted(bytes_, key=lambda start: (bytes_[start] > most, seconds[start]))
        for tried, start in enumerate(_in_turn(cheap, sorted(cheap, key=lambda start: bytes_[start]))):
            if self.cheapest_fitting is not None or (tried >= TRIED and (not self.left or bytes_[start] > most)):
                break
            self.candidate(starts[start], start)
        return self.cheapest_fitting

    @property
    def cheapest_fitting(self) -> Candidate | None:
        """The cheapest plan that fits of those that were finished."""
        fitting = (each for each in self.finished if self.planner.fits(each.peak))
        return min(fitting, key=lambda each: each.seconds, default=None)

    def least_bytes(self) -> int:
        """A lower bound on the peak of every plan."""
        return least_bytes(self.program, self._parts[-1](None), self.annotations, *self.free)

    @functools.cached_property
    def batch(self) -> tuple[Value, ...]:
        """The arguments that are a step's data."""
        return batch_of(self.program, self.space, self.annotations, self.neighbours, self.base.feeding)

    def starts(self) -> list[Sequence[int]]:
        """Assignments to start from: templates of the user's, and the cheapest of the others."""
        own, others = ([self.start(each) for each in some] for some in (self.own_templates, self.templates))
        return [*own, *sorted(others, key=self.cost_of_start)[:STARTS]]

    def cost_of_start(self, start: Sequence[int]) -> tuple[bool, float]:
        """Whether arguments and results alone are over the budget, and seconds."""
        chosen = self.model.entries(start)
        return -1 in chosen or weight(self.fixed, chosen) > self.fixed.limit, self.model.seconds(start)

    def solution(self, problem: Problem, starts: Sequence[Sequence[int]]) -> Solution:
        """The solution of a problem, well within the gap."""
        seconds = self.left * (1 if self.planner.budget is None else ROUND_SHARE)
        report("searching")
        solution = solve(problem, starts, gap=self.planner.gap * SOLVER_GAP, seconds=seconds, watch=self.watch)
        self.is_late |= solution.status == "time_limit"
        return solution

    def watch(self, cost: float, bound: float) -> None:
        """Reports how far the solver is."""
        constant = self.model.constant
        report("searching", objective=None if math.isinf(cost) else cost + constant, bound=bound + constant)


def _enough(predicted: float, cheapest: float) -> float:
    """The seconds at which the first region of a plan is good enough, beside a plan that takes `cheapest`."""
    return math.inf if predicted > FAR * cheapest else (1 + TRUST * (predicted > NEAR * cheapest)) * predicted


def _in_turn(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """The members of two orders of the same assignments, one of each in turn, each once."""
    return iter(dict.fromkeys(each for pair in zip(one, other) for each in pair))

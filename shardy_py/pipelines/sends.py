"""Values that a stage recomputes instead of receiving them.

A value crosses to every stage that reads it. Where it follows, by cheap equations, from values that the reader receives anyway, the reader
recomputes it. A recomputed value is a copy of its equation at the stage that reads it, with variables of its own, so that everything later
takes it for an equation of that stage. Where nothing else reads the original, it goes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from jax.extend.core import Var

from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.assignment import Assignment, reassign_backward, uses_of
from shardy_py.pipelines.flatten import FlatEquation, live
from shardy_py.pipelines.jaxprs import bytes_of, reads
from shardy_py.pipelines.microbatching import SplitStep
from shardy_py.pipelines.placing import Places
from shardy_py.pipelines.programs import parts_of_parameters
from shardy_py.pipelines.residuals import MOVES, Layout, bound, communicates, is_cheap


@dataclass(frozen=True)
class PlacedStep:
    """A step and the stages of its equations; `copies` maps variables of copied equations to those that they are copies of."""

    split: SplitStep
    assigned: Assignment
    copies: Mapping[Var, Var]

    @functools.cached_property
    def reading(self) -> _Reading:
        """Producers and readers of all values."""
        return _reading(self.split, self.assigned)


def reduce_sends(split: SplitStep, assigned: Assignment, places: Places, hardware: Hardware) -> PlacedStep:
    """Lets stages recompute what follows from other values that they receive; the result never sends more bytes."""
    unchanged = best = PlacedStep(split, assigned, {})
    if assigned.stages == 1:
        return unchanged
    rule = _Rule(places)
    most = least = rule.crossing(unchanged)
    # Backward equations may follow forward ones that receivers recompute.
    follows = reassign_backward(split, assigned, hardware, rule.within_reach(unchanged), is_cheap)
    for start in (unchanged, PlacedStep(split, follows, {})):
        candidate = start
        for back in (False, True):
            candidate = _copied(candidate, rule.from_others(candidate, back), hardware, back=back)
        size, count = rule.crossing(candidate)
        if size <= most[0] and (count, size) < least[::-1]:
            best, least = candidate, (size, count)
    return best


_Passes = tuple[dict[Var, None], dict[Var, None]]


@dataclass(frozen=True)
class _Reading:
    """Producers and readers of all values, seen through equations that every program computes for itself.

    Attributes:
        bound: Pairs of values of which the second must be recomputed where the first is.
    """

    node: dict[Var, FlatEquation]
    home: dict[Var, tuple[int, bool]]
    through: dict[Var, tuple[Var, ...]]
    read: tuple[_Passes, ...]
    bound: list[tuple[Var, Var]]

    def behind(self, values: Sequence[Var]) -> list[Var]:
        """The values, with those that every program computes for itself replaced by the values that they are computed from."""
        return list(dict.fromkeys(w for v in values for w in self.through.get(v, (v,))))


def _reading(split: SplitStep, assigned: Assignment) -> _Reading:
    slices = parts_of_parameters(split, [v for v in split.micro.invars if v not in split.examples])
    reading = _Reading({}, {}, {}, tuple(({}, {}) for _ in range(assigned.stages)), bound(split.micro.nodes))
    for node, s, back in zip(split.micro.nodes, assigned.stage, assigned.backward):
        operands = reading.behind(reads(node.eqn))
        if s is None:
            reading.through.update({v: (v,) if v in slices else tuple(operands) for v in node.eqn.outvars})
            continue
        reading.node.update(dict.fromkeys(node.eqn.outvars, node))
        reading.home.update(dict.fromkeys(node.eqn.outvars, (s, back)))
        reading.read[s][back].update(dict.fromkeys(v for v in operands if reading.home.get(v) != (s, back)))
    return reading


class _Rule:
    """Which values of other stages a stage recomputes: those that follow, by cheap equations, from others that it has."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.layouts = [Layout(places.specs, dict(places.mesh(s).shape)) for s in range(places.stages)]

    def local(self, v: Var, stage: int) -> int:
        """Bytes of a value on a device of a stage."""
        return -(-bytes_of(v) // self.layouts[stage].num_shards(v))

    def crossing(self, placed: PlacedStep) -> tuple[int, int]:
        """Bytes that a microbatch sends, per device, and the number of values."""
        home = placed.reading.home
        sizes = [
            self.local(v, t)
            for t, passes in enumerate(placed.reading.read)
            for v in dict.fromkeys((*passes[0], *passes[1]))
            if v in home and self.places.mesh(home[v][0]) != self.places.mesh(t)
        ]
        return sum(sizes), len(sizes)

    def from_others(self, placed: PlacedStep, back: bool) -> list[set[Var]]:
        """For every stage, values of earlier stages that it recomputes, or values of later backward passes that its own does."""
        chosen = []
        for t, passes in enumerate(placed.reading.read):
            read, home = {**passes[0], **passes[1]}, placed.reading.home
            others = {v for v, (s, is_back) in home.items() if (s != t and (is_back or s > t) if back else s < t and not is_back)}
            have = read.keys() - others | {v for v, of in home.items() if back and of == (t, False)}
            chosen.append(self.recomputed(placed, t, [v for v in (passes[1] if back else read) if v in others], others, have))
        return chosen

    def within_reach(self, placed: PlacedStep) -> list[set[Var]]:
        """For every stage, values of earlier stages that it can compute from what its forward pass receives."""
        reading = placed.reading
        reached: list[set[Var]] = [set() for _ in reading.read]
        for t, passes in enumerate(reading.read):
            have = set(passes[0])
            for v, node in reading.node.items():
                s, back = reading.home[v]
                operands = reading.behind(reads(node.eqn))
                if s < t and not back and self.is_light(node, t) and all(w in have or self.is_small(placed, w, v, t) for w in operands):
                    have.add(v)
                    reached[t].add(v)
        return reached

    def is_light(self, node: FlatEquation, stage: int) -> bool:
        """Whether a stage may recompute an equation of another."""
        return is_cheap(node.eqn) and not communicates(node.eqn, self.layouts[stage].axes)

    def is_small(self, placed: PlacedStep, w: Var, v: Var, stage: int) -> bool:
        """Whether an input is a parameter of no more bytes than a value, so that it may go to a stage once per step in its place."""
        return w not in placed.reading.home and w not in placed.split.examples and self.local(w, stage) <= self.local(v, stage)

    def recomputed(self, placed: PlacedStep, t: int, values: Sequence[Var], others: Set[Var], have: Set[Var]) -> set[Var]:
        """The values of other stages that a stage recomputes, of those and on the way to those that it reads."""
        reading = placed.reading
        order = {v: i for i, v in enumerate(reading.node)}
        copies = set[Var]()

        def operands(v: Var) -> list[Var] | None:
            """What a value is recomputed from; None where it has to be received."""
            return reading.behind(reads(reading.node[v].eqn)) if v in others and self.is_light(reading.node[v], t) else None

        def cone(v: Var) -> tuple[set[Var], frozenset[Var]]:
            """The values that have to be recomputed for a value, and those that the stage lacks for it."""
            inside, missing, todo = set[Var](), set[Var](), [v]
            while todo:
                w = todo.pop()
                before = operands(w)
                if w in inside or (w is not v and (w in received or w in have or w in copies or self.is_small(placed, w, v, t))):
                    continue
                if before is None:
                    missing.add(w)
                else:
                    inside.update(reading.node[w].eqn.outvars)
                    todo += before
            return inside, frozenset(missing)

        received = set[Var]()
        for v in values:  # what only moves data is made of what it moves, where that is no larger
            while (before := operands(v)) and len(before) == 1 and reading.node[v].eqn.primitive.name in MOVES:
                if before[0] not in others or self.local(before[0], t) > self.local(v, t):
                    break
                copies.update(reading.node[v].eqn.outvars)
                (v,) = before
            received.add(v)
        for v in sorted(received, key=order.__getitem__, reverse=True):
            received.discard(v)
            inside, missing = cone(v)
            if missing or any(a in inside and b in others and b not in inside | copies for a, b in reading.bound):
                received.add(v)
            else:
                copies |= inside
        return copies


def _copied(placed: PlacedStep, chosen: Sequence[Set[Var]], hardware: Hardware, back: bool) -> PlacedStep:
    """Gives stages their own copies of the equations of these values; equations that nothing reads any more go."""
    if not any(chosen):
        return placed
    split, assigned = placed.split, placed.assigned
    own: list[dict[Var, Var]] = [{} for _ in chosen]
    rows: list[tuple[FlatEquation, int | None, bool]] = []
    for node, s, is_back in zip(split.micro.nodes, assigned.stage, assigned.backward):
        # Copies of the backward pass are none that the forward pass could read.
        rows.append((node if s is None or (back and not is_back) else node.renamed(own[s]), s, is_back))
        for t, values in enumerate(chosen):
            if any(v in values for v in node.eqn.outvars):
                results = {v: Var(v.aval) for v in node.eqn.outvars}
                rows.append((node.renamed(own[t], results), t, back))
                own[t].update(results)
    live_ids = {id(node) for node in live([row[0] for row in rows], split.micro.outvars)}
    rows = [row for row in rows if id(row[0]) in live_ids]
    origin = {copy: v for results in own for v, copy in results.items()}
    examples = split.examples | {copy for copy, v in origin.items() if v in split.examples}
    data_only = split.data_only | {copy for copy, v in origin.items() if v in split.data_only}
    micro = replace(split.micro, nodes=tuple(row[0] for row in rows))
    whole_of = {**split.whole_of, **{copy: split.whole_of[v] for copy, v in origin.items() if v in split.whole_of}}
    step = replace(split, micro=micro, examples=examples, data_only=data_only, whole_of=whole_of)
    stage = tuple(row[1] for row in rows)
    placement = replace(assigned, stage=stage, backward=tuple(row[2] for row in rows), uses=uses_of(step, stage, hardware))
    return PlacedStep(step, placement, {**placed.copies, **{copy: placed.copies.get(v, v) for copy, v in origin.items()}})

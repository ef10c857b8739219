"""Chooses by minimum cuts, one per receiver and pass, the values that stages send and those that a receiver recomputes from them.

A value crosses to every stage that reads it. Where its equation is cheap, the reader can recompute it from its operands instead. A value
that crosses costs its bytes on the link and the price of a transfer; an equation that is recomputed costs the bytes that the link moves in
its time. A recomputed value is a copy of its equation at the stage that reads it, with variables of its own, so that everything later
takes it for an equation of that stage. Where nothing else reads the original, it goes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from jax.extend.core import Var

from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.assignment import Assignment, reassign_backward, uses_of
from shardy_py.pipelines.flatten import Node
from shardy_py.pipelines.jaxprs import bytes_of, live, reads
from shardy_py.pipelines.microbatching import Kind, Split
from shardy_py.pipelines.minimum_cut import RecomputeChoice
from shardy_py.pipelines.placing import Places
from shardy_py.pipelines.programs import parts_of_parameters
from shardy_py.pipelines.residuals import BUFFER_BYTES, Layout, bound, communicates, is_cheap, recompute_seconds

TRANSFER_BYTES = 512 << 10
"""Price of one more value that crosses, beside its bytes. `jax.device_put` takes 25 to 35 us of the thread that hands out tasks for it,
in which one core copies about as much; see `BUFFER_BYTES`, of which it is counted the same way."""

_Price = tuple[int, int]
"""Bytes that cross, and all other costs of a choice as bytes."""

FREE: _Price = (0, 0)


@dataclass(frozen=True)
class Placement:
    """A step and the stages of its equations; `copies` maps variables of copied equations to those that they are copies of."""

    split: Split
    assigned: Assignment
    copies: Mapping[Var, Var]

    @functools.cached_property
    def reading(self) -> _Reading:
        """Producers and readers of all values."""
        return _reading(self.split, self.assigned)


def reduce_sends(split: Split, assigned: Assignment, places: Places, hardware: Hardware, microbatches: int) -> Placement:
    """Lets stages recompute the values that cost more to send; the result never sends more bytes."""
    unchanged = Placement(split, assigned, {})
    if assigned.stages == 1:
        return unchanged
    cuts = _Cuts(places, hardware, microbatches)
    # Backward equations may follow forward ones that receivers recompute.
    follows = reassign_backward(split, assigned, hardware, cuts.within_reach(unchanged), is_cheap)
    best, (most, beside) = unchanged, cuts.crossing(unchanged)
    least = most + beside
    for start in (unchanged, Placement(split, follows, {})):
        candidate = _copied(start, cuts.forward(start, late=True), hardware, back=False)
        candidate = _copied(candidate, cuts.backward(candidate), hardware, back=True)
        size, beside = cuts.crossing(candidate)
        if size <= most and size + beside < least:
            best, least = candidate, size + beside
    return best


_Passes = tuple[dict[Var, None], dict[Var, None]]


@dataclass(frozen=True)
class _Reading:
    """Producers and readers of all values, seen through equations that every program computes for itself.

    Attributes:
        bound: Pairs of values of which the second must be recomputed where the first is.
    """

    node: dict[Var, Node]
    home: dict[Var, tuple[int, bool]]
    through: dict[Var, tuple[Var, ...]]
    read: tuple[_Passes, ...]
    bound: list[tuple[Var, Var]]

    def behind(self, values: Sequence[Var]) -> list[Var]:
        """The values, with those that every program computes for itself replaced by the values that they are computed from."""
        return list(dict.fromkeys(w for v in values for w in self.through.get(v, (v,))))


def _reading(split: Split, assigned: Assignment) -> _Reading:
    slices = parts_of_parameters(split, [v for v in split.micro.invars if split.kinds[v] is Kind.SAME])
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


class _Cuts:
    def __init__(self, places: Places, hardware: Hardware, microbatches: int) -> None:
        self.places, self.hardware, self.microbatches = places, hardware, microbatches
        self.layouts = [Layout(places.specs, dict(places.mesh(s).shape)) for s in range(places.stages)]

    def local(self, v: Var, stage: int) -> int:
        """Bytes of a value on a device of a stage."""
        return -(-bytes_of(v) // self.layouts[stage].num_shards(v))

    def near(self, a: int, b: int) -> bool:
        """Whether two stages lie on one mesh."""
        return self.places.mesh(a) == self.places.mesh(b)

    def crossing(self, placed: Placement) -> tuple[float, float]:
        """Bytes that a microbatch sends, per device, and the price of its transfers."""
        reading = placed.reading
        size, count, first = 0.0, 0.0, {}
        for t, passes in enumerate(reading.read):
            for v in dict.fromkeys((*passes[0], *passes[1])):
                part = 1.0
                if v in reading.home:
                    if self.near(reading.home[v][0], t):
                        continue
                elif placed.split.kinds[v] is not Kind.EXAMPLES:
                    # A parameter goes once per step to other stages than the first, and its gradient comes back.
                    part = 2 / self.microbatches if first.setdefault(v, t) != t else 0.0
                size += part * self.local(v, t)
                count += part * TRANSFER_BYTES
        return size, count

    def forward(self, placed: Placement, late: bool) -> list[set[Var]]:
        """For every stage, values of earlier stages that it recomputes."""
        reading = placed.reading
        alone = _only_reader(placed)
        chosen = []
        for t, passes in enumerate(reading.read):
            earlier = {v for v, (s, back) in reading.home.items() if s < t and not back}
            values = [v for v in dict.fromkeys((*passes[0], *(passes[1] if late else ()))) if v in earlier]
            there = {*passes[0], *passes[1]} - reading.home.keys()

            def price(v: Var, t: int = t, there: Set[Var] = there) -> _Price:
                if v in reading.home:
                    return FREE if reading.home[v][0] == t else self.sending(v, reading.home[v][0], t)
                return FREE if v in there or alone.get(v) == t else self.giving(placed, v, t)

            chosen.append(self.cheapest(reading, t, values, earlier, price))
        return chosen

    def within_reach(self, placed: Placement) -> list[set[Var]]:
        """For every stage, values of earlier stages that it can compute from what its forward pass receives."""
        reading = placed.reading
        chosen = self.forward(placed, late=False)
        for t, copies in enumerate(chosen):
            have = {*copies, *reading.read[t][0], *(v for w in copies for v in reading.behind(reads(reading.node[w].eqn)))}
            for v, node in reading.node.items():
                s, back = reading.home[v]
                if s < t and not back and v not in have and self.is_light(node, t) and have.issuperset(reading.behind(reads(node.eqn))):
                    have.add(v)
                    copies.add(v)
        return chosen

    def is_light(self, node: Node, stage: int) -> bool:
        """Whether a stage may recompute an equation of another."""
        return is_cheap(node.eqn) and not communicates(node.eqn, self.layouts[stage].axes)

    def backward(self, placed: Placement) -> list[set[Var]]:
        """For every stage, values of later backward passes that its own recomputes."""
        reading = placed.reading
        chosen = []
        for t, passes in enumerate(reading.read):
            later = {v for v, (s, back) in reading.home.items() if s != t and (back or s > t)}
            values = [v for v in passes[1] if v in later]

            def price(v: Var, t: int = t, passes: _Passes = passes, later: Set[Var] = later) -> _Price:
                home = reading.home.get(v)
                if (v in passes[1] and v not in later) or (home is None and v in passes[0]):
                    return FREE
                if home == (t, False) or v in passes[0]:
                    # A value that the stage has in its forward pass would be kept for this one.
                    return 0, self.moved((BUFFER_BYTES + self.local(v, t)) / self.hardware.hbm_bandwidth)
                return self.giving(placed, v, t) if home is None else self.sending(v, home[0], t)

            chosen.append(self.cheapest(reading, t, values, later, price))
        return chosen

    def sending(self, v: Var, s: int, t: int) -> _Price:
        return FREE if self.near(s, t) else (self.local(v, t), TRANSFER_BYTES)

    def giving(self, placed: Placement, v: Var, t: int) -> _Price:
        """The price of an input that a stage does not have yet; a parameter goes once per step, and its gradient comes back."""
        size = self.local(v, t)
        if placed.split.kinds[v] is Kind.EXAMPLES:
            return size, TRANSFER_BYTES
        return -(-2 * size // self.microbatches), -(-2 * TRANSFER_BYTES // self.microbatches)

    def moved(self, time: float) -> int:
        """The bytes that the link moves in a time."""
        return math.ceil(time * self.hardware.fabric.bandwidth)

    def cheapest(self, reading: _Reading, t: int, values: Sequence[Var], others: Set[Var], price: Callable[[Var], _Price]) -> set[Var]:
        """The values of other stages that a stage recomputes; by bytes alone if the cut by price would receive more bytes."""
        before = sum(price(v)[0] for v in values)
        copies = self.cut(reading, t, values, others, lambda v: sum(price(v)))
        received = dict.fromkeys((*values, *(v for w in copies for v in reading.behind(reads(reading.node[w].eqn)))))
        if sum(price(v)[0] for v in received if v not in copies) <= before:
            return copies
        return self.cut(reading, t, values, others, lambda v: price(v)[0])

    def cut(self, reading: _Reading, t: int, values: Sequence[Var], others: Set[Var], price: Callable[[Var], int]) -> set[Var]:
        """The values of other stages that a stage recomputes in the cheapest cut; it receives the rest."""
        layout = self.layouts[t]
        choice = RecomputeChoice()
        most = sum(map(price, values))

        def light(v: Var) -> Node | None:
            """The equation of a value that could be recomputed."""
            return reading.node[v] if v in others and self.is_light(reading.node[v], t) else None

        todo = list(values)
        while todo:
            v = todo.pop()
            if v in choice.values:
                continue
            node = light(v)
            # Not recomputed where its operands cost more to send than all that is wanted.
            if node is None or sum(price(w) for w in reading.behind(reads(node.eqn)) if not light(w)) >= most:
                choice.keep(v, price(v))
                continue
            results = node.eqn.outvars
            devices = min(map(layout.num_shards, results))
            choice.recompute({w: price(w) for w in results}, self.moved(recompute_seconds(node.eqn, self.hardware) / devices))
            todo += reading.behind(reads(node.eqn))
        for result in choice.equations:
            choice.needs(result, reading.behind(reads(reading.node[result].eqn)))
        for a, b in reading.bound:
            if a in choice.equations and b in choice.values:
                choice.bind(a, b)
        return set(choice.cheapest(values))


def _only_reader(placed: Placement) -> dict[Var, int]:
    """Inputs -> the only stage that needs them, if cheap equations are computed where they are read."""
    needed: dict[Var, set[int]] = {}
    assigned, reading = placed.assigned, placed.reading
    for node, s, back in reversed(list(zip(placed.split.micro.nodes, assigned.stage, assigned.backward))):
        if s is None or back:
            continue
        ends = {t for v in node.eqn.outvars for t in needed.get(v, ())}
        for v in reading.behind(reads(node.eqn)):
            needed.setdefault(v, set()).update(ends if ends and is_cheap(node.eqn) else {s})
    return {v: next(iter(stages)) for v, stages in needed.items() if len(stages) == 1 and v not in reading.home}


def _copied(placed: Placement, chosen: Sequence[Set[Var]], hardware: Hardware, back: bool) -> Placement:
    """Gives stages their own copies of the equations of these values; equations that nothing reads any more go."""
    if not any(chosen):
        return placed
    split, assigned = placed.split, placed.assigned
    own: list[dict[Var, Var]] = [{} for _ in chosen]
    rows: list[tuple[Node, int | None, bool]] = []
    for node, s, is_back in zip(split.micro.nodes, assigned.stage, assigned.backward):
        # Copies of the backward pass are none that the forward pass could read.
        rows.append((node if s is None or (back and not is_back) else _renamed(node, own[s], {}), s, is_back))
        for t, values in enumerate(chosen):
            if any(v in values for v in node.eqn.outvars):
                results = {v: Var(v.aval) for v in node.eqn.outvars}
                rows.append((_renamed(node, own[t], results), t, back))
                own[t].update(results)
    live_ids = {id(node) for node in live([row[0] for row in rows], split.micro.outvars)}
    rows = [row for row in rows if id(row[0]) in live_ids]
    origin = {copy: v for results in own for v, copy in results.items()}
    kinds = {**split.kinds, **{copy: split.kinds[v] for copy, v in origin.items()}}
    dims = {**split.dims, **{copy: split.dims[v] for copy, v in origin.items()}}
    data_only = split.data_only | {copy for copy, v in origin.items() if v in split.data_only}
    micro = replace(split.micro, nodes=tuple(row[0] for row in rows))
    whole_of = {**split.whole_of, **{copy: split.whole_of[v] for copy, v in origin.items() if v in split.whole_of}}
    step = replace(split, micro=micro, kinds=kinds, dims=dims, data_only=data_only, whole_of=whole_of)
    stage = tuple(row[1] for row in rows)
    placement = replace(assigned, stage=stage, backward=tuple(row[2] for row in rows), uses=uses_of(step, stage, hardware))
    return Placement(step, placement, {**placed.copies, **{copy: placed.copies.get(v, v) for copy, v in origin.items()}})


def _renamed(node: Node, names: Mapping[Var, Var], results: Mapping[Var, Var]) -> Node:
    operands = [names.get(v, v) if isinstance(v, Var) else v for v in node.eqn.invars]
    if not results and all(a is b for a, b in zip(operands, node.eqn.invars)):
        return node
    return replace(node, eqn=node.eqn.replace(invars=operands, outvars=[results.get(v, v) for v in node.eqn.outvars]))

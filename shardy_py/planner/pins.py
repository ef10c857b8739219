"""The fewest constraints with which propagation gives a plan.

An assignment shards every value. Most of that follows from the inputs and the results by propagation, and from a few values inside; these
are found here, by trial: the value that most others follow is pinned, the program is propagated again, and so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import DimensionSharding, TensorSharding
from shardy_py.dialect.axis import merged
from shardy_py.ir import Program, Value
from shardy_py.partition.layouts import layout_of
from shardy_py.partition.policies import xla_of
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.passes.import_.constant_or_scalar_splitter import copied_values
from shardy_py.plan.search import Constraint
from shardy_py.plan.values import in_backward_pass, location_of, name_of
from shardy_py.planner.judge import Candidate, fits, objective
from shardy_py.planner.propagated import Variable
from shardy_py.planner.search import Searcher

ROUNDS = 64
"""Propagations, each with one pin more; after them all values that differ are pinned at once."""

TOLERANCE = 1e-4
"""The part of the step that is worth no pin."""

ALL_TOLERANCE = 1.5e-3
"""The part of the step that all the pins left out may cost together."""

FEW = 16
"""Pins past which the cheapest are left out as far as `ALL_TOLERANCE` lets them, whatever one by itself is worth."""

Kind = tuple[int, ...]
"""The classes of a value's dimensions: values of one kind are sharded alike."""


def constraints_of(searcher: Searcher, best: Candidate) -> tuple[Constraint, ...]:
    """The fewest constraints with which propagation gives a plan."""
    program, names = searcher.base.program, searcher.base.names
    seeds = searcher.seeds(best.plan)
    variables, places = seeds.variables(), list[Place]()
    copied = copied_values(program)  # a pin on one copy says nothing of the others
    pinnable = set[Value]()
    for number, variable in enumerate(variables):
        if variable is None or variable.holder in copied:
            continue
        if variable.operand is not None:
            place = _read_place(number, variable, variable.operand, searcher)
            places += () if place is None else (place,)
            continue
        places.append(_place(number, variable, searcher, is_further=variable.holder in pinnable))
        pinnable.add(variable.holder)

    def propagate(numbers: Collection[int]) -> PinnedOutcome:
        plan, run = seeds.plan({place.number: place.sharding for place in places if place.number in numbers})
        shardings = {number: variable.holder.sharding for number, variable in enumerate(run) if variable is not None}
        return PinnedOutcome(objective(plan, searcher.planner), fits(plan, searcher.planner), shardings)

    pins = fewest_pins(places, propagate, objective(best.plan, searcher.planner))
    constraints: list[Constraint] = []
    for place in places:
        variable = variables[place.number]
        if place.number in pins and variable is not None:
            location = location_of(program, variable.op) if place.in_source else ""
            in_front = variable.value is not variable.holder or variable.operand is not None
            path = name_of(variable.value, names)
            constraints.append(Constraint(path, variable.value.type, location, place.sharding, variable.primitive, in_front, place.number))
    return tuple(constraints)


def _place(number: int, variable: Variable, searcher: Searcher, *, is_further: bool) -> Place:
    holder = variable.holder
    sharding = holder.sharding or TensorSharding.closed(searcher.mesh_name, holder.type.rank)
    kind = searcher.space.classes.get(searcher.copies.get(holder, holder), (-1 - number,))
    return Place(number, sharding.closed_like(), kind, _in_source(variable, searcher.base.program), is_further)


def _read_place(number: int, variable: Variable, operand: int, searcher: Searcher) -> Place | None:
    """The place of an operand that its op reads in another layout than it has; None of another, and of one in a `shard_map`."""
    op, program, mesh = variable.op, searcher.base.program, searcher.base.mesh
    if any(each.name == MANUAL_COMPUTATION for each in op.outward()):
        return None
    layout = layout_of(variable.holder.sharding, variable.holder.type.rank, mesh)
    read = xla_of(op, mesh, program.meshes, {}).reads[operand]
    if read == layout:
        return None
    sharding = TensorSharding(searcher.mesh_name, [DimensionSharding(merged(axes, mesh)) for axes in read])
    return Place(number, sharding, (-1 - number,), _in_source(variable, program), is_read=True)


def _in_source(variable: Variable, program: Program) -> bool:
    return bool(location_of(program, variable.op)) and not variable.is_unnamed and not in_backward_pass(program, variable.op)


@dataclass(frozen=True, eq=False)
class Place:
    """A value that a constraint may stand on.

    Attributes:
        is_further: Whether an earlier place is of the same value: what a loop carries is constrained in front of it, at the end of its
            body, and behind it, where the first alone does not keep what the others are read as from changing it.
        is_read: Whether it is an operand as one op reads it, which no value shows: such places are taken where all others do not do.
    """

    number: int
    sharding: TensorSharding
    kind: Kind
    in_source: bool
    is_further: bool = False
    is_read: bool = False


@dataclass(frozen=True, eq=False)
class PinnedOutcome:
    """A program propagated from some pins."""

    seconds: float
    fits: bool
    shardings: Mapping[int, TensorSharding | None]

    def differs(self, place: Place) -> bool:
        """Whether a value came out otherwise than planned."""
        return not place.is_read and place.number in self.shardings and not place.sharding.is_equivalent(self.shardings[place.number])


Propagate = Callable[[Collection[int]], PinnedOutcome]
"""Propagates with the plan's shardings of some variables pinned."""


def fewest_pins(places: Sequence[Place], propagate: Propagate, seconds: float) -> tuple[int, ...]:
    """The numbers of the variables to pin, in program order, with which propagation takes no longer than the plan."""
    pins: dict[int, Place] = {}
    reads = [place for place in places if place.is_read]
    limit = seconds * (1 + TOLERANCE)
    for round_ in range(ROUNDS + 1):
        outcome = propagate(pins)
        if outcome.fits and outcome.seconds <= limit:
            break
        differing = [place for place in places if place.number not in pins and outcome.differs(place)]
        if differing:
            chosen: Sequence[Place] = differing if round_ == ROUNDS else (_leader(differing),)
        else:
            chosen = [place for place in reads if place.number not in pins]
        if not chosen:
            break
        pins |= {place.number: place for place in chosen}
    else:
        outcome = propagate(pins)
    # Pins without a line in the source are dropped first, and of the others the last.
    order = sorted(pins.values(), key=lambda place: (place.in_source, -place.number))
    return tuple(sorted(_needed([place.number for place in order], propagate, outcome, seconds)))


def _leader(differing: Sequence[Place]) -> Place:
    """The first value, with a line in the source if there is one, of the kind that most of the differing values have.

    Further places of values are taken only where no others are left.
    """
    kinds: dict[Kind, list[Place]] = {}
    for place in [place for place in differing if not place.is_further] or differing:
        kinds.setdefault(place.kind, []).append(place)
    largest = max(kinds.values(), key=len)  # the first of equals
    return next(itertools.chain((place for place in largest if place.in_source), largest))


def _needed(pins: Sequence[int], propagate: Propagate, outcome: PinnedOutcome, seconds: float) -> list[int]:
    """The pins that are left when each that is not needed is dropped, first by halves, then one by one, and once more."""
    remaining, current = list(pins), max(outcome.seconds, seconds)
    most = current * (1 + ALL_TOLERANCE)

    def drop(some: Sequence[int]) -> None:
        nonlocal current
        rest = [pin for pin in remaining if pin not in some]
        fewer = propagate(rest)
        if fewer.fits >= outcome.fits and fewer.seconds <= min(current * (1 + TOLERANCE * len(some)), most):
            remaining[:], current = rest, max(fewer.seconds, seconds)
        elif len(some) > 1:
            drop(some[: len(some) // 2])
            drop(some[len(some) // 2 :])

    def spare() -> None:
        """Drops the cheapest pins until `FEW` remain."""
        costs = {pin: propagate([other for other in remaining if other != pin]) for pin in remaining}
        for pin in sorted((pin for pin in remaining if costs[pin].fits >= outcome.fits), key=lambda pin: costs[pin].seconds):
            rest = [other for other in remaining if other != pin]
            fewer = propagate(rest)
            if len(remaining) <= FEW or fewer.seconds > most:
                break
            if fewer.fits >= outcome.fits:
                remaining[:] = rest

    for half in (pins[: len(pins) // 2], pins[len(pins) // 2 :]):  # without any pin it is known not to do
        if half:
            drop(half)
    if len(remaining) < len(pins):  # what was needed beside a pin may not be without it
        for pin in tuple(remaining):
            drop((pin,))
    if len(remaining) > FEW:
        spare()
    return remaining

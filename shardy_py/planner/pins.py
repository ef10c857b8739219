"""The fewest constraints with which propagation gives a plan.

An assignment shards every value. Most of that follows from the inputs and the results by propagation, and from a few values inside; these
are found here, by trial: the value that most others follow is pinned, the program is propagated again, and so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Program, Value
from shardy_py.passes.import_.constant_or_scalar_splitter import copied_values
from shardy_py.plan.search import Constraint
from shardy_py.plan.values import in_backward_pass, location_of, name_of
from shardy_py.planner.judge import Candidate
from shardy_py.planner.propagated import Variable
from shardy_py.planner.search import Searcher

ROUNDS = 64
"""Propagations, each with one pin more; after them all values that differ are pinned at once."""

TOLERANCE = 1e-4
"""The part of the elements of all values that may lie otherwise without a pin."""

ALL_TOLERANCE = 1.5e-3
"""The same of all pins that are left out together."""

FEW = 16
"""Above this number of pins, the cheapest are left out while `ALL_TOLERANCE` allows it, whatever a single pin is worth."""

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
        if variable is None or variable.operand is not None or variable.holder in copied:
            continue
        places.append(_place(number, variable, searcher, is_further=variable.holder in pinnable))
        pinnable.add(variable.holder)

    sizes = {place.number: variable.holder.type.size for place in places if (variable := variables[place.number]) is not None}
    total = float(sum(sizes.values()))

    def propagate(numbers: Collection[int]) -> PinnedOutcome:
        _, run = seeds.plan({place.number: place.sharding for place in places if place.number in numbers})
        shardings = {number: variable.holder.sharding for number, variable in enumerate(run) if variable is not None}
        outcome = PinnedOutcome(total, shardings)
        return replace(outcome, size=total + sum(sizes[place.number] for place in places if outcome.differs(place)))

    pins = fewest_pins(places, propagate, total)
    constraints: list[Constraint] = []
    for place in places:
        variable = variables[place.number]
        if place.number in pins and variable is not None:
            location = location_of(program, variable.op) if place.in_source else ""
            in_front = variable.value is not variable.holder
            path = name_of(variable.value, names)
            constraints.append(Constraint(path, variable.value.type, location, place.sharding, variable.primitive, in_front, place.number))
    return tuple(constraints)


def _place(number: int, variable: Variable, searcher: Searcher, *, is_further: bool) -> Place:
    holder = variable.holder
    sharding = holder.sharding or TensorSharding.closed(searcher.mesh_name, holder.type.rank)
    kind = searcher.space.classes.get(searcher.copies.get(holder, holder), (-1 - number,))
    return Place(number, sharding.closed_like(), kind, _in_source(variable, searcher.base.program), is_further)


def _in_source(variable: Variable, program: Program) -> bool:
    return bool(location_of(program, variable.op)) and not variable.is_unnamed and not in_backward_pass(program, variable.op)


@dataclass(frozen=True, eq=False)
class Place:
    """A value that a constraint may stand on.

    Attributes:
        is_further: Whether an earlier place is of the same value: what a loop carries is constrained in front of it, at the end of its
            body, and behind it, where the first alone does not keep what the others are read as from changing it.
    """

    number: int
    sharding: TensorSharding
    kind: Kind
    in_source: bool
    is_further: bool = False


@dataclass(frozen=True, eq=False)
class PinnedOutcome:
    """A program propagated from some pins; `size` counts all values, and once more the values whose sharding is not the planned one."""

    size: float
    shardings: Mapping[int, TensorSharding | None]

    def differs(self, place: Place) -> bool:
        """Whether a value's sharding is not the planned one."""
        return place.number in self.shardings and not place.sharding.is_equivalent(self.shardings[place.number])


Propagate = Callable[[Collection[int]], PinnedOutcome]
"""Propagates with the plan's shardings of some variables pinned."""


def fewest_pins(places: Sequence[Place], propagate: Propagate, size: float) -> tuple[int, ...]:
    """The numbers of the variables to pin, in program order, with which propagation gives the plan, whose values have a size."""
    pins: dict[int, Place] = {}
    limit = size * (1 + TOLERANCE)
    for round_ in range(ROUNDS + 1):
        outcome = propagate(pins)
        if outcome.size <= limit:
            break
        differing = [place for place in places if place.number not in pins and outcome.differs(place)]
        if not differing:
            break
        chosen: Sequence[Place] = differing if round_ == ROUNDS else (_leader(differing),)
        pins |= {place.number: place for place in chosen}
    else:
        outcome = propagate(pins)
    # Pins without a line in the source are dropped first, and of the others the last.
    order = sorted(pins.values(), key=lambda place: (place.in_source, -place.number))
    return tuple(sorted(_needed([place.number for place in order], propagate, outcome, size)))


def _leader(differing: Sequence[Place]) -> Place:
    """The first value, with a line in the source if there is one, of the kind that most of the differing values have.

    Further places of values are taken only where no others are left.
    """
    kinds: dict[Kind, list[Place]] = {}
    for place in [place for place in differing if not place.is_further] or differing:
        kinds.setdefault(place.kind, []).append(place)
    largest = max(kinds.values(), key=len)  # the first of equals
    return next(itertools.chain((place for place in largest if place.in_source), largest))


def _needed(pins: Sequence[int], propagate: Propagate, outcome: PinnedOutcome, size: float) -> list[int]:
    """The pins that are left when each that is not needed is dropped, first by halves, then one by one, and once more."""
    remaining, current = list(pins), max(outcome.size, size)
    most = current * (1 + ALL_TOLERANCE)

    def drop(some: Sequence[int]) -> None:
        nonlocal current
        rest = [pin for pin in remaining if pin not in some]
        fewer = propagate(rest)
        if fewer.size <= min(current * (1 + TOLERANCE * len(some)), most):
            remaining[:], current = rest, max(fewer.size, size)
        elif len(some) > 1:
            drop(some[: len(some) // 2])
            drop(some[len(some) // 2 :])

    def spare() -> None:
        """Drops the cheapest pins until `FEW` remain."""
        costs = {pin: propagate([other for other in remaining if other != pin]) for pin in remaining}
        for pin in sorted(remaining, key=lambda pin: costs[pin].size):
            rest = [other for other in remaining if other != pin]
            fewer = propagate(rest)
            if len(remaining) <= FEW or fewer.size > most:
                break
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

"""An assignment of one search space in another one of the same function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardy_py.ir import Program, Value
from shardy_py.planner.space import Space


def transferred(assignment: Sequence[int], source: tuple[Program, Space], target: tuple[Program, Space]) -> tuple[int, ...]:
    """The assignment in which values lie as in another, as far as the space has their layouts; else they are whole.

    Args:
        assignment: Per class of the source, the number of its strategy.
        source: A program and its space.
        target: A program that is equal but for its objects, and its space.

    Returns:
        Per class of the target, the number of its strategy.
    """
    counterparts = dict(zip(_values(target[0]), _values(source[0]), strict=True))
    chosen: list[int] = []
    for strategies, members in zip(target[1].strategies, target[1].members):
        value, dim = members[0]
        axes = source[1].layout(counterparts[value], assignment)[dim]
        chosen.append(strategies.index(axes) if axes in strategies else 0)
    return tuple(chosen)


def _values(program: Program) -> Iterator[Value | int]:
    """All values of a program and the numbers of its results, in an order that equal programs share."""
    yield from range(len(program.main.result_types))
    yield from program.main.arguments
    for op in program.walk():
        yield from op.results
        for region in op.regions:
            yield from region.arguments

"""Mesh shapes for a number of devices."""

from __future__ import annotations

from collections.abc import Iterator

MOST_AXES = 2
"""Axes of a mesh whose shape is searched; three take minutes, and no case is known in which they paid without a third kind of links."""


def shapes(devices: int) -> tuple[tuple[int, ...], ...]:
    """The ordered factorizations of a number of devices into at most `MOST_AXES` sizes, fewer axes first.

    Args:
        devices: The number.

    Example:
        >>> shapes(8)
        ((8,), (2, 4), (4, 2))
    """
    if devices == 1:
        return ((1,),)
    return tuple(shape for axes in range(1, MOST_AXES + 1) for shape in _factorizations(devices, axes))


def _factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (number,)
        return
    for size in range(2, number):
        if number % size == 0:
            for rest in _factorizations(number // size, count - 1):
                yield (size, *rest)


def named(shape: tuple[int, ...]) -> dict[str, int]:
    """A shape as a mesh.

    Example:
        >>> named((16, 4))
        {'axis0': 16, 'axis1': 4}
    """
    return {f"axis{i}": size for i, size in enumerate(shape)}

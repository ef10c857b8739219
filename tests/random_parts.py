"""Common parts of the statements of random programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tests.random_programs import Value, Writer


class Skip(Exception):
    """A statement finds nothing to work on."""


def skip() -> NoReturn:
    """Gives up on a statement."""
    raise Skip


def dimension(w: Writer, v: Value) -> int:
    """One of the dimensions of a value."""
    return w.choose.integer(0, v.rank - 1)


def with_size(shape: tuple[int, ...], d: int, size: int) -> tuple[int, ...]:
    """A shape with another size of one dimension."""
    return (*shape[:d], size, *shape[d + 1 :])


def without(shape: tuple[int, ...], *dims: int) -> tuple[int, ...]:
    """A shape without some dimensions."""
    return tuple(n for d, n in enumerate(shape) if d not in dims)

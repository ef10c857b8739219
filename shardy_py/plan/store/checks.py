"""StoreError, and checks of the data of a file before anything is built from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardy_py.errors import ShardyError

LIMIT = 1 << 63
"""No number in a file is as large."""


class StoreError(ShardyError):
    """A stored plan that cannot be read: damaged, of another version, or no plan at all. `where` names the entry."""


def integer(data: Any, low: int = 0, high: int = LIMIT) -> int:
    """A whole number, at least `low` and below `high`; raises StoreError for any other data.

    Example:
        >>> integer(3), integer(-1, -1)
        (3, -1)
    """
    if type(data) is not int:
        raise StoreError(f"expected a whole number, got {described(data)}")
    if not low <= data < high:
        raise StoreError(f"expected a number from {low} to {high - 1}, got {described(data)}")
    return data


def text(data: Any) -> str:
    """A text; raises StoreError for any other data."""
    if type(data) is not str:
        raise StoreError(f"expected a text, got {described(data)}")
    return data


def boolean(data: Any) -> bool:
    """True or false; raises StoreError for any other data."""
    if type(data) is not bool:
        raise StoreError(f"expected true or false, got {described(data)}")
    return data


def items(data: Any, length: int | None = None) -> list[Any]:
    """A list, of `length` entries if that is not None; raises StoreError for any other data."""
    if type(data) is not list:
        raise StoreError(f"expected a list, got {described(data)}")
    if length is not None and len(data) != length:
        raise StoreError(f"expected a list of {length}, got one of {len(data)}")
    return data


def members(data: Any, names: Sequence[str]) -> dict[str, Any]:
    """An object with these members and no others; raises StoreError for any other data."""
    if type(data) is not dict:
        raise StoreError(f"expected an object, got {described(data)}")
    for name in names:
        if name not in data:
            raise StoreError(f"the member {name!r} is missing")
    if len(data) != len(names):
        other = next(name for name in data if name not in names)
        raise StoreError(f"unknown member {described(other)}", fix=f"the members are {', '.join(names)}")
    return data


def entry(table: Sequence[Any], data: Any) -> Any:
    """The entry of a table by its number in the file; raises StoreError if there is none."""
    if type(data) is not int:
        raise StoreError(f"expected the number of an entry, got {described(data)}")
    if not 0 <= data < len(table):
        raise StoreError(f"there is no entry {described(data)}: the table has {len(table)}")
    return table[data]


@contextmanager
def at(where: str) -> Iterator[None]:
    """Adds the place in the file to errors inside, and turns errors of constructors that reject their data into StoreErrors."""
    try:
        yield
    except StoreError as error:
        error.at(where)
        raise
    except ShardyError as error:
        inner = f"{where}, {error.where}" if error.where else where
        raise StoreError(error.what, where=inner, why=error.why, fix=error.fix) from error


def described(data: Any) -> str:
    """A piece of a file, short enough for a message.

    Example:
        >>> described({"a": 1}), described([1, 2]), described("x" * 100)[:5]
        ('an object of 1', 'a list of 2', "'xxxx")
    """
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, dict):
        return f"an object of {len(data)}"
    if isinstance(data, list):
        return f"a list of {len(data)}"
    if isinstance(data, int):
        return str(data) if abs(data) < 1 << 200 else f"a number of {data.bit_length()} bits"
    shown = repr(data)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


_LONGEST = 60

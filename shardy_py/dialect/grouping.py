"""Items with equal keys, or that are joined, together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, in their order; keys in the order in which they first occur.

    Example:
        >>> grouped(["all_gather", "psum", "pmax"], lambda name: name[0])
        {'a': ['all_gather'], 'p': ['psum', 'pmax']}
    """
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


class Interner(Generic[K]):
    """Numbers keys in the order in which they are first seen, with a row for each.

    Example:
        >>> table = Interner[str]()
        >>> [table("a"), table("b"), table("a")], table.rows
        ([0, 1, 0], ['a', 'b'])
    """

    def __init__(self, row: Callable[[K], Any] = lambda key: key) -> None:
        self.rows: list[Any] = []
        self._row = row
        self._numbers: dict[K, int] = {}

    def __call__(self, key: K, row: Callable[[], Any] | None = None) -> int:
        """The number of a key; of a new one with a row of its own, if that is not None."""
        number = self._numbers.get(key)
        if number is None:
            written = self._row(key) if row is None else row()
            number = self._numbers[key] = len(self.rows)
            self.rows.append(written)
        return number


class Components(Generic[K]):
    """Items joined to connected components.

    Example:
        >>> parts = Components[str]()
        >>> parts.join("ab"), parts.join("cb")
        (None, None)
        >>> [parts.root(item) for item in "abcd"]
        ['c', 'c', 'c', 'd']
    """

    def __init__(self) -> None:
        self._above: dict[K, K] = {}

    def root(self, item: K) -> K:
        """The representative of an item's component."""
        above = self._above
        while (up := above.get(item, item)) is not item:
            above[item] = item = above.get(up, up)
        return item

    def join(self, items: Iterable[K]) -> None:
        """Makes one component of several items, represented by the representative of the first."""
        first = None
        for item in items:
            root = self.root(self._above.setdefault(item, item))
            first = root if first is None else first
            self._above[root] = first

"""Items with equal keys, or that are joined, together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

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
        """Makes one component of several items, whose representative is that of the first."""
        first = None
        for item in items:
            root = self.root(self._above.setdefault(item, item))
            first = root if first is None else first
            self._above[root] = first

"""Items with equal keys together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

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

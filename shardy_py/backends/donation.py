"""Buffers that may not be passed: deleted ones, and donated ones that are passed twice.

On several devices jaxlib does not survive either, so every call is looked at before it is dispatched. The look costs about 0.1
microseconds per array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

Paths = Callable[[], Sequence[str]]


class Errors(Protocol):
    """Makes the errors, in the words of the API."""

    def deleted(self, path: str, leaf: Any) -> Exception:
        """The leaf's buffer was donated or deleted."""
        ...

    def twice(self, path: str, first: str, leaf: Any) -> Exception:
        """One buffer stands at two paths, at least one of them donated."""
        ...


class Guard:
    """Checks the arguments of calls of one layout.

    Args:
        donated: Slots whose buffers are donated.
    """

    __slots__ = ("_array", "_is_deleted", "donated")

    def __init__(self, donated: Sequence[int]) -> None:
        self.donated = frozenset(donated)
        self._array: Any = None
        self._is_deleted: Any = None

    def bad(self, slots: Sequence[Any]) -> bool:
        """Whether some leaf may be bad; `explain` tells."""
        leaves = jax.tree.leaves(slots)
        if self._array is None:
            self._learn(leaves)
        try:
            if any(map(self._is_deleted, leaves)):
                return True
        except TypeError:
            array = self._array
            if any(type(leaf) is array and leaf.is_deleted() for leaf in leaves):
                return True
        return bool(self.donated) and len(set(map(id, leaves))) != len(leaves)

    def _learn(self, leaves: Sequence[Any]) -> None:
        # The concrete class of arrays is not public; the first array seen tells.
        for leaf in leaves:
            if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
                self._array = type(leaf)
                self._is_deleted = type(leaf).is_deleted
                return
        self._is_deleted = _never

    def explain(self, slots: Sequence[Any], paths: Paths, errors: Errors) -> None:
        """Raises for a bad leaf; returns where there is none after all.

        Args:
            slots: The arguments.
            paths: Gives one path per leaf.
            errors: Makes the errors.
        """
        names = paths()
        seen: dict[int, tuple[str, bool]] = {}
        position = 0
        for slot, argument in enumerate(slots):
            for leaf in jax.tree.leaves(argument):
                path = names[position]
                position += 1
                if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
                    continue
                if leaf.is_deleted():
                    raise errors.deleted(path, leaf)
                donated = slot in self.donated
                first, before = seen.setdefault(id(leaf), (path, donated))
                if first != path and (donated or before):
                    raise errors.twice(path, first, leaf)


def _never(leaf: Any) -> bool:
    raise TypeError

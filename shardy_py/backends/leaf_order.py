"""Jitted functions whose flat inputs and outputs have an order of our choice, behind the structure of the user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax


class Order:
    """An order of the leaves of a tree.

    Args:
        tree: The tree's structure.
        order: For each place the number of the leaf that stands there.
        keep: Whether `Ordered` values unflatten to themselves, in place of the tree; makes no difference for equality.
    """

    __slots__ = ("_hash", "_undo", "keep", "order", "tree")

    def __init__(self, tree: Any, order: Sequence[int], *, keep: bool = False) -> None:
        self.tree = tree
        self.order = tuple(order)
        self.keep = keep
        places = [0] * len(self.order)
        for place, leaf in enumerate(self.order):
            places[leaf] = place
        self._undo = picked(places)
        self._hash = hash((tree, self.order))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Order) and self.order == other.order and self.tree == other.tree)

    def __hash__(self) -> int:
        return self._hash

    def restored(self, leaves: Sequence[Any]) -> Any:
        """The tree of leaves in this order."""
        return self.tree.unflatten(self._undo(leaves))


class Ordered:
    """Leaves of a tree in another order. As a result of a jitted function it arrives as the tree.

    Args:
        leaves: In the tree's order.
        order: Theirs from now on.
    """

    __slots__ = ("leaves", "order")

    def __init__(self, leaves: Sequence[Any], order: Order) -> None:
        self.leaves = [leaves[i] for i in order.order]
        self.order = order


def _unflatten(order: Order, leaves: Sequence[Any]) -> Any:
    if not order.keep:
        return order.restored(leaves)
    made = object.__new__(Ordered)
    made.leaves, made.order = list(leaves), order
    return made


jax.tree_util.register_pytree_node(Ordered, lambda ordered: (ordered.leaves, ordered.order), _unflatten)


def picked(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A fast function that takes the elements at these places from a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda leaves: tuple(leaves[i] for i in places)


class ByLeaf:
    """A function of arguments whose jitted form takes `(donated leaves, other leaves, *static arguments)`.

    So some leaves of an argument are donated and others are not, which `jax.jit` cannot do; a call costs a flattening more.

    Args:
        jitted: The jitted form.
        tree: Structure of the dynamic arguments.
        donated: Numbers of the donated leaves, in the jitted form's order.
        static_slots: Positions of static arguments.
        changed: Raised where a call has another structure.
    """

    def __init__(self, jitted: Any, tree: Any, donated: Sequence[int], static_slots: Sequence[int], changed: type[Exception]) -> None:
        self._jitted = jitted
        self._tree = tree
        self._donated = picked(donated)
        self._others = picked([i for i in range(tree.num_leaves) if i not in set(donated)])
        self._static = tuple(static_slots)
        self._changed = changed

    def split(self, dynamic: tuple[Any, ...]) -> tuple[Any, ...]:
        """Donated and other leaves of the arguments that are not static."""
        leaves, tree = jax.tree.flatten(dynamic)
        if tree != self._tree:
            raise self._changed
        return self._donated(leaves), self._others(leaves)

    def _arguments(self, slots: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._static:
            return self.split(slots)
        dynamic = tuple(slot for i, slot in enumerate(slots) if i not in self._static)
        return *self.split(dynamic), *(slots[i] for i in self._static)

    def __call__(self, *slots: Any) -> Any:
        """Calls the function."""
        return self._jitted(*self._arguments(slots))

    def lower(self, *slots: Any) -> Any:
        """As `jax.stages.Wrapped.lower`."""
        return _Lowered(self._jitted.lower(*self._arguments(slots)), self.split)

    def trace(self, *slots: Any) -> Any:
        """As `jax.stages.Wrapped.trace`."""
        return _Traced(self._jitted.trace(*self._arguments(slots)), self.split)


class _Stage:
    """A stage of JAX; what it does not have itself is the stage's."""

    def __init__(self, stage: Any, split: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        self._stage = stage
        self._split = split

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class _Traced(_Stage):
    def lower(self, **options: Any) -> _Lowered:
        return _Lowered(self._stage.lower(**options), self._split)


class _Lowered(_Stage):
    def compile(self, *args: Any, **options: Any) -> _Compiled:
        return _Compiled(self._stage.compile(*args, **options), self._split)


class _Compiled(_Stage):
    def __call__(self, *dynamic: Any) -> Any:
        return self._stage(*self._split(dynamic))

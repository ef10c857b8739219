"""Jitted functions whose flat inputs and outputs have an order of our choice, behind the structure of the user's function."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
from jax.tree_util import treedef_tuple

from shardy_py.errors import ShardyError
from shardy_py.frontends.leaves import Leaves, Outline


def selection(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A fast function that selects the elements at some places of a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda leaves: tuple(leaves[i] for i in places)


def inverse(order: Sequence[int]) -> list[int]:
    """The inverse of a permutation."""
    places = [0] * len(order)
    for place, leaf in enumerate(order):
        places[leaf] = place
    return places


class Inputs(abc.ABC):
    """The arguments of a jitted function, made of the leaves of the user's."""

    def __init__(self, tree: Any, static_slots: Sequence[int], changed: type[Exception]) -> None:
        self.tree = tree
        self.static_slots = tuple(static_slots)
        self._static = frozenset(static_slots)
        self._changed = changed

    def flat(self, slots: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The leaves of all arguments, and the static arguments."""
        static = self._static
        if not static:
            return self.leaves(tuple(slots)), []
        return self.leaves(tuple(slot for i, slot in enumerate(slots) if i not in static)), [slots[i] for i in self.static_slots]

    def leaves(self, dynamic: tuple[Any, ...]) -> list[Any]:
        """The leaves of the arguments that are not static."""
        leaves, tree = jax.tree.flatten(dynamic)
        if tree != self.tree:
            raise self._changed
        return leaves

    @abc.abstractmethod
    def packed(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The jitted function's arguments that are not static."""

    @abc.abstractmethod
    def unpacked(self, dynamic: Sequence[Any]) -> Sequence[Any]:
        """The leaves that were packed."""

    @abc.abstractmethod
    def arguments(self, leaves: Sequence[Any], statics: Sequence[Any]) -> Sequence[Any]:
        """All arguments of the jitted function."""


class BySlot(Inputs):
    """One argument per argument of the user's function, as `Leaves`."""

    def __init__(self, outlines: Sequence[Outline], static_slots: Sequence[int], changed: type[Exception]) -> None:
        super().__init__(treedef_tuple([outline.tree for outline in outlines]), static_slots, changed)
        ends = [0, *itertools.accumulate(outline.tree.num_leaves for outline in outlines)]
        self._parts = [(outline, slice(*ends[i : i + 2])) for i, outline in enumerate(outlines)]

    def packed(self, leaves: Sequence[Any]) -> tuple[Leaves, ...]:
        """See `Inputs`."""
        return tuple(Leaves(outline, leaves[part]) for outline, part in self._parts)

    def unpacked(self, dynamic: Sequence[Any]) -> Sequence[Any]:
        """See `Inputs`."""
        return [leaf for argument in dynamic for leaf in argument.values]

    def arguments(self, leaves: Sequence[Any], statics: Sequence[Any]) -> Sequence[Any]:
        """See `Inputs`."""
        dynamic = self.packed(leaves)
        if not statics:
            return dynamic
        rest, values = iter(dynamic), dict(zip(self.static_slots, statics, strict=True))
        return [values[i] if i in values else next(rest) for i in range(len(dynamic) + len(statics))]


class ByLeaf(Inputs):
    """`(donated leaves, other leaves, *static arguments)`, so that some leaves of an argument are donated and others are not."""

    def __init__(self, tree: Any, donated: Sequence[int], static_slots: Sequence[int], changed: type[Exception]) -> None:
        super().__init__(tree, static_slots, changed)
        order = (*donated, *sorted(set(range(tree.num_leaves)) - set(donated)))
        self._donated = selection(order[: len(donated)])
        self._others = selection(order[len(donated) :])
        self._inverse = selection(inverse(order))

    def packed(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """See `Inputs`."""
        return self._donated(leaves), self._others(leaves)

    def unpacked(self, dynamic: Sequence[Any]) -> Sequence[Any]:
        """See `Inputs`."""
        donated, others = dynamic
        return self._inverse((*donated, *others))

    def arguments(self, leaves: Sequence[Any], statics: Sequence[Any]) -> Sequence[Any]:
        """See `Inputs`."""
        return *self.packed(leaves), *statics


class Outputs:
    """Leaves of a result; `order` has for each place the number of its leaf, or is None where they stay as they are."""

    def __init__(self, outline: Outline, order: Sequence[int] | None) -> None:
        self.tree = outline.tree
        self._order = None if order is None else selection(order)
        self._inverse = None if order is None else selection(inverse(order))
        self._outline = outline if order is None else Outline(outline.tree, tuple(outline.paths[i] for i in order))

    def packed(self, leaves: Sequence[Any]) -> Leaves:
        """The result of the jitted function."""
        return self._outline.filled(leaves if self._order is None else self._order(leaves))

    def unpacked(self, result: Leaves) -> Sequence[Any]:
        """The leaves that were packed."""
        return result.values if self._inverse is None else self._inverse(result.values)

    def restored(self, result: Leaves) -> Any:
        """The user's result."""
        return self.tree.unflatten(self.unpacked(result))


class CompiledForOthersError(ShardyError, TypeError):
    """A compiled function is called with arguments of another structure; a TypeError in JAX."""


class Rearranged:
    """A jitted function behind the arguments and the result of the user's.

    A call costs a flattening of the arguments and an unflattening of the result, in Python; `jax.jit` has the less to flatten. (A node of
    pytrees that unflattens to the user's result would not do: the fast path of `jax.jit` takes the structure from the first result.)
    """

    def __init__(self, jitted: Any, inputs: Inputs, outputs: Outputs, in_tree: Any) -> None:
        self._jitted = jitted
        self.inputs = inputs
        self._outputs = outputs
        self._in_tree = in_tree

    def run(self, leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
        """Calls the function."""
        return self._outputs.restored(self._jitted(*self.inputs.arguments(leaves, statics)))

    def __call__(self, *slots: Any) -> Any:
        """Calls the function."""
        return self.run(*self.inputs.flat(slots))

    def trace(self, leaves: Sequence[Any], statics: Sequence[Any]) -> Any:
        """As `jax.stages.Wrapped.trace`; see `run`."""
        return _Stage(self._jitted.trace(*self.inputs.arguments(leaves, statics)), self.inputs, self._outputs, self._in_tree)


class _Stage:
    """A stage of JAX: traced, lowered or compiled. Its arguments and results have the structure of the user's."""

    def __init__(self, stage: Any, inputs: Inputs, outputs: Outputs, in_tree: Any) -> None:
        self._stage = stage
        self._inputs = inputs
        self._outputs = outputs
        self.in_tree = in_tree

    def __getattr__(self, name: str) -> Any:
        if name in ("_stage", "_inputs", "_outputs", "in_tree"):  # While it is copied.
            raise AttributeError(name)
        if name == "out_tree":
            return self._outputs.tree
        value = getattr(self._stage, name)
        if name in ("out_info", "output_shardings", "output_formats"):
            return self._outputs.restored(value)
        if name in ("args_info", "in_avals", "input_shardings", "input_formats"):
            return self.in_tree.unflatten(self._inputs.unpacked(value[0]))
        return value

    def lower(self, **options: Any) -> _Stage:
        """As `jax.stages.Traced.lower`."""
        return _Stage(self._stage.lower(**options), self._inputs, self._outputs, self.in_tree)

    def compile(self, *args: Any, **options: Any) -> _Stage:
        """As `jax.stages.Lowered.compile`."""
        return _Stage(self._stage.compile(*args, **options), self._inputs, self._outputs, self.in_tree)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.stages.Compiled.__call__`."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self.in_tree:
            raise CompiledForOthersError(
                "the arguments are not those that the function was compiled for",
                where=f"call of the compiled function, with {_described(tree)}",
                why=f"it was compiled for {_described(self.in_tree)}",
                fix="pass those, without static arguments, or compile for these: .lower(*args).compile()",
            )
        return self._outputs.restored(self._stage(*self._inputs.packed(leaves)))


def _described(tree: Any) -> str:
    """The structure of positional and keyword arguments."""
    args, kwargs = tree.unflatten(["*"] * tree.num_leaves)
    return ", ".join([*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())]) or "no arguments"

"""Jitted functions whose flat inputs and outputs have an order of our choice, behind the structure of the user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax


def picked(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A fast function that takes the elements at these places from a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda leaves: tuple(leaves[i] for i in places)


def undone(order: Sequence[int]) -> list[int]:
    """The order that puts back what was put in this order."""
    places = [0] * len(order)
    for place, leaf in enumerate(order):
        places[leaf] = place
    return places


class Inputs:
    """Arguments as `(donated leaves, other leaves, *static arguments)`.

    So some leaves of an argument are donated and others are not, which `jax.jit` cannot do.

    Args:
        tree: Structure of the arguments that are not static.
        donated: Numbers of the donated leaves, in the order in which they are passed.
        static_slots: Positions of static arguments.
        changed: Raised where a call has another structure.
    """

    def __init__(self, tree: Any, donated: Sequence[int], static_slots: Sequence[int], changed: type[Exception]) -> None:
        order = (*donated, *sorted(set(range(tree.num_leaves)) - set(donated)))
        self._tree = tree
        self._donated = picked(order[: len(donated)])
        self._others = picked(order[len(donated) :])
        self._undo = picked(undone(order))
        self._static = tuple(static_slots)
        self._changed = changed

    def dynamic(self, slots: tuple[Any, ...]) -> tuple[Any, ...]:
        """Donated and other leaves of the arguments that are not static."""
        leaves, tree = jax.tree.flatten(slots)
        if tree != self._tree:
            raise self._changed
        return self._donated(leaves), self._others(leaves)

    def all(self, slots: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same of all arguments, with the static ones."""
        if not self._static:
            return self.dynamic(slots)
        return *self.dynamic(tuple(slot for i, slot in enumerate(slots) if i not in self._static)), *(slots[i] for i in self._static)

    def leaves(self, donated: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        """All leaves in the tree's order."""
        return self._undo((*donated, *others))

    def restored(self, donated: Sequence[Any], others: Sequence[Any]) -> Any:
        """The arguments that are not static."""
        return self._tree.unflatten(self.leaves(donated, others))


class Outputs:
    """Leaves of a result in another order.

    Args:
        tree: Structure of the result.
        order: For each place the number of the leaf that stands there.
    """

    def __init__(self, tree: Any, order: Sequence[int]) -> None:
        self.tree = tree
        self.ordered = picked(order)
        self._undo = picked(undone(order))

    def restored(self, leaves: Sequence[Any]) -> Any:
        """The result."""
        return self.tree.unflatten(self._undo(leaves))


class Rearranged:
    """A jitted function behind the arguments and the result of the user's.

    A call costs a flattening of the arguments or an unflattening of the result more, in Python. (A node of pytrees that unflattens to the
    user's result would not do: the fast path of `jax.jit` takes the structure from the first result.)

    Args:
        jitted: Takes what `inputs` makes of the arguments, and gives a sequence of leaves that `outputs` puts in order.
        inputs: None where it takes the arguments.
        outputs: None where it gives the result.
    """

    def __init__(self, jitted: Any, inputs: Inputs | None, outputs: Outputs | None) -> None:
        self._jitted = jitted
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, *slots: Any) -> Any:
        """Calls the function."""
        inputs, outputs = self._inputs, self._outputs
        result = self._jitted(*(slots if inputs is None else inputs.all(slots)))
        return result if outputs is None else outputs.restored(result)

    def lower(self, *slots: Any) -> Any:
        """As `jax.stages.Wrapped.lower`."""
        return self.trace(*slots).lower()

    def trace(self, *slots: Any) -> Any:
        """As `jax.stages.Wrapped.trace`."""
        return _Stage(self._jitted.trace(*(slots if self._inputs is None else self._inputs.all(slots))), self._inputs, self._outputs)


class _Stage:
    """A stage of JAX: traced, lowered or compiled. What it says of arguments and results is in the structure of the user's."""

    def __init__(self, stage: Any, inputs: Inputs | None, outputs: Outputs | None) -> None:
        self._stage = stage
        self._inputs = inputs
        self._outputs = outputs

    def __getattr__(self, name: str) -> Any:
        if name in ("_stage", "_inputs", "_outputs"):  # While it is copied.
            raise AttributeError(name)
        found = getattr(self._stage, name)
        if self._outputs is not None and name in ("out_info", "output_shardings", "output_formats"):
            return self._outputs.restored(found)
        if self._outputs is not None and name == "out_tree":
            return self._outputs.tree
        if self._inputs is not None and name in ("args_info", "in_avals", "input_shardings", "input_formats"):
            return self._inputs.restored(*found[0]), {}
        if self._inputs is not None and name == "in_tree":
            return jax.tree.structure(self.args_info)
        return found

    def lower(self, **options: Any) -> _Stage:
        """As `jax.stages.Traced.lower`."""
        return _Stage(self._stage.lower(**options), self._inputs, self._outputs)

    def compile(self, *args: Any, **options: Any) -> _Stage:
        """As `jax.stages.Lowered.compile`."""
        return _Stage(self._stage.compile(*args, **options), self._inputs, self._outputs)

    def __call__(self, *dynamic: Any) -> Any:
        """As `jax.stages.Compiled.__call__`."""
        result = self._stage(*(dynamic if self._inputs is None else self._inputs.dynamic(dynamic)))
        return result if self._outputs is None else self._outputs.restored(result)

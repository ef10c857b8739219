"""Donated buffers: what may not be passed, what can be donated, and what a compiled program does with them.

On several devices jaxlib does not survive a deleted buffer, nor a donated one that is passed twice, so every call is looked at before it
is dispatched. The look costs about 0.1 microseconds per array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr
from jax.interpreters import partial_eval

from shardy_py.backends.compiled_text import aliases_in
from shardy_py.plan.donation import arrangement
from shardy_py.plan.plan import Plan

Paths = Callable[[], Sequence[str]]


class Errors(Protocol):
    """Makes the errors, in the words of the API."""

    def deleted(self, path: str, leaf: Any) -> Exception:
        """The leaf's buffer was donated or deleted."""
        ...

    def twice(self, path: str, first: str, leaf: Any, same: bool = True) -> Exception:
        """One array, or two that share memory, stand at two paths, at least one of them donated."""
        ...


class Guard:
    """Checks the arguments of calls of one layout.

    Args:
        donated: Slots whose buffers are donated.

    Attributes:
        donated: The same.
        apart: Whether the last look at the memory of the arguments found nothing shared; None before the first.
    """

    __slots__ = ("_array_deleted", "_deleted", "apart", "donated")

    def __init__(self, donated: Sequence[int]) -> None:
        self.donated = frozenset(donated)
        self.apart: bool | None = None if donated else True
        self._deleted: dict[type, Callable[[Any], bool]] = {}
        self._array_deleted: Callable[[Any], bool] = _refused

    def bad(self, slots: Sequence[Any]) -> bool:
        """Whether some leaf may be bad; `explain` tells."""
        leaves = jax.tree.leaves(slots)
        try:
            # Most calls pass arrays of one class only, whose method takes them all.
            deleted = any(map(self._array_deleted, leaves))
        except (AttributeError, TypeError):
            deleted = self._any_deleted(leaves)
        return deleted or self.apart is False or (bool(self.donated) and len(set(map(id, leaves))) != len(leaves))

    def _any_deleted(self, leaves: Sequence[Any]) -> bool:
        known = self._deleted
        for leaf in leaves:
            method = known.get(type(leaf))
            if method is None:
                method = known[type(leaf)] = self._learn(leaf)
            if method(leaf):
                return True
        return False

    def _learn(self, leaf: Any) -> Callable[[Any], bool]:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return _not_deleted
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            self._array_deleted = type(leaf).is_deleted
        return type(leaf).is_deleted

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
                if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
                    continue
                if leaf.is_deleted():
                    raise errors.deleted(path, leaf)
                donated = slot in self.donated
                first, before = seen.setdefault(id(leaf), (path, donated))
                if first != path and (donated or before):
                    raise errors.twice(path, first, leaf)

    def look_at_memory(self, slots: Sequence[Any], paths: Paths, errors: Errors) -> None:
        """Raises where a donated array and another one share memory, as two that `jax.device_put` made of one array may.

        It takes tens of microseconds per array, so it is for first calls, and those after one that did not pass.

        Args:
            slots: The arguments.
            paths: Gives one path per leaf.
            errors: Makes the errors.
        """
        seen: dict[tuple[Any, int], tuple[int, bool]] = {}
        position = -1
        for slot, argument in enumerate(slots):
            donated = slot in self.donated
            for leaf in jax.tree.leaves(argument):
                position += 1
                for place in _places(leaf):
                    first, before = seen.setdefault(place, (position, donated))
                    if first != position and (donated or before):
                        self.apart = False
                        names = paths()
                        raise errors.twice(names[position], names[first], leaf, same=False)
        self.apart = True


def _places(leaf: Any) -> list[tuple[Any, int]]:
    """Device and address of each piece of an array; none on a single device, where JAX itself refuses what is passed twice."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return []
    if len(leaf.sharding.device_set) == 1 or not leaf.nbytes:
        return []
    try:
        pieces = [leaf.addressable_data(i) for i in range(len(leaf.sharding.addressable_devices))]
        return [(next(iter(piece.devices())), piece.unsafe_buffer_pointer()) for piece in pieces]
    except (RuntimeError, NotImplementedError):  # A platform that does not tell.
        return []


def _not_deleted(leaf: Any) -> bool:
    return False


def _refused(leaf: Any) -> bool:
    raise TypeError


def used_inputs(closed: ClosedJaxpr) -> list[bool]:
    """For each input whether JAX keeps it when it compiles."""
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return list(used)


def why_off() -> str:
    """The setting of JAX with which it donates nothing; empty where it donates."""
    if jax.config.jax_debug_nans:  # pyright: ignore[reportAttributeAccessIssue]
        return "jax_debug_nans is set, with which JAX donates nothing, to run again what made a NaN"
    return ""


def check_compiled(compiled: Any, plan: Plan) -> list[str]:
    """The differences between a plan's donation and what the compiled program does; empty where there is none.

    Args:
        compiled: `step.lower(...).compile()`.
        plan: The plan of the same call.
    """
    laid_out = arrangement(plan.donation, plan.program, plan.outputs)
    order = laid_out.outputs or tuple(range(len(plan.outputs)))
    place = {output: position for position, output in enumerate(order)}
    wanted: dict[int, tuple[int, str]] = {}
    for donated in plan.donation:
        if donated.output is not None and donated.parameter is not None:
            parameter = donated.parameter if laid_out.leaves is None else laid_out.leaves.index(donated.input)
            wanted[place[donated.output]] = parameter, donated.path
    found = {alias.output[0] if alias.output else 0: alias.parameter for alias in aliases_in(compiled.as_text()).pairs}
    differences = []
    for position, output in enumerate(order):
        parameter, path = wanted.get(position, (None, ""))
        has = found.get(position)
        if has != parameter:
            planned = f"{path}, parameter {parameter}" if path else "no input"
            compiled_to = "that of no input" if has is None else f"that of parameter {has}"
            differences.append(f"{plan.outputs[output].path} is to reuse the memory of {planned}, but has {compiled_to}")
    return differences

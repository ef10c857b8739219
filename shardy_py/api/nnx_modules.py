"""Flax NNX modules among the arguments: their mutations (BatchNorm statistics, RNG counts, optimizer state) are kept.

As `nnx.jit`: modules are split into structure and state, the function runs on modules made from the state, and what it changed is
written back. Flax is not imported; where no one has imported `flax.nnx`, there are no modules.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import jax

from shardy_py.api.trees import location_of
from shardy_py.errors import UserError

if TYPE_CHECKING:
    from shardy_py.api.calls import Settings


def _is_object(x: Any) -> bool:
    """Whether a node of the arguments is a module, an optimizer, RNG streams: anything NNX that is mutable."""
    nnx: Any = sys.modules["flax.nnx"]
    return isinstance(x, getattr(nnx, "Pytree", nnx.Module))


def present(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is a mutable NNX object, or a pytree that holds one."""
    return "flax.nnx" in sys.modules and any(map(_is_object, jax.tree.leaves((args, kwargs), is_leaf=_is_object)))


@dataclasses.dataclass(frozen=True)
class OpenedModules:
    """A call of a function on modules as one on their states, which stand in the place of each."""

    fun: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    objects: tuple[Any, ...]

    def write_back(self, states: Any) -> None:
        """Puts new states into the modules."""
        cast(Any, sys.modules["flax.nnx"]).update(self.objects, states)


def opened(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenedModules:
    """The call of a function on modules as one on their states."""
    nnx: Any = sys.modules["flax.nnx"]
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_object)
    places = tuple(i for i, leaf in enumerate(leaves) if _is_object(leaf))
    objects = tuple(leaves[i] for i in places)
    graph, state = nnx.split(objects)
    states = dict(state.items())
    for number, i in enumerate(places):
        leaves[i] = states.get(number, nnx.State({}))
    pure_args, pure_kwargs = jax.tree.unflatten(tree, leaves)
    return OpenedModules(_pure(fun, graph, tree, places), pure_args, pure_kwargs, objects)


@functools.lru_cache(maxsize=256)
def _pure(fun: Any, graph: Any, tree: Any, places: tuple[int, ...]) -> Any:
    """The function on states: gives its result and the new states."""
    nnx: Any = sys.modules["flax.nnx"]

    @functools.wraps(fun)
    def pure(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        leaves = tree.flatten_up_to((args, kwargs))
        objects = nnx.merge(graph, nnx.State({number: leaves[i] for number, i in enumerate(places)}))
        for number, i in enumerate(places):
            leaves[i] = objects[number]
        full_args, full_kwargs = jax.tree.unflatten(tree, leaves)
        result = fun(*full_args, **full_kwargs)
        after, state = nnx.split(objects)
        if after != graph:
            raise UserError(
                "the function changes the structure of a module",
                where=location_of(fun),
                why="variables were added, removed or shared in another way; only their values may change",
                fix="create all variables when the module is built",
            )
        return result, state

    return pure


def as_pure(settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Settings, tuple[Any, ...], dict[str, Any]]:
    """Settings and arguments of the pure function; unchanged where there are no modules."""
    if not present(args, kwargs):
        return settings, args, kwargs
    call = opened(settings.fun, args, kwargs)
    return _pure_settings(settings, call), call.args, call.kwargs


def _pure_settings(settings: Settings, call: OpenedModules) -> Settings:
    out = settings.out_shardings
    return dataclasses.replace(settings, fun=call.fun, out_shardings=None if out is None else (out, None))


def call(settings: Settings, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a function on modules and writes back their new states."""
    call = opened(settings.fun, args, kwargs)
    result, state = run(_pure_settings(settings, call), call.args, call.kwargs, None)
    call.write_back(state)
    return result

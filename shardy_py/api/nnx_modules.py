"""Flax NNX modules among the arguments: their mutations (BatchNorm statistics, RNG counts, optimizer state) are kept.

As `nnx.jit`: modules are split into structure and state, the function runs on modules made from the state, and what it changed is
written back. Flax is not imported; where no one has imported `flax.nnx`, there are no modules.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import TYPE_CHECKING, Any

import jax

from shardy_py.api.errors import UserError
from shardy_py.api.trees import location_of

if TYPE_CHECKING:
    from shardy_py.api.auto import AutoSharded
    from shardy_py.api.request import Settings


def _nnx() -> Any:
    return sys.modules.get("flax.nnx")


def present(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is a module, or a pytree that holds one."""
    nnx = _nnx()
    if nnx is None:
        return False
    module = nnx.Module
    return any(isinstance(leaf, module) for leaf in jax.tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, module)))


@dataclasses.dataclass(frozen=True)
class _Split:
    """Arguments with the state of each module in its place."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modules: tuple[Any, ...]
    graph: Any


def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Split:
    nnx = _nnx()
    modules: list[Any] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, nnx.Module):
            return leaf
        modules.append(leaf)
        return _Place(len(modules) - 1)

    placed = jax.tree.map(place, (args, kwargs), is_leaf=lambda x: isinstance(x, nnx.Module))
    graph, state = nnx.split(tuple(modules))
    states = dict(state.items()) if hasattr(state, "items") else dict(enumerate(state))
    filled = jax.tree.map(lambda leaf: states.get(leaf.index, nnx.State({})) if isinstance(leaf, _Place) else leaf, placed)
    return _Split(filled[0], filled[1], tuple(modules), graph)


@dataclasses.dataclass(frozen=True)
class _Place:
    index: int


@functools.lru_cache(maxsize=256)
def _pure(fun: Any, graph: Any, count: int) -> Any:
    """The function on states: gives its result and the new states."""
    nnx = _nnx()

    @functools.wraps(fun)
    def pure(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        found: list[Any] = []

        def collect(leaf: Any) -> Any:
            if isinstance(leaf, nnx.State):
                found.append(leaf)
            return leaf

        is_state = lambda x: isinstance(x, nnx.State)  # noqa: E731
        jax.tree.map(collect, (args, kwargs), is_leaf=is_state)
        modules = nnx.merge(graph, nnx.State(dict(enumerate(found))))
        remaining = iter(modules)
        full_args, full_kwargs = jax.tree.map(lambda leaf: next(remaining) if is_state(leaf) else leaf, (args, kwargs), is_leaf=is_state)
        result = fun(*full_args, **full_kwargs)
        after, state = nnx.split(modules)
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
    split = _split(args, kwargs)
    return _pure_settings(settings, split), split.args, split.kwargs


def _pure_settings(settings: Settings, split: _Split) -> Settings:
    out = settings.out_shardings
    return dataclasses.replace(
        settings, fun=_pure(settings.fun, split.graph, len(split.modules)), out_shardings=None if out is None else (out, None)
    )


def call(function: AutoSharded, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a function on modules and writes back what it changed."""
    split = _split(args, kwargs)
    settings = _pure_settings(function._settings, split)
    result, state = function._run(settings, split.args, split.kwargs, None)
    _nnx().update(split.modules, state)
    return result

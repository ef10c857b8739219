"""Pytrees as lists of leaves, so that user classes are only rebuilt around tracers and arrays.

`jax.make_jaxpr` returns trees of `ShapeDtypeStruct`s, and `jax.jit` takes trees of shardings. Classes whose constructor looks at its fields
(distributions, boundary conditions) refuse both. A `Leaves` stands in their place: its structure is known without them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr
from jax.tree_util import KeyPath, keystr, register_pytree_with_keys_class, tree_flatten_with_path


@dataclass(frozen=True, eq=False)
class Outline:
    """The structure of a pytree, with the path to each leaf."""

    tree: Any
    paths: tuple[KeyPath, ...]

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """The path of each leaf as text: `['mlp'].w`."""
        return tuple(map(keystr, self.paths))

    def children(self) -> list[tuple[Any, Outline]]:
        """The parts of the root, each with its key; None is the key of one without leaves."""
        parts = []
        rest = iter(self.paths)
        for child in self.tree.children():
            paths = tuple(itertools.islice(rest, child.num_leaves))
            parts.append((paths[0][0] if paths else None, Outline(child, tuple(path[1:] for path in paths))))
        return parts


@register_pytree_with_keys_class
class Leaves:
    """The leaves of a pytree, itself a pytree of the same leaves under the same paths.

    Example:
        >>> leaves = Leaves.of({"b": 1, "w": (2, 3)})
        >>> leaves.outline.keys, jax.tree.map(str, leaves).tree()
        (("['b']", "['w'][0]", "['w'][1]"), {'b': '1', 'w': ('2', '3')})
    """

    __slots__ = ("outline", "values")

    def __init__(self, outline: Outline, values: Sequence[Any]) -> None:
        self.outline = outline
        self.values = values

    @classmethod
    def of(cls, tree: Any) -> Leaves:
        """The leaves of a pytree."""
        pairs, structure = tree_flatten_with_path(tree)
        return cls(Outline(structure, tuple(path for path, _ in pairs)), [value for _, value in pairs])

    def tree(self) -> Any:
        """The pytree, its classes built around the values."""
        return self.outline.tree.unflatten(self.values)

    def tree_flatten(self) -> tuple[Sequence[Any], Outline]:
        """As JAX asks a node."""
        return self.values, self.outline

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[str, Any], ...], Outline]:
        """As JAX asks a node; whole paths are its keys."""
        return tuple(zip(self.outline.keys, self.values, strict=True)), self.outline

    @classmethod
    def tree_unflatten(cls, outline: Outline, values: Sequence[Any]) -> Leaves:
        """As JAX asks a node."""
        return cls(outline, values)


def trace_leaves(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[ClosedJaxpr, Leaves]:
    """As `jax.make_jaxpr(fun, return_shape=True)`, with `Leaves` in place of trees: the function gets the trees, built around tracers.

    Args:
        fun: The function. JAX remembers jaxprs by function; this one is taken for a new one.
    """

    @functools.wraps(fun)
    def of_trees(*args: Any, **kwargs: Any) -> Leaves:
        trees = {name: value.tree() if isinstance(value, Leaves) else value for name, value in kwargs.items()}
        return Leaves.of(fun(*[value.tree() if isinstance(value, Leaves) else value for value in args], **trees))

    return jax.make_jaxpr(of_trees, return_shape=True)(*args, **kwargs)  # pyright: ignore[reportReturnType]

"""Leaves of arguments and results other than arrays, such as the activation functions of an Equinox module: they are static.

As `equinox.filter_jit` does it: each stands in the structure of its pytree, so that other ones are another signature. Numbers of Python are
traced, as under `jax.jit`, except numbers in Equinox modules, which are their options.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.tree_util import register_pytree_node_class


@register_pytree_node_class
class Static:
    """A leaf that is part of the structure of its pytree; of values without a hash each is like itself only."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Static]:
        """As JAX asks a node."""
        return (), self

    @classmethod
    def tree_unflatten(cls, static: Static, _: Iterable[Any]) -> Static:
        """As JAX asks a node."""
        return static

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or (type(self.value).__hash__ is not None and bool(self.value == other.value))

    def __hash__(self) -> int:
        try:
            return hash(self.value)
        except TypeError:
            return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


_NUMBERS = frozenset((bool, complex, float, int))
_PLAIN = frozenset((*_NUMBERS, jax.ShapeDtypeStruct, np.ndarray))


def _is_static(leaf: Any) -> bool:
    """Whether a leaf is neither an array, nor something that is meant as one."""
    if type(leaf) in _PLAIN or isinstance(leaf, (jax.Array, np.generic, np.ndarray)):
        return False
    return isinstance(leaf, type) or not any(hasattr(leaf, name) for name in ("__array__", "__jax_array__", "__dlpack__", "dtype"))


def _is_module(node: Any) -> bool:
    """Whether a node is a module of Equinox."""
    return any(kind.__name__ == "Module" and kind.__module__.startswith("equinox.") for kind in type(node).__mro__)


def static_tree(tree: Any) -> Any:
    """A pytree whose leaves other than arrays are part of its structure; a leaf alone is returned as it is."""

    def option(leaf: Any) -> Any:
        return Static(leaf) if type(leaf) in _NUMBERS else leaf

    leaves, structure = jax.tree.flatten(tree)
    has_options = "equinox" in sys.modules and not _NUMBERS.isdisjoint(map(type, leaves))
    if jax.tree_util.treedef_is_leaf(structure) or not (has_options or any(map(_is_static, leaves))):
        return tree
    if has_options:
        tree = jax.tree.map(lambda node: jax.tree.map(option, node) if _is_module(node) else node, tree, is_leaf=_is_module)
    return jax.tree.map(lambda leaf: Static(leaf) if _is_static(leaf) else leaf, tree)


def user_tree(tree: Any) -> Any:
    """The pytree again."""
    return jax.tree.map(lambda node: node.value if type(node) is Static else node, tree, is_leaf=lambda node: type(node) is Static)


def array_tree(tree: Any) -> Any:
    """The pytree with None for its static leaves, as `equinox.filter` gives it."""
    return jax.tree.map(lambda node: None if type(node) is Static else node, tree, is_leaf=lambda node: type(node) is Static)


def has_static_leaves(structure: Any) -> bool:
    """Whether leaves are part of a structure."""
    node = structure.node_data()
    return (node is not None and node[0] is Static) or any(map(has_static_leaves, structure.children()))


@functools.lru_cache(maxsize=256)
def of_trees(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a function of pytrees into one of the trees that `static_tree` returns."""

    @functools.wraps(fun)
    def of_arrays(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = user_tree((args, kwargs))
        return fun(*args, **kwargs)

    return of_arrays

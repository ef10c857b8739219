"""Pytree paths in the user's notation, and the description of one leaf."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import keystr

from shardy_py.frontends.cells import cell_name


@dataclass(frozen=True)
class Leaf:
    """A leaf of the arguments or of the result: path, shape, element type, and memory kind where that is not the device's."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    memory_kind: str = ""

    def __str__(self) -> str:
        return f"{self.path} {self.dtype}[{','.join(map(str, self.shape))}]"


def one_level(node: object) -> list[tuple[str, Any]] | None:
    """The children of a node with their keys, or None for a leaf."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if len(pairs) == 1 and pairs[0][0] == ():
        return None
    return [(keystr(path), child) for path, child in pairs]


def parameter_names(fun: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` positional parameters; `args[2]` for those that `*args` takes."""
    names: list[str] = []
    variadic = "args"
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (ValueError, TypeError):
        parameters = []
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            variadic = parameter.name
    names = names[:count]
    return names + [f"{variadic}[{i}]" for i in range(count - len(names))]


def location_of(fun: Callable[..., Any]) -> str:
    """`file:line (name)` of a function's definition; empty for builtins."""
    target = inspect.unwrap(fun) if callable(fun) else fun
    while hasattr(target, "func"):  # functools.partial
        target = target.func  # type: ignore[attr-defined]
    code = getattr(target, "__code__", None)
    return "" if code is None else f"{cell_name(code.co_filename)}:{code.co_firstlineno} ({getattr(target, '__name__', 'function')})"

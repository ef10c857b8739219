"""The structure of arguments and results as JSON, so that trees of shardings can be rebuilt without the function.

`["leaf"]`, `["none"]`, `["list", [...]]`, `["tuple", [...]]`, `["dict", [keys], [...]]`, and `["node", class, [keys], [...]]` for anything
else that is a pytree, which becomes a dict when it is read: no class is looked up by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardy_py.plan.store.checks import StoreError, described, items, text

DEEPEST = 100
"""Limit of the depth of trees."""


@dataclass(frozen=True)
class Structure:
    """The pytree structures of a stored plan; `devices` is empty for 0, 1, 2, ... or a mesh without any."""

    inputs: Any
    outputs: Any
    names: tuple[str, ...]
    axis_types: tuple[str, ...]
    devices: tuple[int, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """The structure as JSON data."""
        lists = {"names": list(self.names), "axis_types": list(self.axis_types), "devices": list(self.devices)}
        return {"inputs": self.inputs, "outputs": self.outputs, **lists}


MEMBERS = ("inputs", "outputs", "names", "axis_types", "devices")


def checked_tree(data: Any, leaves: int) -> Any:
    """The data of a tree with so many leaves; raises StoreError for any other data."""
    count = leaves_of(data)
    if count != leaves:
        raise StoreError(f"a tree of {count} leaves where there are {leaves} values")
    return data


def leaves_of(data: Any) -> int:
    """The number of leaves of a tree; raises StoreError for any other data."""
    return sum(1 for _ in _walked(data))


def checked_arguments(data: Any, leaves: int, names: int) -> Any:
    """The data of `(args, kwargs)` with so many leaves and positional arguments; raises StoreError for any other data."""
    checked_tree(data, leaves)
    args, kwargs = items(children_of(data), 2)
    if data[0] != "tuple" or args[0] != "tuple" or kwargs[0] != "dict":
        raise StoreError("expected a tuple of positional arguments and a dict of others")
    if len(children_of(args)) != names:
        raise StoreError(f"{names} names of {len(children_of(args))} arguments")
    return data


def _walked(data: Any) -> Iterator[None]:
    waiting: list[tuple[Any, int]] = [(data, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > DEEPEST:
            raise StoreError(f"a tree that is deeper than {DEEPEST}")
        if items(node) and node[0] == "leaf":
            items(node, 1)
            yield
            continue
        waiting += [(child, depth + 1) for child in children_of(node)]


def children_of(node: Any) -> list[Any]:
    """The children of a node that is not a leaf; raises StoreError for any other data."""
    kind = node[0] if type(node) is list and node else None
    if kind == "none":
        items(node, 1)
        return []
    if kind in ("list", "tuple"):
        return items(items(node, 2)[1])
    if kind == "dict":
        _, keys, children = items(node, 3)
    elif kind == "node":
        _, name, keys, children = items(node, 4)
        text(name)
    else:
        raise StoreError(f"expected a tree, got {described(node)}")
    for key in items(keys, len(items(children))):
        if type(key) not in (str, int, bool):
            raise StoreError(f"expected a key, got {described(key)}")
    if len(set(keys)) != len(keys):
        raise StoreError("a key stands twice in a tree")
    return children

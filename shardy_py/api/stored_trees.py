"""Stores the structure of trees of shardings as data and rebuilds them, also where their classes refuse shardings or are unknown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, tree_flatten_with_path

from shardy_py.api.meshes import AnyMesh, view_of
from shardy_py.api.static_leaves import Static, array_tree, has_static_leaves
from shardy_py.backends.named_shardings import AnyMesh as JaxMesh
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import MeshError, ShardyError, did_you_mean
from shardy_py.frontends.leaves import Outline
from shardy_py.plan.record import PlanRecord, Structure, Tree
from shardy_py.plan.values import PlannedValue

_KEYS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}
"""Names of PRNG implementations in types, and in `jax.random.key`."""


def fitting_mesh(plan: PlanRecord, mesh: AnyMesh, user: str) -> JaxMesh:
    """A mesh with the axes of a plan; of a mapping, over the first devices there are. Raises MeshError if it has other axes."""
    view = view_of(mesh, user)
    if view.sizes != dict(plan.mesh.shape):
        planned = sizes_text(plan.mesh.shape)
        raise MeshError(
            f"the mesh has {view.describe()}, the plan is for {planned}",
            where=f"mesh= of {user}, plan of {plan.name}",
            why="a plan's shardings apply only to its own axes and sizes",
            fix="plan for the new mesh, and use that plan",
        )
    return view.runnable() if isinstance(mesh, Mapping) else view.user_mesh


def _dtype(value: PlannedValue) -> Any:
    name = value.dtype
    if name.startswith("key<") and name[4:-1] in _KEYS:
        return jax.eval_shape(lambda: jax.random.key(0, impl=_KEYS[name[4:-1]])).dtype
    try:
        return jnp.dtype(name)
    except TypeError:
        raise ShardyError(f"{value.path} has the element type {name}, which this JAX does not know") from None


def _like(structs: Sequence[Any], like: Any, what: str, plan: PlanRecord) -> Any:
    leaves, structure = jax.tree.flatten(like)
    if len(leaves) != len(structs):
        raise ShardyError(
            f"like= has {len(leaves)} leaves, {what} has {len(structs)}",
            where=f"abstract_state, plan of {plan.name}",
            fix="pass a tree of the structure that was planned for, of arrays or of jax.ShapeDtypeStruct",
        )
    for number, (leaf, struct) in enumerate(zip(leaves, structs)):
        shape = getattr(leaf, "shape", None)
        if shape is not None and tuple(shape) != struct.shape:
            raise ShardyError(
                f"leaf {number} of like= has the shape {tuple(shape)}, the plan has {struct.shape}",
                where=f"abstract_state, plan of {plan.name}",
            )
    return jax.tree.unflatten(structure, structs)


def structure_of(outline: Outline) -> Tree:
    """The structure of a pytree as a plan is stored with it.

    Example:
        >>> from shardy_py.frontends.leaves import Leaves
        >>> tree = structure_of(Leaves.of({"w": 1, "b": (2, None)}).outline)
        >>> tree.kind, tree.keys, [child.kind for child in tree.children[0].children]
        ('dict', ('b', 'w'), ['leaf', 'none'])
    """
    tree = outline.tree
    if tree.num_nodes == tree.num_leaves == 1:
        return Tree("leaf")
    if tree == jax.tree.structure(None) or tree.node_data()[0] is Static:
        return Tree("none")
    parts = outline.children()
    children = tuple(structure_of(part) for _, part in parts)
    kind = tree.node_data()[0]
    if kind in (list, tuple):
        return Tree("list" if kind is list else "tuple", children)
    if kind is dict:
        return Tree("dict", children, tuple(map(_plain, tree.node_data()[1])))
    return Tree("node", children, tuple(_keys(outline)), f"{kind.__module__}.{kind.__qualname__}")


def rebuilt(outline: Outline, leaves: Sequence[Any]) -> Any:
    """A tree of shardings or types, None for leaves that are not arrays; a node whose class refuses them is a dict by child names."""
    try:
        tree = outline.tree.unflatten(leaves)
        return array_tree(tree) if has_static_leaves(outline.tree) else tree
    except Exception:  # whatever a user's constructor raises
        kind, rest = outline.tree.node_data()[0], iter(leaves)
        children = [rebuilt(part, list(itertools.islice(rest, part.tree.num_leaves))) for _, part in outline.children()]
        if kind in (list, tuple):
            return kind(children)
        return dict(zip(outline.tree.node_data()[1] if kind is dict else _keys(outline), children, strict=True))


class _Child:
    """Stands for a child of a node."""


def _keys(outline: Outline) -> list[Any]:
    """Names of the children of a node; numbers where names are missing or not distinct."""
    keys = [None if key is None else _key(key) for key, _ in outline.children()]
    if None in keys:  # Only the node itself can say what it calls a child without leaves.
        try:
            node = outline.tree.unflatten([_Child() for _ in outline.paths])
            children, _ = tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
            keys = [_key(path[0]) for path, _ in children]
        except Exception:  # whatever a user's constructor raises
            pass
    named = None not in keys and len(set(keys)) == len(keys) == len(outline.children())
    return keys if named else list(range(len(outline.children())))


def _key(key: Any) -> Any:
    if isinstance(key, DictKey):
        return _plain(key.key)
    if isinstance(key, GetAttrKey):
        return key.name
    return key.idx if isinstance(key, SequenceKey) else key.key if isinstance(key, FlattenedIndexKey) else str(key)


def _plain(key: Any) -> Any:
    return key if type(key) in (str, int) else str(key)


def tree_of(structure: Tree, leaves: Iterator[Any]) -> Any:
    """A tree of dicts, lists and tuples; a node of another class is a dict from the names of its children."""
    if structure.kind == "leaf":
        return next(leaves)
    children = [tree_of(child, leaves) for child in structure.children]
    if structure.kind == "none":
        return None
    if structure.kind in ("list", "tuple"):
        return children if structure.kind == "list" else tuple(children)
    return dict(zip(structure.keys, children))


def abstract_mesh(plan: PlanRecord, structure: Structure) -> AbstractMesh:
    """The mesh of a stored plan, which knows of no devices."""
    kinds = tuple(AxisType.__members__.get(name, AxisType.Auto) for name in structure.axis_types)
    sizes = tuple(axis.size for axis in plan.mesh.axes)
    return AbstractMesh(sizes, plan.mesh.axis_names, axis_types=kinds)


def devices_of(mesh: JaxMesh) -> tuple[int, ...]:
    """The ids of a mesh's devices, in its order; none where they are 0, 1, 2, ... and for a mesh without devices."""
    if isinstance(mesh, AbstractMesh):
        return ()
    ids = tuple(int(device.id) for device in mesh.devices.flat)
    return () if ids == tuple(range(len(ids))) else ids


@dataclass(frozen=True)
class PlanTrees:
    """The arguments and the result of a planned function, as trees over a mesh.

    Attributes:
        counts: The number of leaves of each argument by name, keyword arguments last.
        arguments: Builds `(args, kwargs)` around their leaves.
        result: Builds the result around its leaves.
    """

    counts: Mapping[str, int]
    arguments: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[Any, Any]]]
    result: Callable[[Sequence[Any]], Any]
    mesh: Callable[[], JaxMesh]

    def inputs(self, plan: PlanRecord) -> Any:
        """The input shardings: like the tuple of arguments, `(args, kwargs)` where there are keyword arguments."""
        args, kwargs = self.arguments(self._named(plan.inputs))
        return (args, kwargs) if kwargs else args

    def outputs(self, plan: PlanRecord) -> Any:
        """The output shardings, like the result."""
        return self.result(self._named(plan.outputs))

    def abstract(self, plan: PlanRecord, argument: str | int | None, mesh: AnyMesh | None, like: Any) -> Any:
        """See `Plan.abstract_state`. Raises ShardyError if there is not a such argument, or what was given does not fit."""
        named = NamedShardings(self.mesh() if mesh is None else fitting_mesh(plan, mesh, "abstract_state"))
        structs = [jax.ShapeDtypeStruct(v.shape, _dtype(v), sharding=named(v.sharding, len(v.shape), v.memory_kind)) for v in plan.inputs]
        args, kwargs = self.arguments(structs)
        if argument is None:
            whole = (args, kwargs) if kwargs else args
            return whole if like is None else _like(structs, like, "the arguments", plan)
        names, count = list(self.counts), len(args)
        number = argument % count if isinstance(argument, int) and -count <= argument < count else None
        if isinstance(argument, str) and argument in names:
            number = names.index(argument)
        if number is None:
            raise ShardyError(
                f"the function has no argument {argument!r}",
                where=f"plan of {plan.name}",
                why=f"its arguments are {', '.join(names) or 'none'}",
                fix=did_you_mean(str(argument), names),
            )
        if like is None:
            return [*args, *kwargs.values()][number]
        first = sum(self.counts[name] for name in names[:number])
        return _like(structs[first : first + self.counts[names[number]]], like, names[number], plan)

    def _named(self, values: Sequence[PlannedValue]) -> list[Any]:
        named = NamedShardings(self.mesh())
        return [named(value.sharding, len(value.shape), value.memory_kind) for value in values]


def stored_trees(plan: PlanRecord, structure: Structure) -> PlanTrees:
    """The trees of a stored plan, whose mesh is an `AbstractMesh` of the axes of the plan."""
    args, kwargs = structure.inputs.children
    trees = zip((*structure.names, *map(str, kwargs.keys)), (*args.children, *kwargs.children))
    return PlanTrees(
        {name: tree.leaves for name, tree in trees},
        lambda leaves: tree_of(structure.inputs, iter(leaves)),
        lambda leaves: tree_of(structure.outputs, iter(leaves)),
        lambda: abstract_mesh(plan, structure),
    )

"""The arguments of a planned function as `jax.ShapeDtypeStruct`s with their planned shardings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardy_py.api.errors import MeshError, did_you_mean
from shardy_py.api.meshes import AnyMesh, view_of
from shardy_py.backends import named_shardings
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import ShardyError
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue

_KEYS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}
"""Names of PRNG implementations in types, and in `jax.random.key`."""


@dataclass(frozen=True)
class Argument:
    """One argument of the function."""

    name: str
    leaves: int
    build: Callable[[Sequence[Any]], Any]


def abstract_state(
    plan: PlanRecord,
    positional: Sequence[Argument],
    keywords: Sequence[Argument],
    own: named_shardings.AnyMesh,
    argument: str | int | None,
    mesh: AnyMesh | None,
    like: Any,
) -> Any:
    """See `Plan.abstract_state`. Raises ShardyError if there is not a such argument, or what was given does not fit."""
    named = named_shardings.NamedShardings(own if mesh is None else fitting_mesh(plan, mesh, "abstract_state"))
    structs = [jax.ShapeDtypeStruct(v.shape, _dtype(v), sharding=named(v.sharding, len(v.shape), v.memory_kind)) for v in plan.inputs]
    arguments = [*positional, *keywords]
    if argument is None:
        if like is not None:
            return _like(structs, like, "the arguments", plan)
        return all_arguments(positional, keywords, structs)
    names = [part.name for part in arguments]
    count = len(positional)
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
    structs_of_argument = _split(structs, arguments)[number]
    return arguments[number].build(structs_of_argument) if like is None else _like(structs_of_argument, like, arguments[number].name, plan)


def all_arguments(positional: Sequence[Argument], keywords: Sequence[Argument], leaves: Sequence[Any]) -> Any:
    """The tuple of positional arguments; `(args, kwargs)` where there are keyword arguments."""
    arguments = [*positional, *keywords]
    trees = [argument.build(part) for argument, part in zip(arguments, _split(leaves, arguments))]
    args, kwargs = tuple(trees[: len(positional)]), dict(zip((argument.name for argument in keywords), trees[len(positional) :]))
    return (args, kwargs) if kwargs else args


def _split(leaves: Sequence[Any], arguments: Sequence[Argument]) -> list[list[Any]]:
    leaf_iterator = iter(leaves)
    return [list(itertools.islice(leaf_iterator, part.leaves)) for part in arguments]


def fitting_mesh(plan: PlanRecord, mesh: AnyMesh, user: str) -> named_shardings.AnyMesh:
    """A mesh with the axes of a plan; of a mapping, over the first devices there are. Raises MeshError if it has other axes."""
    view = view_of(mesh, user)
    if view.sizes != dict(plan.mesh.shape):
        planned = sizes_text(plan.mesh.shape)
        raise MeshError(
            f"the mesh has {view.describe()}, the plan is for {planned}",
            where=f"mesh= of {user}, plan of {plan.name}",
            why="the shardings of a plan hold for its own axes and sizes",
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

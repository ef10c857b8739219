"""Arguments are moved to their planned shardings before `jax.jit`, so that it compiles once whatever their shardings are.

`jax.jit` would place them too, but it traces and compiles once more when the next call brings the results of this one, which lie on the
mesh where the first arguments did not, and it donates nothing that it has placed. With several processes it refuses to cut host arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardy_py.api.meshes import AnyMesh, view_of
from shardy_py.api.name_rules import OWN
from shardy_py.api.request import PlanRequest
from shardy_py.api.static_leaves import static_tree, user_tree
from shardy_py.api.stored_trees import fitting_mesh
from shardy_py.api.trees import Leaf
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.errors import ShardyError, SpecError
from shardy_py.frontends.context import is_committed, is_extended_dtype, is_tracing
from shardy_py.plan.record import PlanRecord


class Placing:
    """Puts the leaves of calls of one signature on the mesh."""

    def __init__(self, request: PlanRequest, mesh: Mesh | AbstractMesh, shardings: Sequence[NamedSharding]) -> None:
        self._request = request
        self._shardings = shardings
        self._single = math.prod(mesh.axis_sizes) == 1
        self._several_processes = isinstance(mesh, Mesh) and mesh.is_multi_process
        self._axes = mesh.axis_names
        self._named = frozenset(i for i, source in enumerate(request.sources) if source not in ("", OWN))
        self._moves_committed = request.settings.options.misplaced == "move"

    def __call__(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves, moved to the mesh where they do not lie there. Raises SpecError as `cut_for_processes`."""
        try:
            # Most calls bring committed arrays only; on a mesh of one device these need not lie on the mesh.
            if not self._single and not self._moves_committed and all(map(is_committed, leaves)):
                return leaves
        except AttributeError:
            pass  # a number, a numpy array, a tracer
        if is_tracing():
            return leaves
        moved = [i for i, leaf in enumerate(leaves) if self._moves(leaf) or (self._moves_committed and self._is_misplaced(i, leaf))]
        if not moved:
            return leaves
        placed = list(leaves)
        if self._several_processes:
            request = self._request
            for i in moved:
                named = request.shardings[i] is not None
                placed[i] = cut_for_processes(leaves[i], self._shardings[i], named, request.leaves[i], request.location)
            return placed
        for i, leaf in zip(moved, jax.device_put([leaves[i] for i in moved], [self._shardings[i] for i in moved]), strict=True):
            placed[i] = leaf
        return placed

    def _is_misplaced(self, number: int, leaf: Any) -> bool:
        """Whether a committed array's sharding differs from the user's, or, without one, whether it is on other devices."""
        if not isinstance(leaf, jax.Array) or not leaf.committed:
            return False
        own, planned = leaf.sharding, self._shardings[number]
        if number in self._named:
            return own is not planned and not own.is_equivalent_to(planned, leaf.ndim)
        is_there = isinstance(own, NamedSharding) and own.mesh.axis_names == self._axes and own.device_set == planned.device_set
        return not is_there or own.memory_kind != planned.memory_kind

    def _moves(self, leaf: Any) -> bool:
        if isinstance(leaf, jax.Array):
            return not leaf.committed or (self._single and not isinstance(leaf.sharding, NamedSharding))
        return isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex))


def placed_arguments(plan: PlanRecord, args: Any, mesh: AnyMesh) -> Any:
    """See `Plan.place`. Raises ShardyError for other arguments than planned, MeshError for a mesh with other axes or without devices."""
    runnable = view_of(fitting_mesh(plan, mesh, "place")).runnable()
    leaves, tree = jax.tree.flatten(tuple(map(static_tree, args)) if isinstance(args, tuple) else args)
    types = [tuple(np.shape(leaf)) for leaf in leaves]
    if types != [value.shape for value in plan.inputs]:
        wrong = next((i for i, (a, v) in enumerate(zip(types, plan.inputs)) if a != v.shape), min(len(types), len(plan.inputs)))
        planned = str(plan.inputs[wrong]) if wrong < len(plan.inputs) else "no more leaves"
        passed = f"shape {list(types[wrong])}" if wrong < len(types) else "no more leaves"
        raise ShardyError(
            "the arguments differ from those that were planned for",
            where=f"place, plan of {plan.name}",
            why=f"leaf {wrong} has {passed}; the plan has {planned}",
            fix="pass the tuple of arguments, as plan.input_shardings has it",
        )
    named = NamedShardings(runnable)
    shardings = [named(value.sharding, len(value.shape), value.memory_kind) for value in plan.inputs]
    if all(sharding.is_fully_addressable for sharding in shardings):
        return user_tree(tree.unflatten(jax.device_put(leaves, shardings)))
    described = [Leaf(value.path, value.shape, value.dtype) for value in plan.inputs]
    pieces = [cut_for_processes(x, s, False, leaf, plan.name) for x, s, leaf in zip(leaves, shardings, described, strict=True)]
    return user_tree(tree.unflatten(pieces))


def cut_for_processes(leaf: Any, sharding: NamedSharding, named: bool, described: Leaf, location: str) -> Any:
    """A global array of a value that every process has, if `jax.jit` refuses the value itself; other values unchanged.

    With several processes `jax.jit` takes numpy arrays for replicated values, equal in every process, and refuses to shard them: they
    could be each process's part as well. Where no sharding is named, or where each process has all of it, they can only be the former.
    Raises SpecError if the user named the sharding, so that it is not known which is meant.
    """
    if isinstance(leaf, jax.Array) and leaf.committed and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if not isinstance(leaf, (np.ndarray, jax.Array)) or is_extended_dtype(leaf.dtype):
        return leaf
    if isinstance(leaf, np.ndarray) and sharding.is_fully_replicated:
        return leaf
    if isinstance(leaf, np.ndarray) and named and not _is_whole_here(sharding, leaf.shape):
        raise SpecError(
            "a numpy array cannot be sharded over several processes",
            where=f"{described}, argument of {location}",
            why=f"its sharding, {sharding.spec}, spans processes, and a numpy array could be the whole value or this process's part",
            fix="make it global first: jax.make_array_from_process_local_data(sharding, part) with this process's part, or "
            "jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index]) with the whole; plan.input_shardings has "
            "the sharding",
        )
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index], dtype=whole.dtype)


def _is_whole_here(sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Whether the devices of this process hold every part of an array."""
    here = sharding.addressable_devices_indices_map(shape).values()
    return {str(index) for index in here} == {str(index) for index in sharding.devices_indices_map(shape).values()}

"""Tracing on a mesh, whatever mesh is set around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from jax.sharding import AbstractMesh, use_abstract_mesh

R = TypeVar("R")


@contextmanager
def no_mesh() -> Iterator[None]:
    """A context without a mesh."""
    with use_abstract_mesh(AbstractMesh((), ())):
        yield


@contextmanager
def traced_on(mesh: AbstractMesh) -> Iterator[None]:
    """As `jax.sharding.use_abstract_mesh`, which refuses a mesh whose size differs from the `jax.set_mesh` around it."""
    with no_mesh(), use_abstract_mesh(mesh):
        yield


def on_a_mesh_or_none(run: Callable[[], R], mesh: Callable[[], AbstractContextManager[Any]], *, mesh_first: bool) -> R:
    """Runs the user's code on a mesh or on none, and on the other where what it says about meshes does not hold there."""
    first, second = (mesh, no_mesh) if mesh_first else (no_mesh, mesh)
    try:
        with first():
            return run()
    except Exception as error:
        # With a mesh, a shard_map over a mesh object that is not quite this one; without one, whatever needs one.
        if ("context mesh" if mesh_first else "mesh") not in str(error).lower():
            raise
    with second():
        return run()

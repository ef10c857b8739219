"""Tracing on a mesh, whatever mesh is set around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jax.sharding import AbstractMesh, use_abstract_mesh


@contextmanager
def no_mesh() -> Iterator[None]:
    """A context without a mesh."""
    with use_abstract_mesh(AbstractMesh((), ())):
        yield


@contextmanager
def traced_on(mesh: AbstractMesh) -> Iterator[None]:
    """As `jax.sharding.use_abstract_mesh`, which refuses a mesh of another size than that of `jax.set_mesh` around it.

    Args:
        mesh: The mesh.
    """
    with no_mesh(), use_abstract_mesh(mesh):
        yield

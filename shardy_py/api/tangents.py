"""Tangents and cotangents of a call are put where the plan has the values that they belong to.

The transpose of a jitted function takes cotangents as its results are sharded, and refuses committed ones that lie elsewhere. Under
`jax.jit` the user stated that sharding; here the plan did, and a cotangent comes from whatever stands behind the call: a label on the mesh,
or `jax.numpy.ones` under `jax.set_mesh`, which is replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding

from shardy_py.frontends.context import is_staged, is_tracing


class Tangents:
    """The tangents of the arguments, or of the results, of one signature."""

    def __init__(self, shardings: Sequence[NamedSharding]) -> None:
        self._shardings = tuple(shardings)
        self._identities: dict[tuple[int, ...], Callable[..., tuple[Any, ...]]] = {}

    def placed(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves, with derivatives by them that lie as planned."""
        moved = tuple(i for i, leaf in enumerate(leaves) if _is_differentiated(leaf))
        if not moved:
            return leaves
        identity = self._identities.get(moved)
        if identity is None:
            identity = self._identities[moved] = _identity([self._shardings[i] for i in moved])
        out = list(leaves)
        for i, leaf in zip(moved, identity(*[leaves[i] for i in moved]), strict=True):
            out[i] = leaf
        return out


def is_differentiated_here() -> bool:
    """Whether a call runs at once, under a transformation; what is written down is sharded by the program that it becomes part of."""
    return is_tracing() and not is_staged()


def _is_differentiated(leaf: Any) -> bool:
    return isinstance(leaf, Tracer) and jnp.issubdtype(leaf.dtype, np.inexact) and leaf.size > 0


def _identity(shardings: Sequence[NamedSharding]) -> Callable[..., tuple[Any, ...]]:
    """Values as they are, without a copy; their tangents, and on the way back cotangents, wherever these come from, in some shardings."""

    def constrained(*tangents: Any) -> tuple[Any, ...]:
        return tuple(map(lax.with_sharding_constraint, tangents, shardings))

    place = jax.jit(constrained)

    @jax.custom_jvp
    def identity(*values: Any) -> tuple[Any, ...]:
        return values

    @identity.defjvp
    def derivative(values: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return identity(*values), place(*tangents)  # values may have tangents of their own, of another derivative

    return identity

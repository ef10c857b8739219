"""Arrays that stand for values between programs: several values in one, or the parts of a sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Var

from shardy_py.frontends.partial_sums import partial_sums
from shardy_py.stages.jaxprs import shape_of


@dataclass(frozen=True)
class Buffer:
    """Values side by side in the rows of a matrix, one row per shard, so that nothing moves; all of them are sharded, or none."""

    members: tuple[Var, ...]
    dims: tuple[int | None, ...]
    num_shards: int

    @property
    def columns(self) -> list[int]:
        """The number of columns of each value."""
        return [math.prod(shape_of(v)) // self.num_shards for v in self.members]

    def joined(self, env: Mapping[Var, Any]) -> Any:
        """The matrix of the values in `env`."""
        rows = [jax.numpy.moveaxis(env[v], dim, 0) if dim else env[v] for v, dim in zip(self.members, self.dims)]
        return jax.numpy.concatenate([jax.numpy.reshape(x, (self.num_shards, n)) for x, n in zip(rows, self.columns)], 1)

    def parts(self, matrix: Any) -> dict[Var, Any]:
        """The values in a matrix."""
        values: dict[Var, Any] = {}
        start = 0
        for v, dim, n in zip(self.members, self.dims, self.columns):
            shape = shape_of(v)
            if dim:
                shape = (shape[dim], *shape[:dim], *shape[dim + 1 :])
            if n:
                x = jax.numpy.reshape(jax.lax.slice_in_dim(matrix, start, start + n, axis=1), shape)
            else:  # XLA ends the process where it looks for a slice of nothing among the operands of the concatenation
                x = jax.numpy.empty(shape, matrix.dtype)
            values[v] = jax.numpy.moveaxis(x, 0, dim) if dim else x
            start += n
        return values


@dataclass(frozen=True)
class PartialSums:
    """A value as partial sums, one per device."""

    member: Var
    num_shards: int

    @property
    def members(self) -> tuple[Var, ...]:
        """The value."""
        return (self.member,)

    def joined(self, env: Mapping[Var, Any]) -> Any:
        """The parts of the value in `env`."""
        return partial_sums(env[self.member], self.num_shards)

    def parts(self, stacked: Any) -> dict[Var, Any]:
        """The value that parts sum up to."""
        return {self.member: jax.numpy.sum(stacked, 0, dtype=stacked.dtype)}


Stand = Buffer | PartialSums
"""An array that stands for values where programs hand them over."""


def unpack(env: dict[Var, Any], v: Var, value: Any, stands: Mapping[Var, Stand]) -> None:
    """Puts the value of a variable into `env`, or those that it stands for."""
    if v in stands:
        for member, part in stands[v].parts(value).items():
            unpack(env, member, part, stands)
    else:
        env[v] = value


def packed(env: Mapping[Var, Any], v: Var, stands: Mapping[Var, Stand]) -> Any:
    """The value of a variable, from those in `env`."""
    if v not in stands:
        return env[v]
    return stands[v].joined({member: packed(env, member, stands) for member in stands[v].members})

"""Moves of values from one stage to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, SingleDeviceSharding

from shardy_py.frontends.context import put_shards

Device = Any
Move = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]
"""Brings values of one stage to another."""


def devices_of(mesh: Mesh | AbstractMesh) -> tuple[Device, ...]:
    """The devices of a mesh that has some, in its order."""
    assert isinstance(mesh, Mesh)
    return tuple(mesh.devices.flat)


def move(source: NamedSharding, target: NamedSharding, is_key: bool = False) -> Move:
    """The move of values from one stage to another. Equal moves are equal objects, and bring several values at once."""
    if is_key or source.spec != target.spec or source.mesh.axis_sizes != target.mesh.axis_sizes:
        return _Any(target)
    devices = devices_of(target.mesh)
    return _Alike(SingleDeviceSharding(devices[0]) if len(devices) == 1 else target, devices)


@dataclass(frozen=True)
class _Alike:
    """Moves arrays to another mesh with the same specs."""

    sharding: NamedSharding | SingleDeviceSharding
    devices: tuple[Device, ...]

    def __call__(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        if len(self.devices) == 1:
            return [put_shards(x, self.sharding, (x,), self.devices) for x in values]
        return [put_shards(x, self.sharding, [shard.data for shard in x.addressable_shards], self.devices) for x in values]


@dataclass(frozen=True)
class _Any:
    """Moves whole arrays."""

    target: NamedSharding

    def __call__(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        return jax.device_put(values, self.target)

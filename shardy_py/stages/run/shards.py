"""Values of stages whose devices run each by itself: tuples of shards, in the order of the mesh.

JAX starts a program of several devices on threads of its own and waits until all of them have it; programs of one device it just hands
out. So where the devices of a stage exchange nothing, each is handed its own program and its own shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, SingleDeviceSharding

from shardy_py.frontends.context import put_shards
from shardy_py.stages.run.placing import axes_of

Shards = tuple[Any, ...]
Device = Any
Move = Callable[[Sequence[Any]], Sequence[Any]]
"""Brings values of one stage to another."""


def devices_of(mesh: Mesh | AbstractMesh) -> tuple[Device, ...]:
    """The devices of a mesh that has some, in its order."""
    assert isinstance(mesh, Mesh)
    return tuple(mesh.devices.flat)


@dataclass(frozen=True)
class DeviceCalls:
    """A program, compiled for every device; takes shards and gives shards."""

    calls: tuple[Any, ...]

    def __call__(self, *values: Shards) -> list[Shards]:
        """Runs the program on every device."""
        return list(zip(*[call(*own) for call, own in zip(self.calls, zip(*values))]))


def split(value: jax.Array) -> Shards:
    """The shards of an array."""
    return tuple([shard.data for shard in value.addressable_shards])


def joined(shards: Shards, sharding: NamedSharding) -> jax.Array:
    """The array of these shards."""
    shape = list(shards[0].shape)
    for dim, entry in enumerate(sharding.spec):
        shape[dim] *= math.prod(sharding.mesh.shape[axis] for axis in axes_of(entry))
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(shards))


@dataclass(frozen=True)
class End:
    """One end of a move, where a value is produced or read; the devices of a stage that is `apart` run each by itself."""

    sharding: NamedSharding
    apart: bool
    is_key: bool = False

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the stage."""
        return devices_of(self.sharding.mesh)


def move(source: End, target: End) -> Move:
    """The move of values from one stage to another. Equal moves are equal objects, and bring several values at once."""
    alike = source.sharding.spec == target.sharding.spec and source.sharding.mesh.axis_sizes == target.sharding.mesh.axis_sizes
    if source.apart != target.apart or not alike or source.is_key:
        return _Any(source, target)
    if source.apart:
        return _Across(tuple((SingleDeviceSharding(device), device) for device in target.devices))
    return _Alike(SingleDeviceSharding(target.devices[0]) if len(target.devices) == 1 else target.sharding, target.devices)


@dataclass(frozen=True)
class _Across:
    """Shards from device to device."""

    places: tuple[tuple[SingleDeviceSharding, Device], ...]

    def __call__(self, values: Sequence[Shards]) -> Sequence[Shards]:
        return [tuple([put_shards(x, at, (x,), (device,)) for x, (at, device) in zip(shards, self.places)]) for shards in values]


@dataclass(frozen=True)
class _Alike:
    """Moves arrays to another mesh with the same specs."""

    sharding: NamedSharding | SingleDeviceSharding
    devices: tuple[Device, ...]

    def __call__(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        if len(self.devices) == 1:
            return [put_shards(x, self.sharding, (x,), self.devices) for x in values]
        return [put_shards(x, self.sharding, split(x), self.devices) for x in values]


@dataclass(frozen=True)
class _Any:
    """Through whole arrays."""

    source: End
    target: End

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        whole = [joined(x, self.source.sharding) for x in values] if self.source.apart else values
        moved = jax.device_put(whole, self.target.sharding)
        return [split(x) for x in moved] if self.target.apart else moved

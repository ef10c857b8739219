"""Values between the meshes of several processes.

`jax.device_put` numbers its transfers with a counter per process, so every process has to issue every transfer between two of them, in
one order. A process that holds no part of a value passes a stub for it: an array without shards here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from shardy_py.dialect.grouping import grouped
from shardy_py.pipelines.jaxprs import is_extended_dtype

Region = tuple[tuple[int, int], ...]
"""First and last index, exclusive, along every dimension."""


@functools.lru_cache(maxsize=4096)
def processes_of(sharding: Sharding) -> frozenset[int]:
    """The processes whose devices hold a value."""
    return frozenset(device.process_index for device in sharding.device_set)


def is_here(sharding: Sharding) -> bool:
    """Whether this process holds a part of a value."""
    return jax.process_index() in processes_of(sharding)


def is_global(value: Any) -> bool:
    """Whether a value is an array on a mesh, for all processes the same one; others are values that every process has."""
    return isinstance(value, jax.Array) and isinstance(value.sharding, NamedSharding)


@functools.lru_cache(maxsize=4096)
def stub(shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> jax.Array:
    """What stands for a value of other processes."""
    return jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=dtype)


def placed(value: Any, sharding: NamedSharding) -> jax.Array:
    """A value that every process has, on a mesh; a stub where that is elsewhere."""
    if processes_of(sharding) == {jax.process_index()}:
        return jax.device_put(value, sharding)
    struct = jax.typeof(value)
    if not is_here(sharding):
        return stub(struct.shape, struct.dtype, sharding)
    if is_extended_dtype(struct.dtype):
        return jax.random.wrap_key_data(placed(jax.random.key_data(value), sharding), impl=jax.random.key_impl(value))
    whole = np.asarray(value, struct.dtype)
    return jax.make_array_from_callback(struct.shape, sharding, lambda index: whole[index])


class _Piece(NamedTuple):
    """The part of a value that goes from one device to another: its place within the shard there, and its start within the shard here."""

    source: Any
    target: Any
    of: tuple[slice, ...]
    at: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Route:
    """How one value goes: as a whole, in pieces, or, with neither, from another process to itself."""

    shape: tuple[int, ...]
    dtype: Any
    target: Sharding
    whole: bool = False
    pieces: tuple[_Piece, ...] = ()

    def parts(self, value: jax.Array) -> list[jax.Array]:
        """What is put on `where`."""
        if self.whole:
            return [value]
        shards = {shard.device: shard.data for shard in value.addressable_shards} if self.pieces else {}
        return [
            _cut(shards[piece.source], piece.of)
            if piece.source in shards
            else stub(piece.shape, self.dtype, SingleDeviceSharding(piece.source))
            for piece in self.pieces
        ]

    @property
    def where(self) -> list[Sharding]:
        return [self.target] if self.whole else [SingleDeviceSharding(piece.target) for piece in self.pieces]

    def starts(self, source: Sharding) -> list[Sharding]:
        return [source] if self.whole else [SingleDeviceSharding(piece.source) for piece in self.pieces]

    def joined(self, parts: Sequence[jax.Array]) -> jax.Array:
        """The value of what has been put there."""
        if self.whole:
            return parts[0]
        if not is_here(self.target):
            return stub(self.shape, self.dtype, self.target)
        shape = self.target.shard_shape(self.shape)
        shards = []
        for device in self.target.addressable_devices:
            mine = [(part, piece.at) for part, piece in zip(parts, self.pieces) if piece.target == device]
            full = len(mine) == 1 and mine[0][0].shape == shape
            shards.append(mine[0][0] if full else _filled([part for part, _ in mine], tuple(at for _, at in mine), shape))
        return jax.make_array_from_single_device_arrays(self.shape, self.target, shards)


def _cut(shard: jax.Array, of: tuple[slice, ...]) -> jax.Array:
    return shard if all(s.stop - s.start == size for s, size in zip(of, shard.shape)) else shard[of]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _filled(parts: Sequence[jax.Array], starts: tuple[tuple[int, ...], ...], shape: tuple[int, ...]) -> jax.Array:
    whole = jax.numpy.zeros(shape, parts[0].dtype)
    for part, at in zip(parts, starts):
        whole = jax.lax.dynamic_update_slice(whole, part, at)
    return whole


class Relocation:
    """Values of some types from shardings to others; all processes call it.

    Attributes:
        crossing_bytes: Bytes that go from one process to another, of all processes.
        sent_bytes: Of these, what this process sends.
    """

    def __init__(self, structs: Sequence[Any], sources: Sequence[Sharding], targets: Sequence[Sharding]) -> None:
        own, self.crossing_bytes, self.sent_bytes = jax.process_index(), 0, 0
        self.routes: list[_Route] = []
        self.keys: list[int] = []
        for i, (struct, source, target) in enumerate(zip(structs, sources, targets)):
            of, to = processes_of(source), processes_of(target)
            local, alike = of == to and len(of) == 1, _alike(source, target) and not of & to
            if not local and is_extended_dtype(struct.dtype):
                self.keys.append(i)
                struct = jax.eval_shape(jax.random.key_data, struct)
            dtype, shape = struct.dtype, tuple(struct.shape)
            if local or alike:
                here = alike or own in of
                self.routes.append(_Route(shape, dtype, target, whole=here))
            else:
                pieces = _pieces(shape, source, target)
                # Of pieces within another process this one knows nothing; those between two are numbered everywhere.
                mine = [p for p in pieces if p.source.process_index != p.target.process_index or p.source.process_index == own]
                self.routes.append(_Route(shape, dtype, target, pieces=tuple(mine)))
            size = getattr(dtype, "itemsize", 4)
            pairs = zip(_devices(source), _devices(target)) if alike else ()
            sent = [(a.process_index, math.prod(source.shard_shape(shape)) * size) for a, _ in pairs]
            sent += [
                (p.source.process_index, math.prod(p.shape) * size)
                for p in self.routes[-1].pieces
                if p.source.process_index != p.target.process_index
            ]
            self.crossing_bytes += sum(n for _, n in sent)
            self.sent_bytes += sum(n for process, n in sent if process == own)
        self.where = [sharding for route in self.routes for sharding in route.where]
        # One call numbers the values between the same devices in their order, those between others in any.
        starts = [sharding for route, source in zip(self.routes, sources) for sharding in route.starts(source)]
        links = [tuple(sorted(device.id for device in end.device_set) for end in pair) for pair in zip(starts, self.where)]
        self.groups = list(grouped(range(len(links)), lambda i: str(links[i])).values())

    def __call__(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """The values on their targets, stubs where these are elsewhere."""
        plain = [jax.random.key_data(value) if i in self.keys else value for i, value in enumerate(values)]
        parts = [part for route, value in zip(self.routes, plain) for part in route.parts(value)]
        there: list[Any] = [None] * len(parts)
        for group in self.groups:
            for i, x in zip(group, jax.device_put([parts[i] for i in group], [self.where[i] for i in group])):
                there[i] = x
        put = iter(there)
        results = [route.joined([next(put) for _ in route.where]) for route in self.routes]
        for i in self.keys:
            results[i] = jax.random.wrap_key_data(results[i], impl=jax.random.key_impl(values[i]))
        return results


@functools.lru_cache(maxsize=4096)
def _relocation(structs: tuple[jax.ShapeDtypeStruct, ...], sources: tuple[Sharding, ...], targets: tuple[Sharding, ...]) -> Relocation:
    return Relocation(structs, sources, targets)


def moved(values: Sequence[Any], targets: Sequence[NamedSharding]) -> tuple[list[jax.Array], int]:
    """Values on meshes, and the bytes that this process sent; every process calls this."""
    there = [x if is_global(x) else placed(x, target) for x, target in zip(values, targets)]
    away = [i for i, (x, target) in enumerate(zip(there, targets)) if x.sharding != target]
    if not away:
        return there, 0
    structs = tuple(jax.ShapeDtypeStruct(there[i].shape, there[i].dtype) for i in away)
    move = _relocation(structs, tuple(there[i].sharding for i in away), tuple(targets[i] for i in away))
    for i, x in zip(away, move([there[i] for i in away])):
        there[i] = x
    return there, move.sent_bytes


def _devices(sharding: Sharding) -> list[Any]:
    assert isinstance(sharding, NamedSharding)
    assert isinstance(sharding.mesh, Mesh)
    return list(sharding.mesh.devices.flat)


def _alike(source: Sharding, target: Sharding) -> bool:
    """Whether the shards of two shardings are the same ones, in the same order of devices."""
    if not isinstance(source, NamedSharding) or not isinstance(target, NamedSharding):
        return False
    return source.spec == target.spec and source.mesh.shape_tuple == target.mesh.shape_tuple


def _pieces(shape: tuple[int, ...], source: Sharding, target: Sharding) -> list[_Piece]:
    """What every device of the target takes from which device of the source, from one of its own process where it can."""
    holders: dict[Region, list[Any]] = {}
    for device, region in _regions(source, shape).items():
        holders.setdefault(region, []).append(device)
    pieces: list[_Piece] = []
    for number, (device, region) in enumerate(_regions(target, shape).items()):
        for other, devices in holders.items():
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(region, other)]
            if any(a >= b for a, b in common):
                continue
            near = [d for d in devices if d == device] or [d for d in devices if d.process_index == device.process_index]
            of = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(common, other))
            at = tuple(a - start for (a, _), (start, _) in zip(common, region))
            pieces.append(_Piece(near[0] if near else devices[number % len(devices)], device, of, at, tuple(b - a for a, b in common)))
    return pieces


def _regions(sharding: Sharding, shape: tuple[int, ...]) -> dict[Any, Region]:
    indices = sharding.devices_indices_map(shape)
    return {device: tuple(s.indices(size)[:2] for s, size in zip(index or (), shape)) for device, index in indices.items()}


def everywhere(devices: Iterable[Any]) -> NamedSharding:
    """A copy in every process, on its first device."""
    first: dict[int, Any] = {}
    for device in sorted(devices, key=lambda device: (device.process_index, device.id)):
        first.setdefault(device.process_index, device)
    return NamedSharding(Mesh(np.array(list(first.values()), dtype=object), ("process",)), PartitionSpec())
